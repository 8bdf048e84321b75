"""Finds problems of a configuration or a traced program: settings, memory, types, shapes, untrained tables."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from embedding_core.config import EmbeddingConfig
from embedding_core.engines.hardware_configs import refuse_ignored
from embedding_core.errors import ConfigError, Finding
from embedding_core.optimizers import FTRL, Adam
from embedding_core.planning.topology import GIB, Topology
from embedding_core.preflight.trace import Hardware, Traced, name_and_line
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
    default = type(optimizer).model_fields[name].default
    changed = config.table(table).replace(optimizer=optimizer.replace(**{name: default}))
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
        written = _written(traced)
        names = [table.name for table in config.tables if not any(_is_of(name, table.name) for name in written)]
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
