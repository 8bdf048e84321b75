"""Measures the health of one table."""

from __future__ import annotations

from embedding_core.health.row_scan import RowScan
from embedding_core.health.table_figures import TableFigures
from embedding_core.health.table_source import TableReader


def measure_table(reader: TableReader) -> TableFigures:
    """Measure a table in one pass over its rows and those of the previous push, if there was one.

    Args:
      reader: reads the table.
    """
    facts = reader.facts
    scan = RowScan(facts)
    for block in reader.blocks():
        scan.add(block)
    figures = [figure for figure in scan.figures() if not (facts.zeros and figure[0] == "zero")]
    return TableFigures(
        table=facts.name,
        rows=facts.rows,
        dim=facts.dim,
        has_base=facts.sources is not None,
        values={name: value for name, value, _ in figures},
        curves=scan.curves(),
        examples={name: rows for name, value, rows in figures if rows and value > 0},
    )
