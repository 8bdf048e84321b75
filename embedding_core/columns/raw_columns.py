"""Reads raw columns from serialized tf.Examples or from one named tensor per column, for training and serving.

Both sources give the same raw columns. Unknown tokens, missing values and empty lists in multivalent columns are
valid. A row that lacks a dense value that Transform requires is marked, and its prediction is NaN rather than one
from a made-up value. So a row cannot make the others fail, except by two values in a column of one value, or if
TensorFlow's parser itself refuses it: a record that is not a tf.Example, a column of another type, and an empty list in
a column of floats or of dense numbers. Training refuses such rows too. Named tensors cannot have these errors.

The named tensors of a column (its name with every character but letters, digits and `_` replaced by `_`):

====================  ======================  ========================
column                tensor                  missing, and padding
====================  ======================  ========================
string                string `[B]`            ""
int64                 int64 `[B]`             `MISSING_INT`, -2**63
float32               float32 `[B]`           NaN
multivalent           `[B, n]`, padded        as above, at any index
====================  ======================  ========================
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import tensorflow as tf

from embedding_core.columns.ids import kept
from embedding_core.columns.tokens import DTYPES, MISSING_FLOAT, MISSING_INT, Values, parse_spec
from embedding_core.config import ColumnConfig
from embedding_core.errors import ConfigError

Raw: TypeAlias = dict[str, Values]
Spec: TypeAlias = tf.io.FixedLenFeature | tf.io.VarLenFeature | tf.io.RaggedFeature

MISSING = {tf.string: b"", tf.int64: MISSING_INT, tf.float32: MISSING_FLOAT}


@dataclasses.dataclass(frozen=True, kw_only=True)
class DenseInputs:
    """The source of a model's dense inputs.

    Attributes:
      names: names of the model's dense inputs.
      spec: specification of the raw columns that they are computed from, as for `tf.io.parse_example`.
      transform: raw columns -> float `[B]` or `[B, 1]` by name. The outputs include `names` and the columns
        `after_transform`. None uses the raw columns as they are. A tf.Module, such as TFT's
        layer, is kept in the SavedModel with its resources.
      resources: other objects that `transform` needs in the SavedModel.
    """

    names: tuple[str, ...] = ()
    spec: Mapping[str, Spec]
    transform: Callable[[Mapping[str, Values]], Mapping[str, Values]] | None = None
    resources: tuple[Any, ...] = ()

    def outputs(self, raw: Raw) -> Raw:
        """Compute all outputs of the transform; without one, return the raw columns."""
        return dict(raw if self.transform is None else self.transform(raw))

    def values(self, outputs: Mapping[str, Values]) -> dict[str, tf.Tensor]:
        """Select the model's dense inputs from the outputs: float32 `[B, 1]` by name."""
        return {name: _column_vector(outputs[name]) for name in self.names}

    @property
    def tracked(self) -> list[Any]:
        """The objects that the SavedModel must hold for the transform to run."""
        owner = [self.transform] if isinstance(self.transform, tf.Module) else []
        return [*owner, *self.resources]


def _column_vector(value: Values) -> tf.Tensor:
    if isinstance(value, tf.SparseTensor):
        value = tf.sparse.to_dense(value)
    return tf.reshape(tf.cast(value, tf.float32), [-1, 1])


class RawColumns(NamedTuple):
    """The raw columns of one batch: those of categorical features, those of dense inputs, and the incomplete rows."""

    categorical: Raw
    dense: Raw
    incomplete: tf.Tensor | None


def input_name(column: str) -> str:
    """Make the name of a column's tensor in the signatures that take named tensors."""
    name = re.sub(r"\W", "_", column, flags=re.ASCII)
    return name if name[:1].isalpha() else f"column_{name.lstrip('_')}"


class Columns:
    """The raw columns that a model needs, and the two ways to read them."""

    def __init__(self, categorical: Iterable[ColumnConfig], dense: Mapping[str, Spec]) -> None:
        """Plan the reading.

        Args:
          categorical: columns of categorical features; those `after_transform` are left out.
          dense: specification of the columns of the dense inputs, as for `tf.io.parse_example`.

        Raises:
          ConfigError: two columns would have the same input name.
        """
        read = sorted((column for column in categorical if not column.after_transform), key=lambda one: one.multivalent)
        self._categorical = {column.name: column for column in read}  # if multivalent for one feature, then for all
        self._dense = dict(dense)
        self._spec = parse_spec(read)
        ragged = [name for name, feature in self._spec.items() if isinstance(feature, tf.io.RaggedFeature)]
        self._of_one = [name for name in ragged if not self._categorical[name].multivalent]
        names = [*self._categorical, *(name for name in self._dense if name not in self._categorical)]
        self.inputs = {input_name(name): name for name in names}
        if len(self.inputs) != len(names):
            twice = next(name for name in names if self.inputs[input_name(name)] != name)
            raise ConfigError(
                f"columns {twice!r} and {self.inputs[input_name(twice)]!r} would both be the input "
                f"{input_name(twice)!r}: rename one of them."
            )

    @property
    def named_specs(self) -> dict[str, tf.TensorSpec]:
        """The named tensors, by input name."""
        return {key: self._named_spec(column, key) for key, column in self.inputs.items()}

    def _named_spec(self, name: str, key: str) -> tf.TensorSpec:
        if name in self._categorical:
            column = self._categorical[name]
            return tf.TensorSpec([None] * (2 if column.multivalent else 1), DTYPES[column.dtype], key)
        feature = self._dense[name]
        shape = list(feature.shape) if isinstance(feature, tf.io.FixedLenFeature) else []
        return tf.TensorSpec([None, *shape], feature.dtype, key)

    def parse(self, examples: tf.Tensor) -> RawColumns:
        """Read serialized tf.Examples, string `[B]`."""
        safe = {name: _safe(feature) for name, feature in self._dense.items()}
        shared = {name: feature for name, feature in safe.items() if self._spec.get(name, feature) == feature}
        parsed = tf.io.parse_example(examples, {**self._spec, **shared})
        apart = {name: feature for name, feature in safe.items() if name not in shared}
        dense = {**parsed, **(tf.io.parse_example(examples, apart) if apart else {})}
        return self._rows(_with_one_value(parsed, self._of_one), dense)

    def accept(self, named: Mapping[str, tf.Tensor]) -> RawColumns:
        """Take the tensors of `named_specs`."""
        values = {column: named[key] for key, column in self.inputs.items()}
        return self._rows({name: _present(values[name]) for name in self._categorical}, values)

    def _rows(self, categorical: Raw, dense: Raw) -> RawColumns:
        absent = [_absent(dense[name]) for name, feature in self._dense.items() if _is_required_int(feature)]
        return RawColumns(
            {name: categorical[name] for name in self._categorical},
            {name: _as_specified(feature, dense[name]) for name, feature in self._dense.items()},
            tf.reduce_any(tf.stack(absent, 1), 1) if absent else None,
        )


def _with_one_value(parsed: Raw, names: Sequence[str]) -> Raw:
    """Make ragged columns of at most one value `[B]`, which is faster in every later step.

    They are read as ragged features, since one of fixed length may be missing, but may not be an empty list, as TFX's
    CsvExampleGen writes it; and padding to the longest row would let one row take any memory.
    """
    if not names:
        return parsed
    splits = tf.stack([parsed[name].row_splits for name in names])
    all_present = tf.reduce_all(tf.equal(splits, tf.range(tf.shape(splits, tf.int64)[1])))

    def checked() -> Raw:
        widest = tf.reduce_max(splits[:, 1:] - splits[:, :-1], 1)
        wrong = tf.strings.reduce_join(tf.boolean_mask(tf.constant(names), widest > 1), separator=", ")
        rule = " has several values in a row: set `multivalent` in its `column`, or write one value."
        check = tf.debugging.Assert(tf.equal(wrong, ""), [tf.strings.join(["column ", wrong, rule])])
        with tf.control_dependencies([check] if check is not None else []):
            return {name: _first(parsed[name]) for name in names}

    return {**parsed, **tf.cond(all_present, lambda: {name: parsed[name].flat_values for name in names}, checked)}


def _first(column: tf.RaggedTensor) -> tf.Tensor:
    """Return the only value of each row, and the mark of a missing value for an empty row."""
    missing = tf.constant(MISSING[column.dtype], column.dtype, [1])
    first, end = column.row_splits[:-1], column.row_splits[1:]
    values = tf.concat([column.flat_values, missing], 0)
    return tf.gather(values, tf.where(end > first, first, tf.size(column.flat_values, tf.int64)))


def _is_required_int(feature: Spec) -> bool:
    return isinstance(feature, tf.io.FixedLenFeature) and feature.dtype == tf.int64 and feature.default_value is None


def _absent(value: tf.Tensor) -> tf.Tensor:
    """Mark the rows that lack a value of a required int64 column; bool [B]."""
    return tf.reduce_any(tf.reshape(value, [tf.shape(value)[0], -1]) == MISSING_INT, 1)


def _safe(feature: Spec) -> Spec:
    """Specify a dense column so that a row without a value does not fail the batch.

    Floats are never read with a variable length: a malformed list of floats can end the process
    inside TensorFlow's parser.
    """
    if isinstance(feature, tf.io.FixedLenFeature):
        return feature if feature.default_value is not None else _with_default(feature)
    if feature.dtype == tf.float32:
        return tf.io.FixedLenFeature([], tf.float32, MISSING_FLOAT)
    return feature


def _with_default(feature: tf.io.FixedLenFeature) -> tf.io.FixedLenFeature:
    default = np.full(feature.shape, MISSING[feature.dtype])
    return feature._replace(default_value=default.tolist())


def _mask(value: tf.Tensor) -> tf.Tensor:
    if value.dtype == tf.float32:
        return ~tf.math.is_nan(value)
    return tf.not_equal(value, tf.constant(MISSING[value.dtype], value.dtype))


def _present(value: tf.Tensor) -> tf.Tensor | tf.RaggedTensor:
    """Drop the missing values of `[B, n]`, which becomes ragged `[B, None]`; `[B]` stays as it is."""
    return value if value.shape.rank == 1 else _ragged(value)


def _ragged(rows: tf.Tensor) -> tf.RaggedTensor:
    return kept(tf.RaggedTensor.from_tensor(rows, row_splits_dtype=tf.int64), tf.reshape(_mask(rows), [-1]))


def _as_specified(feature: Spec, value: Values) -> Values:
    """Return a column in the form that its specification promises to the transform."""
    if isinstance(value, tf.SparseTensor):
        return _at_least_one_wide(value)
    if not isinstance(value, tf.Tensor):
        return value
    if isinstance(feature, tf.io.FixedLenFeature):
        if _is_required_int(feature):
            value = tf.where(value == MISSING_INT, tf.zeros_like(value), value)
        return tf.reshape(value, [-1, *feature.shape])
    if value.shape.rank == 1 and isinstance(feature, tf.io.VarLenFeature):
        return _sparse_column(value)
    rows = value if value.shape.rank == 2 else value[:, tf.newaxis]
    ragged = _ragged(rows)
    return _at_least_one_wide(ragged.to_sparse()) if isinstance(feature, tf.io.VarLenFeature) else ragged


def _sparse_column(value: tf.Tensor) -> tf.SparseTensor:
    """Return `[B]` as sparse `[B, 1]` without the missing values, with a third of a ragged tensor's operations."""
    rows = tf.where(_mask(value))
    shape = tf.stack([tf.size(value, tf.int64), 1])
    return tf.SparseTensor(tf.pad(rows, [[0, 0], [0, 1]]), tf.gather_nd(value, rows), shape)


def _at_least_one_wide(value: tf.SparseTensor) -> tf.SparseTensor:
    """Widen the shape `[B, n]` to n >= 1: a batch without any value still has its rows."""
    shape = tf.maximum(value.dense_shape, tf.constant([0, 1], tf.int64))
    return tf.SparseTensor(value.indices, value.values, shape)
