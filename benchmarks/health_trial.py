"""Tries the health gate on trained tables: healthy daily runs must pass, planted sicknesses must not.

    python -m benchmarks.health_trial <working folder> [--data <folder with the daily *.csv.gz files>]

trains the chains of `benchmarks/health_chains.py` (what is trained is kept in the working folder), judges every later
run against the run before it, and plants each of the 12 sicknesses of `benchmarks/health_plants.py` into every table
of two runs of each chain. A sick table is found if a figure of it, and of no healthy table, is beyond its bound.

The default bounds were chosen on other runs than those reported here: April 2011 of Online Retail, seed 1 of the
made-up rows, and the first 13 later runs of the taxi trips (`--calibration` judges these). The exit code is 1
if a healthy run is refused, or a sickness is not found in the main table of a chain.
"""

from __future__ import annotations

import argparse
import collections
import itertools
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.health_chains import Chain, made_up_chain, retail_chain, taxi_chain, trained
from benchmarks.health_plants import SICKNESSES, planted
from benchmarks.marked_pages import write_between
from embedding_core.checkpoint.summary import name_of_row
from embedding_core.checkpoint.table_health import CheckpointTables, measure_checkpoint
from embedding_core.health import Finding, Health, judge_table
from pipelines.pipeline.component_inputs import drawn_features

_OLDER = 4  # runs between a checkpoint and the one that "another day" takes rows from
_MAIN = {"retail": "CustomerID", "taxi": "dropoff_census_tract", "made-up": "item"}


class Result(NamedTuple):
    """What the gate said of one checkpoint.

    Attributes:
      chain, run: their names.
      sickness, table: what was planted where; "" for a healthy run.
      sick: names of the sick tables.
      findings: figures beyond their bounds.
    """

    chain: str
    run: str
    sickness: str
    table: str
    sick: frozenset[str]
    findings: tuple[Finding, ...]

    @property
    def right(self) -> bool:
        """Whether exactly sick tables were found."""
        named = {finding.table for finding in self.findings}
        return bool(named) == bool(self.sick) and named <= self.sick

    def to_dict(self) -> dict[str, Any]:
        """Return the result as JSON values."""
        figures = [[one.table, one.figure, one.value] for one in self.findings]
        return {"chain": self.chain, "run": self.run, "sickness": self.sickness, "table": self.table, "found": figures}


def judged(now: Path, base: Path, chain: Chain) -> tuple[Finding, ...]:
    """Judge a checkpoint against its base, as TableHealth does."""
    tables, health = CheckpointTables(now), chain.config.health or Health()
    measured = measure_checkpoint(tables, CheckpointTables(base), drawn=drawn_features(chain.config))
    return tuple(
        finding
        for figures in measured
        for finding in judge_table(
            figures, health, lambda row, name=figures.table: name_of_row(tables.tables[name], tables.vocabularies, row)
        )
    )


def healthy(chain: Chain, line: Sequence[tuple[str, Path]]) -> Iterator[Result]:
    """Judge every run of a chain but the first."""
    for (_, base), (name, now) in itertools.pairwise(line):
        yield Result(chain.name, name, "", "", frozenset(), judged(now, base, chain))


def sick(chain: Chain, line: Sequence[tuple[str, Path]], runs: Sequence[int]) -> Iterator[Result]:
    """Plant every sickness into every table of some runs, and judge the result."""
    for at in runs:
        name, now = line[at]
        base, oldest = line[at - 1][1], line[max(0, at - _OLDER)][1]
        for table in sorted(CheckpointTables(now).tables):
            for sickness in SICKNESSES:
                with tempfile.TemporaryDirectory() as folder:
                    made = Path(folder) / "checkpoint"
                    ill = planted(sickness, table, (oldest, base, now), made, seed=at)
                    yield Result(chain.name, name, sickness, table, frozenset(ill), judged(made, base, chain))


def table_of(results: Sequence[Result]) -> str:
    """Return the results as Markdown: healthy runs by chain, then found and planted by sickness and table."""
    chains = list(dict.fromkeys(result.chain for result in results))
    lines = ["| runs | healthy runs | refused |", "|---|---|---|"]
    for chain in chains:
        runs = [result for result in results if result.chain == chain and not result.sickness]
        lines.append(f"| {chain} | {len(runs)} | {sum(not result.right for result in runs)} |")
    places = list(dict.fromkeys((result.chain, result.table) for result in results if result.sickness))
    counts: collections.Counter[tuple[str, str, str, bool]] = collections.Counter(
        (result.sickness, result.chain, result.table, result.right) for result in results if result.sickness
    )
    lines += ["", f"| found of planted | {' | '.join(f'{table} ({chain})' for chain, table in places)} |"]
    lines.append(f"|---|{'---|' * len(places)}")
    for sickness in SICKNESSES:
        cells = []
        for place in places:
            found, missed = (counts[(sickness, *place, right)] for right in (True, False))
            cells.append(f"{found} of {found + missed}")
        lines.append(f"| {sickness} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def failures(results: Sequence[Result]) -> list[Result]:
    """Return the healthy runs that were refused, and the sicknesses of main tables that were not found."""
    return [
        result
        for result in results
        if not result.right
        and (
            not result.sickness
            or any(result.chain.startswith(chain) and result.table == table for chain, table in _MAIN.items())
        )
    ]


def chains_of(folder: Path, data: Path | None, *, calibration: bool) -> Iterator[tuple[Chain, slice]]:
    """Yield the chains, and which of their later runs are judged."""
    yield made_up_chain(folder, 1 if calibration else 2), slice(None)
    yield taxi_chain(folder), slice(None, 14) if calibration else slice(13, None)
    if data is not None:
        from examples.online_retail.prepare_data import read_purchases

        months = ("2011-03", "2011-04") if calibration else ("2011-09", "2011-10")
        yield retail_chain(folder, read_purchases(data), *months), slice(None)


def main() -> None:
    """Train, judge, and print the tables; `results.json` of the working folder holds every result."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, help="working folder")
    parser.add_argument("--data", type=Path, help="folder with the daily *.csv.gz files of Online Retail")
    parser.add_argument("--into", type=Path, help="file that holds the marks, such as docs/health.md")
    parser.add_argument("--calibration", action="store_true", help="judge the runs that the bounds were chosen on")
    given = parser.parse_args()
    os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    given.folder.mkdir(parents=True, exist_ok=True)
    results: list[Result] = []
    for chain, part in chains_of(given.folder, given.data, calibration=given.calibration):
        line = list(trained(chain, given.folder))[part]
        for result in (*healthy(chain, line), *sick(chain, line, (_OLDER, len(line) - 1))):
            results.append(result)
            if not result.right:
                print("not right:", json.dumps(result.to_dict()), flush=True)
    (given.folder / "results.json").write_text(json.dumps([result.to_dict() for result in results], indent=1))
    table = table_of(results)
    print(table)
    if given.into:
        write_between(given.into, "health", table)
    sys.exit(1 if failures(results) else 0)


if __name__ == "__main__":
    main()
