"""Defines the executor of TableHealth, which measures the tables of a checkpoint, and writes a blessing."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator

from tfx.dsl.components.base import base_executor

from components import component_spec as keys
from components import progress
from components.base_executor import ComponentExecutor, Execution
from embedding_core.checkpoint.summary import name_of_row
from embedding_core.checkpoint.table_health import CheckpointTables, measure_checkpoint
from embedding_core.health import HEALTH_FILE, Finding, Health, TableFigures, judge_table


class Executor(ComponentExecutor, base_executor.BaseExecutor):
    """Measures every table, and compares the figures with their bounds."""

    COMPONENT = "TableHealth"

    def execute(self, execution: Execution) -> None:
        """Write `health.json`, and bless the tables if no figure is beyond its bound or the action is "warn".

        Raises:
          ConfigError: a bound breaks its rule.
          EmbeddingError: a checkpoint is damaged.
        """
        health = Health.from_mapping(execution.json(keys.RULES))
        figures: dict[str, TableFigures] = {}
        findings: list[Finding] = []
        for measured, found in _measured(execution, health):
            figures[measured.table] = measured
            findings += found
        content = {
            "action": health.action,
            "tables": {name: table.to_dict() for name, table in figures.items()},
            "findings": [finding.to_dict() for finding in findings],
        }
        execution.bless(
            blessed=not findings or health.action == "warn",
            reason=" ".join(finding.reason for finding in findings),
            file=HEALTH_FILE,
            figures=content,
            health=json.dumps(_facts(figures, findings), sort_keys=True),
        )


def _measured(execution: Execution, health: Health) -> Iterator[tuple[TableFigures, list[Finding]]]:
    now = CheckpointTables(execution.uri(keys.EMBEDDING_CHECKPOINT))
    base = execution.given_uris(keys.BASE_CHECKPOINT).get(keys.BASE_CHECKPOINT)
    measured = measure_checkpoint(
        now,
        None if base is None else CheckpointTables(base),
        drawn=execution.json(keys.DRAWN_FEATURES) or (),
    )
    for done, figures in enumerate(measured, start=1):
        progress.report("TableHealth", done, len(now.tables), unit="tables", detail=figures.table)
        name = functools.partial(name_of_row, now.tables[figures.table], now.vocabularies)
        yield figures, judge_table(figures, health, name)


def _facts(figures: dict[str, TableFigures], findings: list[Finding]) -> dict[str, object]:
    """Return what the lineage records: the figures by table, and the findings without their sentences."""
    return {
        "tables": {name: dict(table.values) for name, table in figures.items()},
        "findings": [
            {key: value for key, value in finding.to_dict().items() if key not in ("reason", "key")}
            for finding in findings
        ],
    }
