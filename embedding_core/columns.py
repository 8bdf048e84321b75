"""Turns raw columns into tokens and ids, the same way for counting, training and serving."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import tensorflow as tf

from embedding_core.config import ColumnConfig, TableConfig
from embedding_core.errors import ConfigError, DataError, VocabularyError

# Looks up the ids of tokens, with one policy for unknown tokens in training and serving.
#
# An *unknown token* (not in the vocabulary) goes to one of the table's `oov_rows`, by its hash; if the table has none,
# it is dropped. *Invalid ids*, which only raw integer features can have, are handled by the lookup of rows, which
# applies the feature's `invalid_id` (`embedding_core.lookup`).

SIZE_CONSTANT = "size_of_export"
"""The name of the operation of a `size_constant`."""


def size_constant(value: Any, dtype: tf.DType) -> tf.Tensor:
    """Return a constant that follows from how many tokens the tables have, and from where their rows are.

    Exports of one model that was trained on other data may differ in it: its name tells it from other constants.
    """
    return tf.constant(value, dtype, name=SIZE_CONSTANT)


def _count_lines(path: str) -> int:
    """Count the lines of a file; the last one may lack its LF."""
    lines, last = 0, b"\n"
    with tf.io.gfile.GFile(path, "rb") as file:
        while chunk := file.read(1 << 22):
            lines += chunk.count(b"\n")
            last = chunk[-1:]
    return lines + (last != b"\n")


def kept(rows: tf.RaggedTensor, keep: tf.Tensor) -> tf.RaggedTensor:
    """Keep the flat values of a ragged `[B, None]` for which the bool `[N]` `keep` is true.

    Does the same as tf.ragged.boolean_mask, with a tenth of its operations.
    """
    before = tf.concat([[0], tf.cumsum(tf.cast(keep, rows.row_splits.dtype))], 0)
    splits = tf.gather(before, rows.row_splits)
    return tf.RaggedTensor.from_row_splits(tf.boolean_mask(rows.values, keep), splits, validate=False)


class TokenTable(tf.Module):
    """Maps tokens to the ids of one table, in the same way in the training input and in an exported model.

    A token of the vocabulary gets its line number. Any other token gets
    ``tokens + fingerprint64(token) % oov_rows``, as in `tf.lookup.StaticVocabularyTable`; with
    `oov_rows` 0 it gets no id. The lookup runs on the host's CPU. If this is an attribute of an
    exported `tf.Module`, the vocabulary file becomes an asset of the SavedModel.
    """

    def __init__(self, vocabulary_file: str | os.PathLike[str], vocabulary_size: int, oov_rows: int) -> None:
        """Load the vocabulary.

        Args:
          vocabulary_file: plain tokens, one per line, in the order of the rows.
          vocabulary_size: number of rows of the table, including the out-of-vocabulary rows.
          oov_rows: number of rows, the last ones, that unknown tokens share.

        Raises:
          VocabularyError: the file does not hold exactly `vocabulary_size - oov_rows` tokens.
        """
        super().__init__()
        path = os.fspath(vocabulary_file)
        self.tokens = int(vocabulary_size) - int(oov_rows)
        self.oov_rows = int(oov_rows)
        lines = _count_lines(path)
        if lines != self.tokens:
            raise VocabularyError(
                f"{path!r} holds {lines} tokens: a table of {vocabulary_size} rows, {oov_rows} of them out of "
                f"vocabulary, needs {self.tokens}; compute vocabularies and tables from the same run."
            )
        self._table = None if self.tokens == 0 else self._load(path)

    def _load(self, path: str) -> tf.lookup.StaticHashTable:
        initializer = tf.lookup.TextFileInitializer(
            path,
            tf.string,
            tf.lookup.TextFileIndex.WHOLE_LINE,
            tf.int64,
            tf.lookup.TextFileIndex.LINE_NUMBER,
            vocab_size=self.tokens,
        )
        return tf.lookup.StaticHashTable(initializer, default_value=self._default())

    def _default(self) -> int:
        """Return what the static table gives for other tokens; with a single row for them, no hash is needed."""
        return self.tokens if self.oov_rows == 1 else -1

    @classmethod
    def of(cls, table: TableConfig, vocabulary_file: str | os.PathLike[str]) -> TokenTable:
        """Make the token table of a configured embedding table."""
        return cls(vocabulary_file, table.vocabulary_size, table.oov_rows)

    def lookup(self, tokens: tf.RaggedTensor) -> tf.RaggedTensor:
        """Look up ids of tokens.

        Args:
          tokens: string `[B, None]`.

        Returns:
          int64 `[B, None]`, in the same order; without the unknown tokens if the table has no row for them.
        """
        ids = tokens.with_flat_values(self.ids_of(tokens.flat_values))
        return ids if self.oov_rows else kept(ids, ids.flat_values >= 0)

    def ids_of(self, tokens: tf.Tensor) -> tf.Tensor:
        """Look up the ids of a flat string tensor: int64 of the same shape, -1 for an unknown token that has no row."""
        if self._table is None:
            return self.unknown_ids(tokens)
        known = self._table.lookup(tokens)
        return known if self.oov_rows <= 1 else tf.where(known < 0, self.unknown_ids(tokens), known)

    def unknown_ids(self, tokens: tf.Tensor) -> tf.Tensor:
        """Return the ids that tokens get if they are unknown: int64 of the same shape, -1 without a row for them."""
        if self.oov_rows <= 1:
            return tf.fill(tf.shape(tokens), size_constant(self.tokens if self.oov_rows else -1, tf.int64))
        return size_constant(self.tokens, tf.int64) + tf.strings.to_hash_bucket_fast(tokens, self.oov_rows)


# Converts raw columns to tokens, with the same TensorFlow operations in counting, training and serving.
#
# The tokens of each type of value:
#
# =====================================  ==================================================================
# string                                 its bytes as in the data: any encoding, spaces kept
# string with a `separator`              the pieces between separators
# int64                                  decimal text: ``-7``
# float32                                the shortest decimal text that reads back as the same float: ``0.1``,
#                                        ``1234567``; ``-0.0`` and denormals are ``0``
# missing, empty list, "" and NaN        no token (a zero vector later, not an unknown token)
# int64 -2**63                           no token: `MISSING_INT` marks a missing value in dense tensors
# a token that holds LF, CR or NUL       a token that no text vocabulary can hold: it is counted separately,
#                                        has no row, and is looked up as an unknown token
# =====================================  ==================================================================
#
# The tokens of a value do not depend on other values; the counting of vocabularies relies on this.

MISSING_INT = -(2**63)
MISSING_FLOAT = float("nan")  # one object: NaN != NaN, but specifications that hold the same object are equal

Values: TypeAlias = "tf.Tensor | tf.SparseTensor | tf.RaggedTensor"

DTYPES = {"string": tf.string, "int64": tf.int64, "float32": tf.float32}
_LARGEST_FLOAT_DIGITS = 9
_SMALLEST_FLOAT_DIGITS = 6


def parse_spec(columns: Iterable[ColumnConfig]) -> dict[str, tf.io.RaggedFeature | tf.io.FixedLenFeature]:
    """Specify how to read raw columns from serialized tf.Examples; columns with `after_transform` are left out.

    String and int64 columns are read as ragged features, so a missing value, an empty list and a list of any
    length are all valid. A fixed-length int64 feature would need a default value, which could also occur in the
    data. Float columns are read with a fixed length (NaN for missing), because reading a malformed float list
    with a variable length can crash the process inside TensorFlow's parser.

    Returns:
      Column name -> feature specification for `tf.io.parse_example`.

    Raises:
      DataError: a float column is multivalent, or a column is given two dtypes.
    """
    spec: dict[str, tf.io.RaggedFeature | tf.io.FixedLenFeature] = {}
    for column in columns:
        if column.after_transform:
            continue
        feature = _feature(column)
        if spec.setdefault(column.name, feature) != feature:
            raise DataError(
                f"column {column.name!r} is read as {column.dtype} and as another type: "
                "give every feature that reads it the same `dtype`."
            )
    return spec


def _feature(column: ColumnConfig) -> tf.io.RaggedFeature | tf.io.FixedLenFeature:
    if column.dtype != "float32":
        return tf.io.RaggedFeature(DTYPES[column.dtype], row_splits_dtype=tf.int64)
    if column.many:
        raise DataError(
            f"column {column.name!r} holds lists of floats: as a categorical feature a float column must have at most "
            "one value per row; write the values as strings or integers."
        )
    return tf.io.FixedLenFeature([], tf.float32, default_value=MISSING_FLOAT)


def tokens_of(column: ColumnConfig, values: Values) -> tf.RaggedTensor:
    """Compute the tokens of each row of a column.

    Args:
      column: description of the column.
      values: [B], [B, n], or sparse or ragged [B, None]; string, int64 or float32 as `column.dtype` says.

    Returns:
      string [B, None]: the tokens of each row in the order of the data, none of them empty.

    Raises:
      DataError: the values have another dtype than the column (found while tracing).
    """
    texts = texts_of(column, values)
    return kept(texts, tf.not_equal(texts.values, ""))


def texts_of(column: ColumnConfig, values: Values) -> tf.RaggedTensor:
    """Compute the tokens as `tokens_of` does, but keep "" for each value that gives no token."""
    rows = rows_of(column, values)
    texts = rows.with_values(text_of(column, rows.values))
    if column.separator is None:
        return texts
    pieces = tf.strings.split(texts.values, column.separator)
    return texts.with_values(pieces).merge_dims(1, 2)


def rows_of(column: ColumnConfig, values: Values) -> tf.RaggedTensor:
    """Convert the values of a column to a ragged tensor with one row per example; inner dimensions are flattened.

    Args:
      column: description of the column.
      values: [B], [B, n], or sparse or ragged [B, None].

    Returns:
      [B, None] values, in the dtype given.

    Raises:
      DataError: the values have another dtype than the column (found while tracing).
    """
    if values.dtype != DTYPES[column.dtype]:
        raise DataError(
            f"column {column.name!r} is {values.dtype.name} in the data, but {column.dtype} in the configuration: "
            "change one of the two."
        )
    if isinstance(values, tf.RaggedTensor):
        return values.merge_dims(1, -1) if values.shape.rank != 2 else values
    if isinstance(values, tf.SparseTensor):
        return tf.RaggedTensor.from_sparse(values, row_splits_dtype=tf.int64)
    size = tf.shape(values, out_type=tf.int64)[0]
    width = tf.math.floordiv(tf.size(values, out_type=tf.int64), tf.maximum(size, 1))
    splits = tf.range(size + 1) * width
    return tf.RaggedTensor.from_row_splits(tf.reshape(values, [-1]), splits, validate=False)


def text_of(column: ColumnConfig, values: tf.Tensor) -> tf.Tensor:
    """Convert flat values to text of the same shape; NaN and `MISSING_INT` become ""."""
    if column.dtype == "int64":
        return tf.where(tf.equal(values, MISSING_INT), "", tf.strings.as_string(values))
    if column.dtype == "float32":
        return tf.where(tf.math.is_nan(values), "", _shortest_text(tf.where(values == 0.0, 0.0, values)))
    return values


def _shortest_text(values: tf.Tensor) -> tf.Tensor:
    """Format floats with the fewest significant digits, 6 to 9, from which the same float32 can be read."""
    text = tf.strings.as_string(values, precision=_LARGEST_FLOAT_DIGITS, shortest=True)
    for digits in range(_LARGEST_FLOAT_DIGITS - 1, _SMALLEST_FLOAT_DIGITS - 1, -1):
        shorter = tf.strings.as_string(values, precision=digits, shortest=True)
        text = tf.where(tf.strings.to_number(shorter) == values, shorter, text)
    return text


# Reads raw columns from serialized tf.Examples or from one named tensor per column, for training and serving.
#
# Both sources give the same raw columns. Unknown tokens, missing values and empty lists in multivalent columns are
# valid. A row that lacks a dense value that Transform requires is marked, and its prediction is NaN rather than one
# from a made-up value. So a row cannot make the others fail, except by two values in a column of one value, or if
# TensorFlow's parser itself refuses it: a record that is not a tf.Example, a column of another type, and an empty list
# in a column of floats or of dense numbers. Training refuses such rows too. Named tensors cannot have these errors.
#
# The named tensors of a column (its name with every character but letters, digits and `_` replaced by `_`):
#
# ====================  ======================  ========================
# column                tensor                  missing, and padding
# ====================  ======================  ========================
# string                string `[B]`            ""
# int64                 int64 `[B]`             `MISSING_INT`, -2**63
# float32               float32 `[B]`           NaN
# multivalent           `[B, n]`, padded        as above, at any index
# ====================  ======================  ========================

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
    """

    names: tuple[str, ...] = ()
    spec: Mapping[str, Spec]
    transform: Callable[[Mapping[str, Values]], Mapping[str, Values]] | None = None

    def outputs(self, raw: Raw) -> Raw:
        """Compute all outputs of the transform; without one, return the raw columns."""
        return dict(raw if self.transform is None else self.transform(raw))

    def values(self, outputs: Mapping[str, Values]) -> dict[str, tf.Tensor]:
        """Select the model's dense inputs from the outputs: float32 `[B, 1]` by name."""
        return {name: _column_vector(outputs[name]) for name in self.names}

    @property
    def tracked(self) -> list[Any]:
        """The objects that the SavedModel must hold for the transform to run."""
        return [self.transform] if isinstance(self.transform, tf.Module) else []


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
        read = sorted(
            (column for column in categorical if not column.after_transform), key=lambda column: column.multivalent
        )
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
        dense = {**parsed, **tf.io.parse_example(examples, apart)} if apart else parsed
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
        rule = " has several values in a row: set `multivalent: true` of the feature, or write one value."
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
