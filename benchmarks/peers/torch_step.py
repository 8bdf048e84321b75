"""Times a training step of torch's EmbeddingBag with sparse gradients; `benchmarks.keras_layer` runs it.

    python torch_step.py IDS.npz OPTIMIZER DIM  # with torch's own Python

Builds the tables, warms up, and prints torch's version. Then, for every line of standard input, it takes a step on each
batch and prints the mean CPU milliseconds of a step.
"""

import sys
import time

import numpy as np
import torch

OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, 0.01),
    "adagrad": lambda parameters: torch.optim.Adagrad(parameters, 0.01, initial_accumulator_value=0.1),
    "adam": lambda parameters: torch.optim.SparseAdam(parameters, 0.01),
}


def main(file, optimizer, dim):
    """Build the tables and batches; time the steps once for every line of standard input."""
    torch.set_num_threads(1)
    data = np.load(file)
    rows, ids, lengths = data["rows"], data["ids"], data["lengths"]
    bags = [torch.nn.EmbeddingBag(size, dim, mode="mean", sparse=True, _weight=torch.zeros(size, dim)) for size in rows]
    optimizer = OPTIMIZERS[optimizer]([bag.weight for bag in bags])
    ends = np.cumsum(lengths.sum(2).ravel())
    flat = [torch.from_numpy(part) for part in np.split(ids, ends[:-1])]
    starts = torch.from_numpy(np.cumsum(lengths, 2) - lengths).flatten(0, 1)
    batches = [list(zip(bags, flat[place:], starts[place:])) for place in range(0, len(flat), len(rows))]  # noqa: B905

    def steps():
        for batch in batches:
            optimizer.zero_grad()
            sum(bag(own, begins).mean() for bag, own, begins in batch).backward()
            optimizer.step()

    steps()
    print("torch", torch.__version__, flush=True)
    for _ in sys.stdin:
        start = time.process_time()
        steps()
        print(1e3 * (time.process_time() - start) / len(batches), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
