"""Runs every check of the preflight, and makes the report.

The report consists of plain JSON values.
"""

from __future__ import annotations

import dataclasses
import logging
import re
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, cast

import tensorflow as tf

from embedding_core.config import EmbeddingConfig, TableConfig
from embedding_core.engines.hardware_configs import refuse_ignored
from embedding_core.errors import ConfigError, Finding
from embedding_core.optimizers import FTRL, Adam, Optimizer
from embedding_core.planning.topology import GIB, Topology, memory_plan, table_bytes
from embedding_core.preflight.trace import Hardware, MakeStep, Traced, hardware_of, name_and_line, trace_step, user_line
from embedding_core.preflight.xla import COMPILED, compile_findings
from embedding_core.schema import Json
from embedding_core.translate import model_of

# Finds problems of a configuration without tracing a program: batch size, memory, ignored hyperparameters.

_IGNORED = re.compile(r"`(\w+)` of the optimizer of table '([^']+)'")


def batch_findings(batch_size: int, topology: Topology) -> Iterator[Finding]:
    """Find a global batch whose size is not a multiple of the number of cores."""
    cores = topology.cores
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
    names = [name]
    if name == "weight_decay_factor":
        names.append("multiply_weight_decay_factor_by_learning_rate")  # refused without the factor
    defaults = {name: type(optimizer).model_fields[name].default for name in names}
    changed = config.table(table).replace(optimizer=optimizer.replace(**defaults))
    tables = tuple(changed if spec.name == table else spec for spec in config.tables)
    return config.replace(tables=tables)


def finding_of(error: ConfigError, kind: str) -> Finding:
    """Convert an error of this project to a finding; its message has the form "<what>: <rule>; <remedy>."."""
    what, _, rest = str(error).partition(": ")
    rule, _, remedy = rest.partition("; ")
    return Finding(kind=kind, what=what, rule=rule.rstrip("."), remedy=remedy.rstrip(".") or "change it")


def trained_by_other_rules(config: EmbeddingConfig, hardware: Hardware) -> bool:
    """Return whether a table on V0 has Adam or FTRL: unlike an engine, Keras updates all rows in every step."""
    return hardware == "V0" and any(isinstance(table.optimizer, Adam | FTRL) for table in config.tables)


# Finds types and shapes in a traced program that a TPU does not support.

# `kTpuAllTypes` of tensorflow/core/tpu/tpu_defs.h, which TensorFlow installs with its headers.
_ON_TPU = frozenset(
    [
        *("bool", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float16", "float32", "float64", "complex64"),
        *("int4", "int8", "int16", "int32", "int64", "uint4", "uint8", "uint16", "uint32", "uint64"),
        *("qint8", "quint8", "qint32"),
    ]
)
_REMEDIES = {
    "string": "turn texts into ids in the input pipeline",
    "complex128": "use complex64",
}
# Operations with texts that are only printed when an assertion fails.
_MAY_HOLD_TEXT = ("Assert", "Const", "Identity", "NoOp")


def dtype_findings(operations: Sequence[tf.Operation]) -> Iterator[Finding]:
    """Find the first operation of each dtype that a TPU does not support."""
    seen: set[str] = set()
    for op, output in [(each, tensor) for each in operations for tensor in each.outputs]:
        name = output.dtype.name
        if output.dtype in (tf.resource, tf.variant) or name in _ON_TPU or name in seen:
            continue
        if name == "string" and op.type in _MAY_HOLD_TEXT:
            continue
        seen.add(name)
        yield Finding(
            kind="dtype",
            what=f"{name} tensors, first from {op.type} at {name_and_line(op)}",
            rule=f"a TPU has no {name} (kTpuAllTypes in tensorflow/core/tpu/tpu_defs.h)",
            remedy=_REMEDIES.get(name, "use float32, bfloat16 or int32"),
        )


def slow_dtypes(operations: Sequence[tf.Operation]) -> Iterator[str]:
    """Make a note on the first operation in float64, which a TPU has to compute from 32-bit pieces."""
    for op in operations:
        if any(output.dtype == tf.float64 for output in op.outputs):
            yield (
                f"float64, first from {op.type} at {name_and_line(op)}: a TPU has no such arithmetic, XLA composes it "
                "from 32-bit pieces; use float32."
            )
            return


def shape_findings(operations: Sequence[tf.Operation]) -> Iterator[Finding]:
    """Find operations whose output's shape depends on values, such as tf.unique and tf.boolean_mask.

    It yields the operations in which such a shape arises, not those that inherit it from another operation or from an
    input of unknown size.
    """
    unknown: set[str] = {input_.name for op in operations for input_ in op.inputs if _is_dynamic(input_)}
    unknown -= {output.name for op in operations for output in op.outputs}
    seen: set[tuple[str, str]] = set()
    for op in operations:
        follows = any(input_.name in unknown for input_ in op.inputs)
        dynamic = [output for output in op.outputs if _is_dynamic(output)]
        if follows or dynamic:
            unknown.update(output.name for output in op.outputs)
        if dynamic and op.inputs and not follows and (op.type, name_and_line(op)) not in seen:
            seen.add((op.type, name_and_line(op)))
            yield _shape_finding(op, dynamic[0])


def _shape_finding(op: tf.Operation, output: tf.Tensor) -> Finding:
    return Finding(
        kind="shape",
        what=f"operation {op.type} at {name_and_line(op)}, whose output has shape {output.shape}",
        rule="on a TPU shapes are known when the program is compiled, and this one depends on values (XLA may compile "
        "it for a CPU all the same)",
        remedy="mask with tf.where(condition, x, y), use tf.math.unsorted_segment_sum with a fixed number, or move it "
        "to the input pipeline",
    )


def _is_dynamic(tensor: tf.Tensor) -> bool:
    return tensor.dtype not in (tf.resource, tf.variant) and not tensor.shape.is_fully_defined()


# Finds tables that the traced program does not train.

_WRITING = ("Assign", "ResourceApply", "ResourceScatter", "ResourceSparseApply")
_SENDING = ("SendTPUEmbeddingGradients", "XlaSparseDenseMatmulGrad")


def untrained_findings(traced: Traced, config: EmbeddingConfig, hardware: Hardware) -> Iterator[Finding]:
    """Find tables that no operation of the program updates. An engine (V1, V2) trains all tables or none."""
    if hardware == "V0":
        written, tables = _written(traced), [table.name for table in config.tables]
        numbered = written.difference(tables)  # `user_1` may be a table of its own
        names = [name for name in tables if name not in written and not any(_is_of(each, name) for each in numbered)]
    else:
        sends = any(op.type.startswith(_SENDING) for op in traced.on_core)
        names = [] if sends else [table.name for table in config.tables]
    if names:
        yield Finding(
            kind="untrained",
            what=f"tables {', '.join(map(repr, names))}, which nothing in the step updates",
            rule="an engine trains its tables only in `apply_gradients`; without one (V0) the step's optimizer does",
            remedy="call `apply_gradients` with the activations' gradients, or on V0 with those of `embedding_tables`",
        )


def _written(traced: Traced) -> set[str]:
    """Collect the names of the variables that a core writes."""
    captured = {inner.name: outer.op.name for outer, inner in traced.graph.captures if outer.dtype == tf.resource}
    handles = [op.inputs[0] for op in traced.on_core if op.type.startswith(_WRITING)]
    sources = [
        handle.op.inputs[0].name if handle.op.type == "TPUReplicatedInput" else handle.name for handle in handles
    ]
    return {captured[source] for source in sources if source in captured}


def _is_of(variable: str, table: str) -> bool:
    """Return whether a variable has a table's name, to which TensorFlow may have appended a number."""
    return re.fullmatch(rf"{re.escape(table)}(?:_\d+)?", variable) is not None


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
