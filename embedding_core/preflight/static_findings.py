"""Finds problems of a configuration without tracing a program: batch size, memory, ignored hyperparameters."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from embedding_core.config import EmbeddingConfig
from embedding_core.engines.hardware_configs import refuse_ignored
from embedding_core.errors import ConfigError, Finding
from embedding_core.optimizers import FTRL, Adam
from embedding_core.planning.topology import GIB, Topology
from embedding_core.preflight.topology_strategy import Hardware
from embedding_core.schema import Json
from embedding_core.translate import model_of

_IGNORED = re.compile(r"`(\w+)` of the optimizer of table '([^']+)'")


def batch_findings(batch_size: int, topology: Topology) -> Iterator[Finding]:
    """Find a global batch whose size is not a multiple of the number of cores."""
    cores = topology.hosts * topology.cores_per_host
    rest = batch_size % cores
    if rest:
        below, above = batch_size - rest, batch_size - rest + cores
        yield Finding(
            kind="batch",
            what=f"a global batch of {batch_size:,} rows on {cores} cores",
            rule=f"every core gets the same number of rows, fixed when the program is compiled; {rest} rows are left",
            remedy=f"pass {f'{below:,} or ' if below else ''}{above:,}",
        )


def memory_findings(plan: Json) -> Iterator[Finding]:
    """Find the tables that do not fit into the memory of a core, in a plan made by `topology.memory_plan`."""
    if plan["fits"]:
        return
    tables = plan["tables"]
    if not plan["over_budget"]:
        yield Finding(
            kind="memory",
            what=f"tables and slots of {plan['fullest_core_bytes'] / GIB:.2f} GiB, and up to "
            f"{plan['copy_bytes'] / GIB:.2f} GiB for gradients and padded copies, on a core of {plan['name']}",
            rule=f"each core has {plan['bytes_per_core'] / GIB:.0f} GiB for a whole copy of every table and the step; "
            "the TPU compiler copies tables with columns padded to 128",
            remedy="give the largest tables a `dim` of at most 32 or a multiple of 128, or use a slice that shards "
            "tables; `--compiler tpu` says what the step really needs",
        )
        return
    names = ", ".join(f"{name!r} ({tables[name]['fullest_core_bytes'] / GIB:.2f} GiB)" for name in plan["over_budget"])
    copies = "a whole copy of every table" if plan["placement"] == "replicated" else "its share of every table"
    yield Finding(
        kind="memory",
        what=f"tables and slots of {plan['fullest_core_bytes'] / GIB:.2f} GiB on the fullest core of {plan['name']}",
        rule=f"each core holds {copies} and has {plan['bytes_per_core'] / GIB:.0f} GiB; without {names} the rest fits",
        remedy="give these a smaller `dim`, a smaller `max_size`, a larger `min_count` or an optimizer with fewer "
        "slots, or use a larger slice",
    )


def without_ignored(config: EmbeddingConfig, hardware: Hardware) -> tuple[EmbeddingConfig, list[Finding]]:
    """Find all hyperparameters that the hardware would silently ignore.

    Returns:
      The configuration with these hyperparameters reset to their defaults, so that it can be traced, and the findings.
    """
    findings: list[Finding] = []
    while hardware != "V1":
        try:
            refuse_ignored(model_of(config, None, needs_optimizer=False), hardware)
        except ConfigError as error:
            match = _IGNORED.match(str(error))
            if match is None:
                raise
            findings.append(finding_of(error, "hyperparameter"))
            config = _with_default(config, match.group(2), match.group(1))
        else:
            break
    return config, findings


def _with_default(config: EmbeddingConfig, table: str, name: str) -> EmbeddingConfig:
    optimizer: Any = config.table(table).optimizer
    default = type(optimizer).model_fields[name].default
    changed = config.table(table).replace(optimizer=optimizer.replace(**{name: default}))
    tables = tuple(changed if one.name == table else one for one in config.tables)
    return config.replace(tables=tables)


def finding_of(error: ConfigError, kind: str) -> Finding:
    """Convert an error of this project to a finding; its message has the form "<what>: <rule>; <remedy>."."""
    what, _, rest = str(error).partition(": ")
    rule, _, remedy = rest.partition("; ")
    return Finding(kind=kind, what=what, rule=rule.rstrip("."), remedy=remedy.rstrip(".") or "change it")


def trained_by_other_rules(config: EmbeddingConfig, hardware: Hardware) -> bool:
    """Return whether a table on V0 has Adam or FTRL: unlike an engine, Keras updates all rows in every step."""
    return hardware == "V0" and any(isinstance(table.optimizer, Adam | FTRL) for table in config.tables)
