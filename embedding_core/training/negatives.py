"""Draws negatives while training: rows of label 0 made from rows of label 1."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from embedding_core.config import EmbeddingConfig
from embedding_core.errors import ConfigError
from embedding_core.training.training_inputs import Batch
from embedding_core.training_config import Negatives

Draw = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]


def _take(batch: Batch, rows: tf.Tensor) -> Batch:
    """Gather rows of a batch by their indices."""
    taken = tf.nest.map_structure(lambda value: tf.gather(value, rows), _by_row(batch))
    return cast(Batch, {**taken, "rows": tf.size(rows)})


def _join(first: Batch, second: Batch) -> Batch:
    joined = tf.nest.map_structure(lambda a, b: tf.concat([a, b], 0), _by_row(first), _by_row(second))
    return cast(Batch, {**joined, "rows": first["rows"] + second["rows"]})


def _by_row(batch: Batch) -> dict[str, object]:
    return {name: part for name, part in batch.items() if name != "rows"}


def drawn_by_count(counts: npt.NDArray[np.int64]) -> Draw:
    """Make a function that draws ids of a vocabulary in proportion to the counts of their tokens."""
    upper = tf.constant(np.cumsum(counts, dtype=np.float64) / np.sum(counts, dtype=np.float64))

    def draw(number: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        points = tf.random.stateless_uniform([number], seed, dtype=tf.float64)
        return tf.minimum(tf.searchsorted(upper, points, side="right", out_type=tf.int64), len(counts) - 1)

    return draw


def drawn_uniformly(tokens: int) -> Draw:
    """Make a function that draws ids of a vocabulary, each with the same probability."""
    return lambda number, seed: tf.random.stateless_uniform([number], seed, 0, tokens, dtype=tf.int64)


def _draw(negatives: Negatives, config: EmbeddingConfig, counts: npt.NDArray[np.int64] | None) -> Draw:
    table = config.table_of(negatives.feature)
    tokens = table.vocabulary_size - table.oov_rows
    if tokens < 1:
        raise ConfigError(
            f"`feature` of negatives is {negatives.feature!r}: its vocabulary is empty; choose a feature with tokens."
        )
    if negatives.distribution == "uniform":
        return drawn_uniformly(tokens)
    if counts is None or len(counts) != tokens or not np.sum(counts):
        given = "no counts" if counts is None else f"{len(counts)} counts, {int(np.sum(counts))} in all"
        raise ConfigError(
            f"`distribution` of negatives is 'count', but there are {given} for the {tokens} tokens of table "
            f"{table.name!r}: give the vocabulary's counts, or choose 'uniform'."
        )
    return drawn_by_count(counts)


def negative_sampler(
    negatives: Negatives,
    config: EmbeddingConfig,
    *,
    seed: int,
    dense: Sequence[str] = (),
    counts: npt.NDArray[np.int64] | None = None,
) -> Callable[[tf.Tensor, Batch], Batch]:
    """Make a graph function (step, batch) -> the batch with drawn negatives after its rows.

    The draws are a function of seed and step. If candidates are taken from the batch, each comes from another positive
    row, which may have the same candidate; a batch with a single positive row then gets no negatives.

    Args:
      negatives: what to draw.
      config: tables and features.
      seed: seed of the run.
      dense: names of the dense features, which may be among the candidate's features.
      counts: counts of the tokens of the feature's vocabulary, int64 [tokens]; needed for the distribution "count".

    Raises:
      ConfigError: a feature is unknown, a vocabulary is empty, or counts are missing, all 0 or of another length.
    """
    known = [feature.name for feature in config.features]
    for name in (negatives.feature, *negatives.within_batch):
        if name not in known and (name not in dense or name == negatives.feature):
            raise ConfigError(f"{name!r} is named in negatives: it must be one of the features {', '.join(known)}.")
    draw = None if negatives.within_batch else _draw(negatives, config, counts)

    def add(step: tf.Tensor, batch: Batch) -> Batch:
        key = tf.stack([tf.constant(seed, tf.int64), step])
        made = _with_others(batch, negatives, key) if draw is None else _with_drawn(batch, negatives, draw, key)
        made["label"] = tf.zeros_like(made["label"])
        return _join(batch, made)

    return add


def _positives(batch: Batch) -> tf.Tensor:
    return tf.where(batch["label"][:, 0] > 0.5)[:, 0]


def _with_drawn(batch: Batch, negatives: Negatives, draw: Draw, key: tf.Tensor) -> Batch:
    """Repeat the positive rows with drawn ids in one feature."""
    made = _take(batch, tf.repeat(_positives(batch), negatives.per_positive))
    drawn = draw(tf.size(made["label"]), key)
    made["ids"] = {**made["ids"], negatives.feature: tf.RaggedTensor.from_tensor(drawn[:, None])}
    return made


def _with_others(batch: Batch, negatives: Negatives, key: tf.Tensor) -> Batch:
    """Repeat the positive rows, with all features of the candidate taken from other positive rows."""
    rows, others = _pairs(_positives(batch), negatives.per_positive, key)
    made, from_others = _take(batch, rows), _take(batch, others)
    for part in ("ids", "dense"):
        names = [name for name in negatives.within_batch if name in batch[part]]
        made[part] = {**made[part], **{name: from_others[part][name] for name in names}}
    return made


def _pairs(positives: tf.Tensor, times: int, key: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Pair each positive row `times` times with another one, drawn uniformly; a lone row gets no pair."""
    number = tf.size(positives, tf.int64)
    rows = tf.repeat(tf.range(number), tf.where(number > 1, times, 0))
    ahead = tf.random.stateless_uniform([tf.size(rows)], key, 1, tf.maximum(number, 2), dtype=tf.int64)
    others = tf.math.floormod(rows + ahead, tf.maximum(number, 1))
    return tf.gather(positives, rows), tf.gather(positives, others)
