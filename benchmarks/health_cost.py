"""Measures what the health of a table costs: CPU time, wall time and peak memory.

    python -m benchmarks.health_cost <working folder> [--rows 1000000] [--dim 64]

writes two checkpoints of a drawn table with Adagrad's accumulators, in which a tenth of the rows moved and the rows
changed their order, and measures the later one alone and against the earlier one, each in a new process.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

_SLICE = 65_536


def _write(folder: Path, rows: int, dim: int, *, later: bool) -> None:
    from embedding_core.checkpoint import write_tables
    from embedding_core.config import EmbeddingConfig, FeatureConfig, TableConfig
    from embedding_core.optimizers import Adagrad
    from embedding_core.vocabulary import Vocabulary

    order = np.random.default_rng(1).permutation(rows) if later else np.arange(rows)
    counts = (order % 10 == 0).astype(np.int64) * 5
    tokens = pa.array([b"token%d" % row for row in order], pa.large_binary())
    words = Vocabulary(name="word", tokens=tokens, counts=counts, total_count=int(counts.sum()), distinct=rows)
    table = TableConfig(
        name="items", vocabulary="word", vocabulary_size=rows, dim=dim, optimizer=Adagrad(learning_rate=0.1)
    )
    config = EmbeddingConfig(tables=(table,), features=(FeatureConfig(name="item", table="items"),))

    def rows_of(key: str) -> Iterator[tuple[int, npt.NDArray[np.float32]]]:
        table = np.random.default_rng(0).normal(size=(rows, dim)).astype(np.float32)
        moved = counts[:, None] > 0
        for start in range(0, rows, _SLICE):
            part = slice(start, start + _SLICE)
            changed = np.float32(0.01) if later else np.float32(0)
            values = np.abs(table[order[part]]) + 1 if "/" in key else table[order[part]]
            yield start, np.where(moved[part], values + changed, values)

    write_tables(folder, config, rows_of, step=1, vocabularies={"word": words})


def _peak_mb() -> int:
    """Return the peak memory of this process in MB; unlike `ru_maxrss`, it does not include that of the parent."""
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")]
    return round(int(line.split()[1]) * 1024 / 1e6)


def _measure(now: str, base: str | None) -> dict[str, float]:
    from embedding_core.checkpoint.table_health import CheckpointTables, measure_checkpoint
    from embedding_core.health import Health, judge_table

    tables, earlier = CheckpointTables(now), None if base is None else CheckpointTables(base)
    loaded, before = resource.getrusage(resource.RUSAGE_SELF), _peak_mb()
    begun = time.monotonic()
    (figures,) = measure_checkpoint(tables, earlier)
    used = resource.getrusage(resource.RUSAGE_SELF)
    found = judge_table(figures, Health(), str)
    return {
        "seconds": round(time.monotonic() - begun, 2),
        "cpu_seconds": round(used.ru_utime + used.ru_stime - loaded.ru_utime - loaded.ru_stime, 2),
        "mb_with_vocabularies": before,
        "mb_peak": _peak_mb(),
        "findings": len(found),
    }


def main() -> None:
    """Write the checkpoints unless they exist, and print a JSON object for each measurement."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, help="working folder")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--measure", nargs="+", help=argparse.SUPPRESS)
    given = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    if given.measure:
        sys.stdout.write(json.dumps(_measure(*given.measure, *[None] * (2 - len(given.measure)))) + "\n")
        return
    base, now = (given.folder / f"{given.rows}x{given.dim}" / name for name in ("base", "now"))
    for folder, later in ((base, False), (now, True)):
        if not folder.exists():
            folder.parent.mkdir(parents=True, exist_ok=True)
            _write(folder, given.rows, given.dim, later=later)
    for folders in ([now], [now, base]):
        command = [sys.executable, "-m", "benchmarks.health_cost", str(given.folder), "--measure", *map(str, folders)]
        out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        print("against the base:" if len(folders) > 1 else "alone:", out.strip().splitlines()[-1])


if __name__ == "__main__":
    main()
