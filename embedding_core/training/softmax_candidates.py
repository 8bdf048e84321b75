"""Adds to each batch, on the host, what a softmax over its candidates needs: their ids, logQ, and drawn candidates."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import cast

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from embedding_core.config import EmbeddingConfig
from embedding_core.errors import ConfigError
from embedding_core.training.negatives import drawn_by_count, drawn_uniformly
from embedding_core.training.training_inputs import Batch
from embedding_core.training.whole_candidates import WholeCandidates
from embedding_core.training_config import Softmax

CANDIDATE, LOG_Q, COMPETES = "candidate", "log_q", "competes"


def candidate_sampler(
    softmax: Softmax,
    config: EmbeddingConfig,
    *,
    seed: int,
    hosts: int,
    counts: npt.NDArray[np.int64] | None,
    candidates: WholeCandidates | None = None,
) -> Callable[[tf.Tensor, Batch], Batch]:
    """Make a graph function (step, batch) -> the batch with candidates.

    The batch gets the key `softmax`, with three tensors [B, 1] by name. `candidate`, int32, is the id of each row's
    candidate, or -1 if the row has none. `log_q`, float32, is the logarithm of how often the candidate is expected
    among those that compete. `competes`, int32, is 1 if the candidate is a negative for other rows: with `in_batch`
    always, else only if it was drawn. Drawn candidates are appended as rows with only the candidate's features. Their
    label is 0; with several labels, all are NaN. The draws depend only on seed and step.

    Args:
      softmax: the settings.
      config: tables and features.
      seed: seed of the run.
      hosts: number of hosts that read different rows; each draws its part of the candidates.
      counts: count of each token of the candidate's vocabulary in the data, int64 [tokens].
      candidates: the other features of each candidate; None if there are none.

    Raises:
      ConfigError: the feature is unknown, holds several tokens a row or has no tokens, or the counts are missing.
    """
    if softmax.feature not in {feature.name for feature in config.features}:
        names = ", ".join(feature.name for feature in config.features)
        raise ConfigError(f"`feature` of softmax is {softmax.feature!r}: it must be one of the features {names}.")
    column = config.feature(softmax.feature).column
    if column is not None and column.many:
        raise ConfigError(
            f"`feature` of softmax is {softmax.feature!r}, but column {column.name!r} holds several tokens a row, and "
            "a row has one candidate: name a feature of one token a row."
        )
    table = config.table_of(softmax.feature)
    tokens = table.vocabulary_size - table.oov_rows
    if tokens < 1:
        raise ConfigError(f"`feature` of softmax is {softmax.feature!r}: its vocabulary is empty; choose another one.")
    if counts is None or len(counts) != tokens or not np.sum(counts):
        raise ConfigError(
            f"softmax over {softmax.feature!r} needs the counts of the {tokens} tokens of its vocabulary."
        )
    drawn_counts = counts if softmax.distribution == "count" else np.ones_like(counts)
    if candidates is not None:
        drawn_counts = np.where(candidates.known, drawn_counts, 0)
        if not drawn_counts.any():
            raise ConfigError(
                f"no row of the train split has a token of {softmax.feature!r} that could be drawn: set "
                "`softmax.sampled` to 0."
            )
    by_count = softmax.distribution == "count" or candidates is not None
    draw = drawn_by_count(drawn_counts) if by_count else drawn_uniformly(tokens)
    expected = _Expected(softmax, counts, drawn_counts, table.vocabulary_size, hosts)

    def add(step: tf.Tensor, batch: Batch) -> Batch:
        ids = batch["ids"][softmax.feature]
        candidate = tf.cast(ids[:, :1].to_tensor(default_value=-1, shape=[None, 1]), tf.int32)
        made = cast(Batch, {**batch, "softmax": expected.described(candidate, batch["rows"], drawn=False)})
        if not softmax.sampled:
            return made
        key = tf.stack([tf.constant(seed, tf.int64), step])
        return _with_drawn(made, softmax, draw(tf.constant(drawn_rows(softmax, hosts)), key), expected, candidates)

    return add


def drawn_rows(softmax: Softmax, hosts: int = 1) -> int:
    """Return the number of candidates that each host draws for its part of a batch."""
    return -(-softmax.sampled // hosts)


class _Expected:
    """How often each row of the table is expected among the candidates of a batch of some number of rows."""

    def __init__(
        self,
        softmax: Softmax,
        counts: npt.NDArray[np.int64],
        drawn_counts: npt.NDArray[np.int64],
        size: int,
        hosts: int,
    ) -> None:
        """Compute the shares of `size` rows; a row for unknown tokens counts as a token that occurs once."""
        seen = np.ones(size)
        seen[: len(counts)] = np.maximum(counts, 1)
        # If only drawn candidates compete, a row's candidate may be one that is never drawn. With an expectation of 0,
        # its logit would be so large that the row had no loss.
        drawn = np.zeros(size) if softmax.in_batch else np.ones(size)
        drawn[: len(counts)] = np.maximum(drawn_counts, drawn[: len(counts)])
        self._is_corrected = softmax.correction
        self._in_batch = softmax.in_batch
        self._per_row = tf.constant(hosts * softmax.in_batch * seen / seen.sum(), tf.float32)
        self._drawn = tf.constant(hosts * drawn_rows(softmax, hosts) * drawn / drawn_counts.sum(), tf.float32)

    def described(self, candidate: tf.Tensor, rows: tf.Tensor, *, drawn: bool) -> dict[str, tf.Tensor]:
        """Return the key `softmax` of candidates int32 `[n, 1]`, given the number of rows of this host's batch."""
        competes = tf.fill(tf.shape(candidate), tf.constant(int(drawn or self._in_batch), tf.int32))
        if not self._is_corrected:
            return {CANDIDATE: candidate, LOG_Q: tf.zeros_like(candidate, tf.float32), COMPETES: competes}
        ids = tf.maximum(candidate, 0)
        expected = tf.cast(rows, tf.float32) * tf.gather(self._per_row, ids) + tf.gather(self._drawn, ids)
        return {CANDIDATE: candidate, LOG_Q: tf.math.log(expected), COMPETES: competes}


def _with_drawn(
    batch: Batch, softmax: Softmax, drawn: tf.Tensor, expected: _Expected, candidates: WholeCandidates | None
) -> Batch:
    """Append a row for each drawn candidate, int64 [n]."""
    number = tf.size(drawn)

    def empty(rows: tf.RaggedTensor) -> tf.RaggedTensor:
        splits = tf.concat([rows.row_splits, tf.repeat(rows.row_splits[-1:], number)], 0)
        return tf.RaggedTensor.from_row_splits(rows.values, splits, validate=False)

    def padded(column: tf.Tensor, value: float = 0.0) -> tf.Tensor:
        return tf.pad(column, [[0, number], [0, 0]], constant_values=value)

    ids = {name: empty(rows) for name, rows in batch["ids"].items()}
    own = batch["ids"][softmax.feature]
    no_label = math.nan if batch["label"].shape[1] > 1 else 0.0
    ids[softmax.feature] = tf.concat([own, tf.RaggedTensor.from_tensor(drawn[:, None])], 0)
    dense = {name: padded(column) for name, column in batch["dense"].items()}
    if candidates is not None:
        for name, of_all in candidates.ids.items():
            ids[name] = tf.concat([batch["ids"][name], tf.gather(of_all, drawn)], 0)
        for name, of_all in candidates.dense.items():
            dense[name] = tf.concat([batch["dense"][name], tf.gather(of_all, drawn)], 0)
    more = expected.described(tf.cast(drawn[:, None], tf.int32), batch["rows"], drawn=True)
    return cast(
        Batch,
        {
            **batch,
            "ids": ids,
            "dense": dense,
            "label": padded(batch["label"], no_label),
            "weight": tf.concat([batch["weight"], tf.ones([number, 1])], 0),
            "softmax": {name: tf.concat([column, more[name]], 0) for name, column in batch["softmax"].items()},
        },
    )
