"""Measures the health of one table."""

from __future__ import annotations

import numpy as np

from embedding_core.health.neighbours import Sampler
from embedding_core.health.row_scan import RowScan
from embedding_core.health.table_figures import Counts, Mask, TableFigures
from embedding_core.health.table_source import TableReader


def measure_table(reader: TableReader, *, seed: int = 0) -> TableFigures:
    """Measure a table in one pass over its rows and, with a previous push, one over the previous rows.

    Args:
      reader: reads the table.
      seed: seed of the samples of rows that neighbours are measured on.
    """
    facts = reader.facts
    scan, sampler = RowScan(facts), Sampler(reader, seed)
    for block in reader.blocks():
        scan.add(block)
        sampler.add(block)
    values: dict[str, float] = {}
    examples: dict[str, list[int]] = {}
    for name, value, rows in (*scan.figures(), *sampler.figures()):
        values[name] = value
        if rows and value > 0:
            examples[name] = rows
    if facts.zeros:
        values.pop("zero")
    if facts.unknown_traffic is not None:
        values["unknown_traffic"] = facts.unknown_traffic
    if facts.sources is not None and facts.counts is not None:
        new = facts.sources[: len(facts.counts)] < 0
        values["new_traffic"] = float(facts.counts[new].sum() / max(1, facts.counts.sum()))
        examples["new_traffic"] = _most_frequent(new, facts.counts)
    if facts.expired_traffic is not None:
        values["expired_traffic"] = facts.expired_traffic
    return TableFigures(
        table=facts.name,
        rows=facts.rows,
        dim=facts.dim,
        has_base=facts.sources is not None,
        traffic=None if facts.counts is None else int(facts.counts.sum()),
        values=values,
        curves=scan.curves(),
        examples={name: rows for name, rows in examples.items() if rows},
        expired=facts.expired,
    )


def _most_frequent(chosen: Mask, counts: Counts) -> list[int]:
    rows = np.flatnonzero(chosen)
    return [int(row) for row in rows[np.argsort(-counts[rows], kind="stable")[:10]]]
