"""Compares one worker that holds a large vocabulary whole with workers that hold parts, which are then merged.

    python -m benchmarks.vocabulary_parts FOLDER --tokens 1000000

At 1x, 2x, 4x and 8x tokens, it measures the CPU seconds of three workers, and how far their resident memory grows: one
that assembles the whole vocabulary, one that assembles one part of 64, and one that merges the sorted parts. Each runs
in a separate process; imports are not counted. Every token comes from two sources, in messages like those of the
counting step. The files that the two ways write are compared byte by byte.
"""

from __future__ import annotations

import argparse
import filecmp
import json
import pathlib
import shutil
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.measuring import in_new_process, resources, show, table

TIMES = (1, 2, 4, 8)
PARTS = 64
SOURCE = 250_000
WAYS = ("whole", "part", "merge")
_FEATURES = [{"name": "user", "column": {"name": "user"}}]


def _plan(parts: int) -> Any:
    from components.vocabulary_gen.counting_plan import plan_counting

    return plan_counting(_FEATURES, {"user": {"parts": parts}})


def _sources(tokens: int) -> Iterator[tuple[pa.Array, Any]]:
    """Yield tokens of 12 digits with their counts; each token is in two sources, with different counts."""
    random = np.random.default_rng(0)
    for _ in range(2):
        for start in range(0, tokens, SOURCE):
            numbers = np.arange(start, min(tokens, start + SOURCE)) + 10**11
            yield (
                pa.array(numbers).cast(pa.string()).cast(pa.large_binary()),
                random.zipf(1.5, len(numbers)).clip(max=10**9),
            )


def _make(folder: pathlib.Path, tokens: int) -> None:
    """Write the messages of all sources to files, in one folder per key."""
    from components.vocabulary_gen.counting import SOURCES, BatchCounts, SourceCounts

    plans = {"whole": _plan(1), "part": _plan(PARTS)}
    for number, (values, counts) in enumerate(_sources(tokens)):
        batch = BatchCounts(tokens=values, counts=counts, histogram=np.array([0, counts.sum()]), widest=1)
        for kind, plan in plans.items():
            gathered = SourceCounts(plan, str(number))
            gathered.add_batch(int(counts.sum()), [(plan.features[0], batch)])
            gathered.add_dtype("user", "string", str(number))
            for place, (key, message) in enumerate(gathered.messages()):
                if key != SOURCES:
                    path = folder / kind / (key.partition("\n")[2] or "user") / f"{number}-{place}"
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(message)


def _messages(folder: pathlib.Path) -> Iterator[bytes]:
    return (path.read_bytes() for path in sorted(folder.iterdir()))


def _do(folder: pathlib.Path, way: str) -> None:
    """Do one worker's share of the work as the pipeline does it."""
    from components.vocabulary_gen.assembling import assemble_vocabulary, merge_parts, write_part
    from embedding_core.vocabulary import save_vocabulary

    out = folder / f"out-{'whole' if way == 'whole' else 'merged'}"
    out.mkdir(exist_ok=True)
    if way == "whole":
        save_vocabulary(assemble_vocabulary(_plan(1), "user", _messages(folder / "whole" / "user")), out)
    elif way == "part":
        write_part(_plan(PARTS), "user\n00000", _messages(folder / "part" / "00000"), str(out))
    else:
        merge_parts(_plan(PARTS), "user", _messages(folder / "part" / "user"), str(out))


def _write_parts(folder: pathlib.Path) -> None:
    from components.vocabulary_gen.assembling import write_part

    out, of_features = folder / "out-merged", folder / "part" / "user"
    out.mkdir(exist_ok=True)
    for place in sorted(path for path in (folder / "part").iterdir() if path != of_features):
        _, facts = write_part(_plan(PARTS), f"user\n{place.name}", _messages(place), str(out))
        (of_features / f"part-{place.name}").write_text(json.dumps(facts))


def measure(folder: str, way: str) -> dict[str, float]:
    """Do one worker's share of the work in this process; return its figures."""
    import components.vocabulary_gen.assembling  # noqa: F401

    return resources(lambda: _do(pathlib.Path(folder), way))


def prepare(folder: str, tokens: int) -> None:
    """Write the messages, and the parts that the merging worker reads."""
    _make(pathlib.Path(folder), tokens)
    _write_parts(pathlib.Path(folder))


def main() -> None:
    """Write the messages, measure, and print a table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--tokens", type=int, default=1_000_000)
    given = parser.parse_args()
    rows = []
    for times in TIMES:
        folder = given.folder / f"tokens-{given.tokens * times}"
        shutil.rmtree(folder, ignore_errors=True)
        in_new_process(prepare, str(folder), given.tokens * times)
        figures = [in_new_process(measure, str(folder), way) for way in WAYS]
        names = ["user.txt", "user.counts.npy", "user.json"]
        equal, *_ = filecmp.cmpfiles(folder / "out-whole", folder / "out-merged", names, shallow=False)
        assert equal == names, equal
        written = sum((folder / "out-merged" / name).stat().st_size for name in names) / 1e6
        cells = [f"{given.tokens * times:,}", f"{written:.0f}"]
        rows.append([*cells, *(cell for each in figures for cell in (f"{each['cpu']:.1f}", f"{each['peak_mb']:.0f}"))])
    head = ["tokens", "MB written", *(cell for way in WAYS for cell in (f"{way}: CPU s", "peak MB"))]
    show(table(head, rows), None, "")


if __name__ == "__main__":
    main()
