"""Trains DCN-v2 on rows like Criteo's, as a plain script would: polars encodes the rows, and PyTorch trains.

    python polars_torch.py FILE.parquet

It does not validate, record or export anything. It prints the AUC of the eval split, CPU seconds and peak memory as one
JSON object. `benchmarks.file_to_model` runs it in a separate Python.
"""

import json
import resource
import sys
import time

import numpy as np
import polars as pl
import torch

NUMBERS, TEXTS = [f"I{i}" for i in range(1, 14)], [f"C{i}" for i in range(1, 27)]
BATCH, DIM, RANK, EVAL = 2048, 16, 16, 0.2


class DCN(torch.nn.Module):
    """Low-rank cross layers in parallel with an MLP, as in `pipelines.models.ranking`."""

    def __init__(self, sizes):
        super().__init__()
        self.tables = torch.nn.ModuleList(torch.nn.Embedding(size, DIM, sparse=True) for size in sizes)
        for table in self.tables:
            torch.nn.init.normal_(table.weight, 0, DIM**-0.5)
        width = DIM * len(sizes) + len(NUMBERS)
        self.narrow = torch.nn.ModuleList(torch.nn.Linear(width, RANK, bias=False) for _ in range(2))
        self.wide = torch.nn.ModuleList(torch.nn.Linear(RANK, width) for _ in range(2))
        drop, relu = torch.nn.Dropout(0.1), torch.nn.ReLU()
        self.deep = torch.nn.Sequential(torch.nn.Linear(width, 64), relu, drop, torch.nn.Linear(64, 32), relu, drop)
        self.logit = torch.nn.Linear(width + 32, 1)

    def forward(self, ids, dense):
        """Return logits."""
        start = torch.cat([table(ids[:, i]) for i, table in enumerate(self.tables)] + [dense], 1)
        crossed = start
        for narrow, wide in zip(self.narrow, self.wide):  # noqa: B905
            crossed = start * wide(narrow(crossed)) + crossed
        return self.logit(torch.cat([crossed, self.deep(start)], 1))[:, 0]


def encode(file):
    """Read and encode a file: tokens seen twice or more in train become ids, numbers become standardized logarithms.

    Returns:
      Table sizes, and ids, numbers and label of the train rows and of the eval rows.
    """
    rows = pl.read_parquet(file)
    is_eval = np.random.default_rng(1).random(len(rows)) < EVAL
    train = rows.filter(pl.Series(~is_eval))
    ids, sizes = [], []
    for name in TEXTS:
        counts = train[name].drop_nulls().value_counts().filter(pl.col("count") > 1)
        vocabulary = counts.sort("count", descending=True).with_row_index("id", offset=1).select(name, "id")
        ids.append(rows.select(name).join(vocabulary, on=name, how="left", maintain_order="left")["id"].fill_null(0))
        sizes.append(len(vocabulary) + 1)
    dense = rows.select(pl.col(NUMBERS).cast(pl.Float32).log1p())
    means, deviations = train.select(pl.col(NUMBERS).log1p().mean()), train.select(pl.col(NUMBERS).log1p().std())
    dense = dense.select((pl.col(n) - means[n][0]) / deviations[n][0] for n in NUMBERS).fill_null(0.0)
    arrays = np.stack([column.to_numpy() for column in ids], 1).astype(np.int64), dense.to_numpy()
    label = rows["label"].to_numpy().astype(np.float32)
    tensors = [torch.from_numpy(np.ascontiguousarray(column)) for column in (*arrays, label)]
    return sizes, [tensor[~is_eval] for tensor in tensors], [tensor[is_eval] for tensor in tensors]


def auc(label, score):
    """Return the area under the ROC curve."""
    ranks = np.empty(len(score))
    ranks[np.argsort(score)] = np.arange(1, len(score) + 1)
    positive = label > 0
    return (ranks[positive].sum() - positive.sum() * (positive.sum() + 1) / 2) / (positive.sum() * (~positive).sum())


def main(file):
    """Encode, train and evaluate, and print the figures."""
    torch.set_num_threads(1)  # two threads wait for each other in spin locks: more CPU time, not less wall time
    sizes, train, held = encode(file)
    encoded = time.process_time()
    model = DCN(sizes)
    dense_part = [p for name, p in model.named_parameters() if not name.startswith("tables")]
    optimizers = [
        torch.optim.Adagrad(model.tables.parameters(), 0.01, initial_accumulator_value=0.001),
        torch.optim.Adam(dense_part, 0.001),
    ]
    loss_of = torch.nn.BCEWithLogitsLoss()
    for rows in torch.randperm(len(train[2])).split(BATCH):
        ids, dense, label = (column[rows] for column in train)
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss_of(model(ids, dense), label).backward()
        for optimizer in optimizers:
            optimizer.step()
    trained = time.process_time()
    model.eval()
    with torch.no_grad():
        scores = torch.cat([model(*part) for part in zip(held[0].split(8192), held[1].split(8192))])  # noqa: B905
    figures = {
        "auc": auc(held[2].numpy(), scores.numpy()),
        "encode_cpu": encoded,
        "train_cpu": trained - encoded,
        "cpu": time.process_time(),
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main(sys.argv[1])
