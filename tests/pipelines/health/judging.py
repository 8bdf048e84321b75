"""Judges checkpoints as TableHealth does, healthy and with planted sicknesses, and tabulates what was found."""

import itertools
import tempfile
from pathlib import Path
from typing import NamedTuple

from embedding_core.checkpoint.summary import name_of_row
from embedding_core.checkpoint.table_health import CheckpointTables, measure_checkpoint
from embedding_core.health import Finding, Health, judge_table
from pipelines.pipeline.component_inputs import drawn_features
from tests.pipelines.health.planted_sicknesses import SICKNESSES, planted

OLDER = 4
"""Runs between a checkpoint and the one that "another day" takes rows from."""


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
    def is_right(self):
        """Whether exactly sick tables were found."""
        named = {finding.table for finding in self.findings}
        return bool(named) == bool(self.sick) and named <= self.sick


def judged(now, base, chain):
    """Judge a checkpoint against its base."""
    tables, health = CheckpointTables(now), chain.config.health or Health()
    measured = measure_checkpoint(tables, CheckpointTables(base), drawn=drawn_features(chain.config))
    return tuple(
        finding
        for figures in measured
        for finding in judge_table(
            figures, health, lambda row, name=figures.table: name_of_row(tables.tables[name], tables.vocabularies, row)
        )
    )


def healthy(chain, line):
    """Judge every run of a chain but the first."""
    for (_, base), (name, now) in itertools.pairwise(line):
        yield Result(chain.name, name, "", "", frozenset(), judged(now, base, chain))


def sick(chain, line, runs):
    """Plant every sickness into every table of some runs, and judge the result."""
    for at in runs:
        name, now = line[at]
        base, oldest = line[at - 1][1], line[max(0, at - OLDER)][1]
        for table, sickness in itertools.product(sorted(CheckpointTables(now).tables), SICKNESSES):
            with tempfile.TemporaryDirectory() as folder:
                made = Path(folder) / "checkpoint"
                tables = planted(sickness, table, (oldest, base, now), made, seed=at)
                yield Result(chain.name, name, sickness, table, frozenset(tables), judged(made, base, chain))


def table_of(results):
    """Return the results as Markdown, a row per chain: healthy runs and those refused, then found and planted."""
    chains = dict.fromkeys(result.chain for result in results)
    lines = ["| runs | healthy runs | refused | planted sicknesses | found |", "|---|---|---|---|---|"]
    for chain in chains:
        of_chain = [verdict for verdict in results if verdict.chain == chain]
        right = {
            planted: [verdict.is_right for verdict in of_chain if bool(verdict.sickness) == planted]
            for planted in (False, True)
        }
        cells = len(right[False]), right[False].count(False), len(right[True]), right[True].count(True)
        lines.append(f"| {chain} | {' | '.join(map(str, cells))} |")
    missed = [
        f"{verdict.sickness} in {verdict.table} ({verdict.chain}, {verdict.run})"
        for verdict in results
        if verdict.sickness and not verdict.is_right
    ]
    return "\n".join([*lines, *(["", f"Not found: {', '.join(missed)}."] if missed else [])]) + "\n"
