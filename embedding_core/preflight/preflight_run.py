"""Runs every check of the preflight, and makes the report.

The report consists of plain JSON values.
"""

from __future__ import annotations

import dataclasses
import logging
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias, cast

from embedding_core.config import EmbeddingConfig, TableConfig
from embedding_core.errors import ConfigError, Finding
from embedding_core.optimizers import Optimizer
from embedding_core.planning.topology import Topology, memory_plan, table_bytes
from embedding_core.preflight.findings import (
    batch_findings,
    dtype_findings,
    finding_of,
    memory_findings,
    shape_findings,
    slow_dtypes,
    trained_by_other_rules,
    untrained_findings,
    without_ignored,
)
from embedding_core.preflight.trace import Hardware, MakeStep, Traced, hardware_of, trace_step, user_line
from embedding_core.preflight.xla import COMPILED, compile_findings
from embedding_core.schema import Json

NECESSARY = (
    "Green is necessary, not sufficient: nothing ran, and XLA compiled for a CPU. Only the TPU itself shows speed, "
    "numerics, the host's input pipeline and the memory of activations."
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
    """What a TPU slice would run, and the problems found.

    Attributes:
      topology: name, hosts, cores_per_host, bytes_per_core and placement of the slice.
      hardware: "V1" for an embedding engine, "V2" for SparseCores, "V0" for neither.
      sizes: source of the numbers of rows, in words.
      batch: "rows" of a global batch, "cores", and "rows_per_core", with which the step was traced.
      tables: rows, dim, combiner, features, optimizer, learning rate, rows per host and bytes of each table.
      features: table, shape of the activations on a core, and max_sequence_length of each feature.
      memory: plan of `embedding_core.planning.topology.memory_plan`.
      program: summary of the traced program; None if tracing failed.
      further: results of further checks, by name.
      findings: problems to fix; the report is green if there are none.
      notes: further information, and what only the TPU can show.
      meaning: what a report without findings means.
    """

    topology: Json
    hardware: str
    sizes: str
    batch: Mapping[str, int]
    tables: Sequence[Json]
    features: Sequence[Json]
    memory: Json
    program: Json | None
    further: Mapping[str, Json]
    findings: Sequence[Finding]
    notes: Sequence[str]
    meaning: str = NECESSARY

    @property
    def green(self) -> bool:
        """Whether there are no findings."""
        return not self.findings

    def to_json(self) -> Json:
        """Return the report as a JSON object; each further check is a key of it."""
        fields = dataclasses.asdict(self)
        further, meaning = fields.pop("further"), fields.pop("meaning")
        return {"green": self.green, "necessary_not_sufficient": meaning, **fields, **further}


_log = logging.getLogger(__name__)


class Program(NamedTuple):
    """What a further check gets: the program of a core, and what it was made from.

    Attributes:
      traced: the program; None if it cannot be traced, or if XLA for CPU cannot compile it.
      config: tables and features; every table has an optimizer.
      topology: the slice.
      batch_size: number of rows of a global batch, with negatives.
      hardware: embedding hardware of the slice; on "V0" the tables are in the program.
      memory: plan made by `topology.memory_plan`.
    """

    traced: Traced | None
    config: EmbeddingConfig
    topology: Topology
    batch_size: int
    hardware: Hardware
    memory: Json


class Checked(NamedTuple):
    """The result of a further check.

    Attributes:
      result: for the report, in plain JSON values.
      findings: problems to fix.
      judges_memory: whether it covers the memory of the tables, so that the plan is not judged too.
      meaning: what a report without findings means after this check; empty if the check does not change it.
    """

    result: Json
    findings: tuple[Finding, ...] = ()
    judges_memory: bool = False
    meaning: str = ""


Check: TypeAlias = Callable[[Program], Checked]
"""A further check of a program, in a preflight."""


def preflight(
    config: EmbeddingConfig,
    topology: Topology,
    *,
    batch_size: int,
    make_step: MakeStep,
    own_tables: bool = False,
    hardware: Hardware | None = None,
    sizes: str = "the given configuration",
    notes: Iterable[str] = (),
    checks: Mapping[str, Check] | None = None,
) -> Report:
    """Check without a TPU what a TPU slice would run, and find what would fail there.

    Args:
      config: tables and features; every table has an optimizer.
      topology: the slice, made by `topology.named_topology`.
      batch_size: number of rows of a global batch.
      make_step: makes the model and one core's step; the pipeline uses `PipelineStep`.
      own_tables: whether `make_step` itself creates and builds the embedding, such as a Keras layer. If so, it receives
        the configuration instead of the embedding, without the hyperparameters that the hardware ignores.
      hardware: embedding hardware of the slice; None is that of the topology.
      sizes: source of the numbers of rows, for the report.
      notes: further notes for the report.
      checks: further checks of the program, by name.

    Raises:
      ConfigError: `batch_size` is not a whole number >= 1, a table has no optimizer, or a further check cannot run.
    """
    _check(config, batch_size)
    hardware = hardware or hardware_of(topology)
    rows = max(1, batch_size // topology.cores)
    plan = memory_plan(config, topology)
    traceable, ignored = without_ignored(config, hardware)
    traced = _traced(traceable, topology, hardware, rows, make_step, own_tables)
    program, seen, more = _program(traced, traceable, hardware)
    compiles = program is not None and program["xla"]["whole"] == COMPILED
    lowered = traced if compiles and isinstance(traced, Traced) else None
    checked = Program(lowered, config, topology, batch_size, hardware, plan)
    further = {name: check(checked) for name, check in (checks or {}).items()}
    return Report(
        topology=dataclasses.asdict(topology),
        hardware=hardware,
        sizes=sizes,
        batch={"rows": batch_size, "cores": topology.cores, "rows_per_core": rows},
        tables=[_table(config, table, plan) for table in config.tables],
        features=[_feature(config, feature.name, rows) for feature in config.features],
        memory=plan,
        program=program,
        further={name: check.result for name, check in further.items()},
        findings=(
            *batch_findings(batch_size, topology),
            *(() if any(check.judges_memory for check in further.values()) else memory_findings(plan)),
            *ignored,
            *seen,
            *(finding for check in further.values() for finding in check.findings),
        ),
        notes=(*notes, *more, *([_KERAS_RULES] if trained_by_other_rules(config, hardware) else [])),
        meaning=next((check.meaning for check in further.values() if check.meaning), NECESSARY),
    )


_KERAS_RULES = (
    "V0: tables are trained by Keras' rules. Its Adam and Ftrl touch every row in every step, and its Adam corrects "
    "its bias; the embedding engines and the simulated TPU do neither."
)


def _check(config: EmbeddingConfig, batch_size: int) -> None:
    if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
        raise ConfigError(f"`batch_size` of preflight is {batch_size!r}: it must be a whole number >= 1.")
    for table in config.tables:
        if table.optimizer is None:
            raise ConfigError(f"`optimizer` of table {table.name!r} is None: give every table one before preflight.")


def _traced(
    config: EmbeddingConfig,
    topology: Topology,
    hardware: Hardware,
    rows: int,
    make_step: MakeStep,
    own_tables: bool,
) -> Traced | Finding:
    try:
        return trace_step(config, topology, hardware, rows, make_step, own_tables=own_tables)
    except Exception as error:  # the caller's code may raise anything; the finding shows it
        _log.debug("the step cannot be traced", exc_info=True)
        return _not_traced(error)


def _program(
    traced: Traced | Finding, config: EmbeddingConfig, hardware: Hardware
) -> tuple[Json | None, list[Finding], list[str]]:
    """Check the traced program; return its summary as a JSON object, the findings and the notes."""
    if isinstance(traced, Finding):
        return None, [traced], []
    compiled = compile_findings(traced)
    findings = [
        *compiled.findings,
        *dtype_findings(traced.on_core),
        *shape_findings(traced.on_core),
        *untrained_findings(traced, config, hardware),
    ]
    program = {**traced.summary(), "xla": {"kinds_checked": compiled.kinds, "whole": compiled.whole}}
    return program, findings, [*slow_dtypes(traced.on_core), *_dynamic_inputs(traced)]


def _not_traced(error: Exception) -> Finding:
    if isinstance(error, ConfigError):
        return finding_of(error, "step")
    line = user_line((frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__))
    text = " ".join(str(error).split())
    return Finding(
        kind="step",
        what=f"the step raises {type(error).__name__}{f' at {line}' if line else ''}: {text[:600]}",
        rule="a TPU program is traced as a graph under tf.distribute.TPUStrategy before anything runs",
        remedy="fix what the error names; tensors have no values during tracing",
    )


def _dynamic_inputs(traced: Traced) -> list[str]:
    """Make a note on tensors that come to a core with an unknown size, unless they only pass through to the host."""
    made_on_core = {op.name for op in traced.on_core if op.type != "Identity"}
    ragged = {
        tensor.name: tensor.shape
        for op in traced.on_core
        for tensor in op.inputs
        if op.type != "Identity" and tensor.op.name not in made_on_core and tensor.shape.rank and None in tensor.shape
    }
    if not ragged:
        return []
    name, shape = next(iter(ragged.items()))
    note = (
        f"{len(ragged)} tensors come to a core with a dimension that is only known at run time, such as {name} of "
        f"shape {shape}: the TPU compiles again for every new size, or refuses it; if that is slow, feed dense ids or "
        "set `max_sequence_length`."
    )
    return [note]


def _table(config: EmbeddingConfig, table: TableConfig, plan: Json) -> Json:
    values, slots = table_bytes(table, padded=True)
    optimizer = {name: getattr(table.optimizer, name) for name in cast(Optimizer, table.optimizer).hyperparameters()}
    rate = optimizer.pop("learning_rate")
    return {
        "name": table.name,
        "rows": table.vocabulary_size,
        "dim": table.dim,
        "combiner": table.combiner,
        "features": [feature.name for feature in config.features if feature.table == table.name],
        "optimizer": {"name": type(table.optimizer).__name__, **optimizer},
        "learning_rate": "a function" if callable(rate) else rate,
        "table_bytes": values,
        "slot_bytes": slots,
        **plan["tables"][table.name],
    }


def _feature(config: EmbeddingConfig, name: str, rows: int) -> Json:
    feature, table = config.feature(name), config.table_of(name)
    length = feature.max_sequence_length
    return {
        "name": name,
        "table": table.name,
        "max_sequence_length": length,
        "activations_on_core": [rows, *([length] if length else []), table.dim],
    }
