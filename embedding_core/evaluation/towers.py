"""Computes the vectors of queries and candidates, with a restored run or with an exported model."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from embedding_core.columns import MISSING, input_name
from embedding_core.config import EmbeddingConfig
from embedding_core.errors import DataError
from embedding_core.model_inputs import is_two_tower, sequence_lengths
from embedding_core.training.finished_run import RestoredRun
from embedding_core.training.training_inputs import Inputs, RowParser

Vectors: TypeAlias = npt.NDArray[np.float32]

NO_TOWERS = "the model has no query and candidate towers."
_BATCH = 4096


class Towers(Protocol):
    """The two towers of a retrieval model.

    Attributes:
      feature: the feature that identifies a candidate.
      alone: whether the candidate tower reads only that feature.
      query_features: the categorical features that the query tower reads.
    """

    feature: str
    alone: bool
    query_features: tuple[str, ...]

    def queries(self, serialized: tf.Tensor) -> Vectors:
        """Compute the query vectors of serialized tf.Examples, float32 `[B, d]`."""
        ...

    def candidates(self, serialized: tf.Tensor) -> Vectors:
        """Compute the candidate vectors of serialized tf.Examples, float32 `[B, d]`."""
        ...

    def candidates_of_ids(self, start: int, end: int) -> Vectors:
        """Compute the vectors of the candidates with ids from `start` to `end - 1`; only if `alone` is true."""
        ...


def all_vectors(towers: Towers, tokens: int) -> Vectors:
    """Compute the vectors of all candidates, float32 `[tokens, d]`; only if `towers.alone` is true."""
    starts = range(0, max(tokens, 1), _BATCH)
    return np.concatenate([towers.candidates_of_ids(start, min(start + _BATCH, tokens)) for start in starts])


def only_features(inputs: Inputs, features: Iterable[str], *, dense: bool) -> Inputs:
    """Restrict inputs to some features, so that the others are not read."""
    config = inputs.config.of_features(features)
    return dataclasses.replace(inputs, config=config, dense=inputs.dense if dense else ())


def _identifying(features: Sequence[str], named: str | None) -> str:
    """Choose the feature that identifies a candidate from the categorical features of the candidate tower.

    Raises:
      DataError: there are several features or none, and none of them is `named`.
    """
    if len(features) == 1:
        return features[0]
    if named is not None and named in features:
        return named
    raise DataError(
        f"the candidate tower reads {', '.join(features) or 'no categorical feature'}: name the one that identifies a "
        "candidate as `training.softmax.feature` or `training.negatives.feature`."
    )


class RunTowers:
    """The towers of a restored run, with the tables of its checkpoint."""

    def __init__(self, run: RestoredRun, inputs: Inputs) -> None:
        """Take a run and the sources of its inputs.

        Raises:
          DataError: the model has no towers, or no feature identifies a candidate.
        """
        if not is_two_tower(run.model):
            raise DataError(NO_TOWERS)
        self._run = run
        known = {feature.name for feature in run.description.config.features}
        candidate, query = tuple(run.model.candidate_features), tuple(run.model.query_features)
        training = run.description.training
        source = training.negatives or training.softmax
        of_candidate = tuple(name for name in candidate if name in known)
        self.feature = _identifying(of_candidate, None if source is None else source.feature)
        self.alone = candidate == (self.feature,)
        self.query_features = tuple(name for name in query if name in known)
        self._config = run.description.config
        self._parse_query = RowParser(
            only_features(inputs, self.query_features, dense=len(query) > len(self.query_features))
        ).traced()
        self._parse_candidate = RowParser(
            only_features(inputs, of_candidate, dense=len(candidate) > len(of_candidate))
        ).traced()

    def queries(self, serialized: tf.Tensor) -> Vectors:
        """Compute the query vectors of serialized tf.Examples, float32 `[B, d]`."""
        return self._vectors(self._run.model.query_vectors, self._parse_query(serialized))

    def candidates(self, serialized: tf.Tensor) -> Vectors:
        """Compute the candidate vectors of serialized tf.Examples, float32 `[B, d]`."""
        return self._vectors(self._run.model.candidate_vectors, self._parse_candidate(serialized))

    def candidates_of_ids(self, start: int, end: int) -> Vectors:
        """Compute the vectors of the candidates with these ids."""
        ids = tf.range(start, end, dtype=tf.int64)
        rows = {self.feature: tf.RaggedTensor.from_row_lengths(ids, tf.ones_like(ids))}
        return self._vectors(self._run.model.candidate_vectors, {"ids": rows, "dense": {}})

    def _vectors(self, tower: Callable[..., tf.Tensor], batch: Mapping[str, Any]) -> Vectors:
        ids = batch["ids"]
        given = {**batch["dense"], **sequence_lengths(self._config, ids), **self._run.engine.lookup(ids)}
        vectors: Vectors = tower(given).numpy()
        return vectors


class ExportedTowers:
    """The towers of an exported model: its signatures `query` and `candidate`."""

    def __init__(
        self, model: Any, config: EmbeddingConfig, columns: Iterable[str], tokens: Sequence[bytes], named: str | None
    ) -> None:
        """Take a loaded SavedModel.

        Args:
          model: the SavedModel.
          config: the tables and features that the data is read with; the model may be of another run.
          columns: all columns of the data.
          tokens: the candidates in the order of their ids.
          named: the feature that identifies a candidate, if the candidate tower reads several.

        Raises:
          DataError: the model lacks the signatures, reads a column that the data does not have, or no feature
            identifies a candidate.
        """
        for name in ("query", "candidate"):
            if name not in model.signatures:
                raise DataError(f"the exported model has no signature {name!r}, so it retrieves nothing.")
        known = {input_name(column): column for column in columns}
        self._query = _NamedCall(model.signatures["query"], known)
        self._candidate = _NamedCall(model.signatures["candidate"], known)
        self._tokens = tokens
        of_candidate = _features_of(config, self._candidate.columns)
        if not of_candidate:
            raise DataError(
                f"the candidate tower reads {', '.join(self._candidate.columns)}, which no categorical feature reads "
                "as in the data: an exported model cannot be asked for such candidates; take the metric out of "
                "`evaluation.metrics`, and bound it in `evaluation.thresholds` alone."
            )
        self.feature = _identifying(of_candidate, named)
        self.alone = len(self._candidate.columns) == 1
        self.query_features = _features_of(config, self._query.columns)

    def queries(self, serialized: tf.Tensor) -> Vectors:
        """Compute the query vectors of serialized tf.Examples, float32 `[B, d]`."""
        return self._query(serialized)

    def candidates(self, serialized: tf.Tensor) -> Vectors:
        """Compute the candidate vectors of serialized tf.Examples, float32 `[B, d]`."""
        return self._candidate(serialized)

    def candidates_of_ids(self, start: int, end: int) -> Vectors:
        """Compute the vectors of the candidates with these ids."""
        return self._candidate.of_tokens(self._tokens[start:end])


def _features_of(config: EmbeddingConfig, columns: Iterable[str]) -> tuple[str, ...]:
    """Return the features that are read from these columns."""
    read = set(columns)
    return tuple(
        feature.name for feature in config.features if feature.column is not None and feature.column.name in read
    )


class _NamedCall:
    """Calls a signature of named tensors with serialized tf.Examples."""

    def __init__(self, signature: Any, columns: Mapping[str, str]) -> None:
        self._signature = signature
        specs: Mapping[str, tf.TensorSpec] = signature.structured_input_signature[1]
        unknown = sorted(set(specs) - set(columns))
        if unknown:
            raise DataError(f"the model reads {unknown[0]!r}, which no column of the data is: it is of other data.")
        self._specs = {columns[name]: spec for name, spec in specs.items()}
        self._names = {columns[name]: name for name in specs}
        parsed = {column: _parse_spec(spec) for column, spec in self._specs.items()}

        def call(serialized: tf.Tensor) -> tf.Tensor:
            values = tf.io.parse_example(serialized, parsed)
            named = {self._names[column]: self._named(column, value) for column, value in values.items()}
            return signature(**named)["vector"]

        self._call = tf.function(call, input_signature=[tf.TensorSpec([None], tf.string)], autograph=False)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that the signature reads."""
        return tuple(self._specs)

    def __call__(self, serialized: tf.Tensor) -> Vectors:
        vectors: Vectors = self._call(serialized).numpy()
        return vectors

    def of_tokens(self, tokens: Sequence[bytes]) -> Vectors:
        """Call the signature, which reads a single column, with one token per row."""
        ((column, spec),) = self._specs.items()
        texts = tf.constant(tokens, tf.string, [len(tokens)])
        values = texts if spec.dtype == tf.string else tf.strings.to_number(texts, spec.dtype)
        named = {self._names[column]: values if spec.shape.rank == 1 else values[:, tf.newaxis]}
        vectors: Vectors = self._signature(**named)["vector"].numpy()
        return vectors

    def _named(self, column: str, value: tf.Tensor | tf.RaggedTensor) -> tf.Tensor:
        if isinstance(value, tf.RaggedTensor):
            return value.to_tensor(MISSING[self._specs[column].dtype])
        return value


def _parse_spec(spec: tf.TensorSpec) -> tf.io.FixedLenFeature | tf.io.RaggedFeature:
    """Specify how to parse a column; its missing values are those of the named tensors."""
    shape = spec.shape[1:]
    if None in shape.as_list():
        return tf.io.RaggedFeature(spec.dtype, row_splits_dtype=tf.int64)
    missing = np.full(shape.as_list(), MISSING[spec.dtype]).tolist()
    return tf.io.FixedLenFeature(shape.as_list(), spec.dtype, missing)
