"""Judges limits of SparseCores with the C++ of jax-tpu-embedding 0.2.0, in an environment of its own (Python 3.12+).

    <environment>/bin/python judge.py <folder of a case> ...

`cases.py` describes a case's files. For each case this prints one line of JSON: the ids that the C++ dropped over all
batches under the limits, what it saw, and for each limit of each stack the ids that the first batch loses if the
limit is one less.
With `--refused <folder> <limit> <stack>` it sets this limit one below, and runs the batches without leave to drop ids:
the C++ then ends the process, and names the stack.
"""

import json
import sys
from pathlib import Path

import numpy as np
from jax_tpu_embedding.sparsecore.lib.nn import embedding

sys.path.append(str(Path(__file__).parents[3] / "embedding_core" / "tpu_compiler"))

from sparse_core_process import feature_specs

LIMITS = ("max_ids_per_partition", "max_unique_ids_per_partition")


class Case:
    """One case, as jax-tpu-embedding takes it."""

    def __init__(self, folder):
        self.description = json.loads((Path(folder) / "case.json").read_text())
        self.program = self.description["program"]
        self.chips, self.cores = self.program["chips"], self.program["sparse_cores_per_chip"]
        self.batch_size, self.features = self.program["batch_size"], self.program["features"]
        self.form = self.program["form"]
        self.limits = self.form["update_preprocessing_parameters"]
        arrays = np.load(Path(folder) / self.description["batches_file"])
        self.batches = [
            {name: self.rows(arrays[f"{name}.values.{n}"], arrays[f"{name}.splits.{n}"]) for name in self.features}
            for n in range(self.description["batches"])
        ]

    def specs(self, limits):
        """Make feature specs as the compiler of the package does, with other limits."""
        return feature_specs({**self.program, "form": {**self.form, "update_preprocessing_parameters": limits}})

    def rows(self, values, splits):
        """Return the samples of a batch, as arrays of ids; a short batch is filled with empty samples."""
        rows = np.empty(self.batch_size, dtype=object)
        rows[:] = [np.zeros(0, np.int32)] * self.batch_size
        for row, ids in enumerate(np.split(values.astype(np.int32), splits[1:-1])):
            rows[row] = ids
        return rows

    def run(self, specs, batch, drop):
        """Return the statistics of the C++ for a batch."""
        _, stats = embedding.preprocess_sparse_dense_matmul_input(
            batch, None, specs, self.chips, self.chips, num_sc_per_device=self.cores, allow_id_dropping=drop
        )
        return stats

    def totals(self, limits):
        """Return the dropped ids and the largest counts over all batches, by stack."""
        specs, dropped, seen = self.specs(limits), {}, {}
        for batch in self.batches:
            stats = self.run(specs, batch, drop=True)
            for stack, ids in stats.id_drop_counters.items():
                dropped[stack] = dropped.get(stack, 0) + int(ids)
            counts = (
                stats.max_ids_per_partition,
                stats.max_unique_ids_per_partition,
                stats.required_buffer_size_per_sc,
            )
            for key, by_stack in zip((*LIMITS, "required_buffer_size_per_sc"), counts, strict=True):
                for stack, value in by_stack.items():
                    of_stack = seen.setdefault(key, {})
                    of_stack[stack] = max(of_stack.get(stack, 0), int(np.max(value)))
        return dropped, seen

    def first_dropped(self, limits, stack):
        """Return the ids of a stack that the first batch that is over a limit loses; 0 if none is."""
        specs = self.specs(limits)
        counts = (int(self.run(specs, batch, drop=True).id_drop_counters[stack]) for batch in self.batches)
        return next((dropped for dropped in counts if dropped), 0)


def one_below(limits, key, stack):
    """Return the limits with one of them one less."""
    return {**limits, key: {**limits[key], stack: limits[key][stack] - 1}}


def judge(folder):
    """Return the verdict on a case."""
    case = Case(folder)
    dropped, seen = case.totals(case.limits)
    below = {}
    if case.description["exact"]:
        for key in LIMITS:
            for stack, limit in case.limits[key].items():
                if limit > 1:
                    below[f"{stack}: {key}"] = case.first_dropped(one_below(case.limits, key, stack), stack)
    return {
        "case": case.description["name"],
        "batches": len(case.batches),
        "dropped": dropped,
        "limits": case.limits,
        "seen": seen,
        "dropped_one_below": below,
    }


def refused(folder, key, stack):
    """Run the batches in order with a limit one below, without leave to drop ids: ends the process."""
    case = Case(folder)
    specs = case.specs(one_below(case.limits, key, stack))
    for batch in case.batches:
        case.run(specs, batch, drop=False)


if __name__ == "__main__":
    if sys.argv[1] == "--refused":
        refused(*sys.argv[2:])
    else:
        for name in sys.argv[1:]:
            print(json.dumps(judge(name)), flush=True)
