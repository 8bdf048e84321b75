"""Makes up requests, chooses rows that a request may show, and turns serialized rows into named tensors.

In a made-up request, a column gets tokens of its vocabulary, so that the request looks up real rows. A private column,
or one that shares its vocabulary or raw column with a private one, gets made-up tokens. Raw ids count up from 0, and
dense columns get made-up values.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from embedding_core.columns import MISSING, Columns, DenseInputs
from embedding_core.config import ColumnConfig, EmbeddingConfig
from embedding_core.schema import Json
from embedding_core.serving.serving_module import columns_of

Value: TypeAlias = "bytes | int | float"

_FIRST_MADE_UP = 10**18  # far above the ids of a data set that numbers them from 0
_KINDS = {bytes: "bytes_list", int: "int64_list", float: "float_list"}


def synthetic_rows(
    config: EmbeddingConfig,
    dense: DenseInputs | None,
    vocabularies: Mapping[str, str | os.PathLike[str]],
    count: int = 1,
) -> list[bytes]:
    """Make rows that every signature of a model can parse, with a value in each of its raw columns.

    Args:
      config: tables and features of the model.
      dense: source of its dense inputs and of columns `after_transform`; None if there are none.
      vocabularies: path of the plain token file by vocabulary name.
      count: number of rows.

    Returns:
      Serialized tf.Examples, all different if the vocabularies have enough tokens. The same arguments give the same
      rows.
    """
    columns = _values(config, dense, vocabularies, count)
    return [_row({name: values[row % len(values)] for name, values in columns.items()}) for row in range(count)]


def _values(
    config: EmbeddingConfig,
    dense: DenseInputs | None,
    vocabularies: Mapping[str, str | os.PathLike[str]],
    count: int,
) -> dict[str, Sequence[Value]]:
    """Make at least one value for each raw column."""
    spec = {} if dense is None else dense.spec
    values: dict[str, Sequence[Value]] = {
        name: _numbers(spec[name].dtype, count) for name in columns_of(config, dense).inputs.values() if name in spec
    }
    private = _private_sources(config)
    for feature in config.features:
        column = feature.column or ColumnConfig(name=feature.name, dtype="int64", multivalent=True)
        if column.after_transform:
            continue
        table = config.table_of(feature.name)
        if table.vocabulary is None:
            values[column.name] = list(range(min(count, table.vocabulary_size)))
        elif {column.name, f"vocabulary {table.vocabulary}"} & private:
            values[column.name] = _made_up(column.dtype, count)
        else:
            tokens = _first_tokens(vocabularies[table.vocabulary], count)
            try:
                values[column.name] = [_value(column, token) for token in tokens] or _made_up(column.dtype, count)
            except ValueError:  # a token of a text column, which shares the vocabulary with a column of numbers
                values[column.name] = _made_up(column.dtype, count)
    return values


def public_rows(
    config: EmbeddingConfig,
    dense: DenseInputs | None,
    vocabularies: Mapping[str, str | os.PathLike[str]],
    rows: Sequence[bytes],
    count: int,
) -> list[bytes]:
    """Choose rows that a request may show: those that lack the fewest columns, the shortest first.

    Made-up values replace those of private columns. If there are any, they also replace what a `preprocessing_fn` reads
    beside them: all of it if its result is private, else all that is neither a public feature nor a float. Nothing can
    mark such a column private.

    Args:
      config: tables and features of the model.
      dense: source of its dense inputs and of columns `after_transform`; None if there are none.
      vocabularies: path of the plain token file by vocabulary name.
      rows: serialized tf.Examples of the data.
      count: number of rows to return; synthetic rows follow if the data has too few that fit the named tensors.
    """
    columns = columns_of(config, dense)
    inputs = set(columns.inputs.values())
    examples = [tf.train.Example.FromString(rows[number]) for number in named_inputs(columns, rows)[1]]
    for example in examples:
        for name in set(example.features.feature) - inputs:
            del example.features.feature[name]
    examples.sort(key=lambda example: (_lacking(example, inputs), example.ByteSize()))
    made_up, hidden = synthetic_rows(config, dense, vocabularies, count), _hidden_columns(config, dense) & inputs
    for example, row in zip(examples, made_up, strict=False):
        features = tf.train.Example.FromString(row).features.feature
        for name in hidden:
            example.features.feature[name].CopyFrom(features[name])
    return [*(example.SerializeToString() for example in examples[:count]), *made_up[len(examples) :]]


def _lacking(example: tf.train.Example, columns: Iterable[str]) -> int:
    """Count the columns of which a row has no value."""
    features = example.features.feature
    kinds = {name: features[name].WhichOneof("kind") for name in columns if name in features}
    return sum(not (kinds.get(name) and getattr(features[name], str(kinds[name])).value) for name in columns)


def _hidden_columns(config: EmbeddingConfig, dense: DenseInputs | None) -> set[str]:
    """Return the columns whose values may not be shown."""
    public = public_facts(config)["columns"]
    columns = [feature.column for feature in config.features if feature.column is not None]
    hidden = {column.name: column for column in columns if column.name not in public}
    if not hidden or dense is None:
        return {*hidden}
    if any(column.after_transform for column in hidden.values()):
        return {*hidden, *dense.spec}
    return {*hidden, *(name for name, spec in dense.spec.items() if name not in public and not spec.dtype.is_floating)}


def public_facts(config: EmbeddingConfig) -> Json:
    """Return what of a request and its answer may be shown: `columns` by name, and whether tokens of `answers` may be.

    A column is public if neither it nor its vocabulary is private; tokens of answers, if nothing is.
    """
    private = _private_sources(config)
    names = {
        feature.column.name
        for feature in config.features
        if feature.column is not None
        and not {feature.column.name, f"vocabulary {config.table_of(feature.name).vocabulary}"} & private
    }
    return {"columns": sorted(names), "answers": not private}


def _private_sources(config: EmbeddingConfig) -> set[str]:
    """Collect the private columns, and their vocabularies as "vocabulary <name>"."""
    owners = [feature for feature in config.features if feature.column is not None and feature.column.private]
    columns = {feature.column.name for feature in owners if feature.column is not None}
    return columns | {f"vocabulary {config.table_of(feature.name).vocabulary}" for feature in owners}


def _made_up(dtype: str, count: int) -> list[Value]:
    if dtype == "string":
        return [f"synthetic-{place}".encode() for place in range(count)]
    return [_FIRST_MADE_UP + place for place in range(count)] if dtype == "int64" else [0.5 + p for p in range(count)]


def _numbers(dtype: tf.DType, count: int) -> list[Value]:
    if dtype == tf.string:
        return _made_up("string", count)
    return [1.0 + place % 10 if dtype.is_floating else 1 + place % 10 for place in range(count)]


def _first_tokens(path: str | os.PathLike[str], count: int) -> list[bytes]:
    with tf.io.gfile.GFile(os.fspath(path), "rb") as file:
        return [line.rstrip(b"\n") for line in itertools.islice(iter(file.readline, b""), count)]


def _value(column: ColumnConfig, token: bytes) -> Value:
    if column.dtype == "string":
        return token
    return int(token) if column.dtype == "int64" else float(token)


def _row(values: Mapping[str, Value]) -> bytes:
    example = tf.train.Example()
    for name, value in values.items():
        getattr(example.features.feature[name], _KINDS[type(value)]).value.append(value)
    serialized: bytes = example.SerializeToString(deterministic=True)
    return serialized


_LISTS = {tf.string: "bytes_list", tf.int64: "int64_list", tf.float32: "float_list"}


def named_inputs(columns: Columns, rows: Sequence[bytes]) -> tuple[dict[str, npt.NDArray[Any]], list[int]]:
    """Read rows with the protobuf parser of Python into named tensors.

    Args:
      columns: raw columns of a model.
      rows: serialized tf.Examples.

    Returns:
      Arrays by input name, and the numbers of the rows they hold. Rows with several values in a column of one value
      are left out, because its tensor cannot hold them.
    """
    specs = columns.named_specs
    parsed = [_values_of_row(tf.train.Example.FromString(row), columns, specs) for row in rows]
    fits = [all(_fits(specs[name], values[name]) for name in specs) for values in parsed]
    kept = [number for number, good in enumerate(fits) if good]
    return {name: _array(spec, [parsed[number][name] for number in kept]) for name, spec in specs.items()}, kept


def _values_of_row(
    example: tf.train.Example, columns: Columns, specs: Mapping[str, tf.TensorSpec]
) -> dict[str, list[Value]]:
    features = example.features.feature
    return {
        name: list(getattr(features[column], _LISTS[specs[name].dtype]).value) if column in features else []
        for name, column in columns.inputs.items()
    }


def _fits(spec: tf.TensorSpec, values: Sequence[Value]) -> bool:
    width = _width(spec)
    return width is None or len(values) in {0, width}


def _width(spec: tf.TensorSpec) -> int | None:
    """Return the number of values of a row; None for any number."""
    count = spec.shape[1:].num_elements()
    return None if count is None else int(count)


def _array(spec: tf.TensorSpec, rows: Sequence[Sequence[Value]]) -> npt.NDArray[Any]:
    width = _width(spec) or max(map(len, rows), default=0)
    dtype = object if spec.dtype == tf.string else spec.dtype.as_numpy_dtype
    padded = np.full((len(rows), width), MISSING[spec.dtype], dtype)
    for number, values in enumerate(rows):
        padded[number, : len(values)] = values
    return padded.reshape([len(rows), *(width if size is None else size for size in spec.shape[1:])])
