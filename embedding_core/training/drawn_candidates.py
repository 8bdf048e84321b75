"""Adds candidates to the batches of a training: drawn negatives, and what a softmax over candidates needs."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeGuard, cast

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from embedding_core.config import EmbeddingConfig, TableConfig
from embedding_core.errors import ConfigError
from embedding_core.training.row_stream import batches_by_file
from embedding_core.training.training_inputs import Batch, Inputs, RowParser
from embedding_core.training_config import Negatives, Softmax

# Draws negatives while training: rows of label 0 made from rows of label 1.

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
    tokens = _tokens(table, negatives.feature, "negatives")
    if negatives.distribution == "uniform":
        return drawn_uniformly(tokens)
    if not _fit(counts, tokens):
        given = "no counts" if counts is None else f"{len(counts)} counts, {int(np.sum(counts))} in all"
        raise ConfigError(
            f"`distribution` of negatives is 'count', but there are {given} for the {tokens} tokens of table "
            f"{table.name!r}: give the vocabulary's counts, or choose 'uniform'."
        )
    return drawn_by_count(counts)


def _tokens(table: TableConfig, feature: str, section: str) -> int:
    tokens = table.vocabulary_size - table.oov_rows
    if tokens < 1:
        raise ConfigError(
            f"`feature` of {section} is {feature!r}: its vocabulary is empty; choose a feature with tokens."
        )
    return tokens


def _fit(counts: npt.NDArray[np.int64] | None, tokens: int) -> TypeGuard[npt.NDArray[np.int64]]:
    return counts is not None and len(counts) == tokens and bool(np.sum(counts))


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
        made = _with_others(batch, negatives, key) if draw is None else _drawn_negatives(batch, negatives, draw, key)
        made["label"] = tf.zeros_like(made["label"])
        return _join(batch, made)

    return add


def _positives(batch: Batch) -> tf.Tensor:
    return tf.where(batch["label"][:, 0] > 0.5)[:, 0]


def _drawn_negatives(batch: Batch, negatives: Negatives, draw: Draw, key: tf.Tensor) -> Batch:
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


# Collects whole candidates from the train split: for each id of one feature, the other features of its first row.

Ids = npt.NDArray[np.int64]


class WholeCandidates(NamedTuple):
    """The candidates of the train split, by the id of the feature that names them.

    Attributes:
      known: bool [tokens], whether a row of the train split has the candidate.
      ids: int64 ragged [tokens, None] by feature: the other categorical features of the candidate's first row.
      dense: float32 [tokens, 1] by name: the dense features of that row.
    """

    known: npt.NDArray[np.bool_]
    ids: dict[str, tf.RaggedTensor]
    dense: dict[str, tf.Tensor]


def whole_candidates(batches: Iterable[Batch], feature: str, others: Sequence[str], tokens: int) -> WholeCandidates:
    """Read batches once, and keep the first row of each candidate.

    Memory grows with the number of candidates, not with the number of rows.

    Args:
      batches: all rows of the train split.
      feature: categorical feature that names a candidate; its first id counts.
      others: further features, categorical or dense, that describe a candidate.
      tokens: number of tokens of the feature's vocabulary.
    """
    known = np.zeros(tokens, bool)
    order: list[Ids] = []
    parts: list[dict[str, tf.Tensor | tf.RaggedTensor]] = []
    for batch in batches:
        first = batch["ids"][feature][:, :1].to_tensor(default_value=-1, shape=[None, 1])[:, 0].numpy()
        distinct, rows = np.unique(np.where(first < tokens, first, -1), return_index=True)
        is_new = (distinct >= 0) & ~known[np.maximum(distinct, 0)]
        if not is_new.any():
            continue
        known[distinct[is_new]] = True
        order.append(distinct[is_new])
        columns = {name: batch["ids"].get(name, batch["dense"].get(name)) for name in others}
        parts.append({name: tf.gather(column, rows[is_new]) for name, column in columns.items()})
    if not parts:
        return WholeCandidates(known, {}, {})
    by_id = _positions(np.concatenate(order), tokens)
    made = {name: tf.gather(tf.concat([part[name] for part in parts], 0), by_id) for name in others}
    return WholeCandidates(
        known,
        {name: value for name, value in made.items() if isinstance(value, tf.RaggedTensor)},
        {name: value for name, value in made.items() if not isinstance(value, tf.RaggedTensor)},
    )


def _positions(order: Ids, tokens: int) -> Ids:
    """Return the position of each id in `order`; 0 for an id that is not in it."""
    positions = np.zeros(tokens, np.int64)
    positions[order] = np.arange(len(order))
    return positions


# Adds to each batch, on the host, what a softmax over its candidates needs: their ids, logQ, and drawn candidates.

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
    tokens = _tokens(table, softmax.feature, "softmax")
    if not _fit(counts, tokens):
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
        return _drawn(made, softmax, draw(tf.constant(drawn_rows(softmax, hosts)), key), expected, candidates)

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


def _drawn(
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


# Counts the tokens of one feature, if the vocabulary's counts include other features.

Counts = npt.NDArray[np.int64]

_BATCH = 4096


def candidate_counts(
    inputs: Inputs, feature: str, files: Sequence[str], of_vocabularies: Mapping[str, Counts]
) -> Counts | None:
    """Return how often a feature has each token, int64 [tokens]; None if its vocabulary has no counts.

    If no other feature shares the vocabulary, these are the counts of the vocabulary. Otherwise, those counts include
    the tokens of the other features, such as a history, so the rows are read once more and counted. Both count all rows
    of the train split, the validation part too.

    Args:
      inputs: sources of the model's inputs.
      feature: the feature that names the candidate, or whose tokens are drawn as negatives.
      files: TFRecord files of the train split.
      of_vocabularies: counts by vocabulary.
    """
    config = inputs.config
    vocabulary = config.table_of(feature).vocabulary or ""
    sharing = [other for other in config.features if config.table_of(other.name).vocabulary == vocabulary]
    if vocabulary not in of_vocabularies or len(sharing) == 1:
        return of_vocabularies.get(vocabulary)
    parse = RowParser(dataclasses.replace(inputs, config=config.of_features([feature]), dense=())).traced()
    counts = np.zeros(len(of_vocabularies[vocabulary]), np.int64)
    for _, serialized in batches_by_file(files, _BATCH):
        ids = parse(serialized)["ids"][feature].flat_values.numpy()
        add_counts(counts, ids[ids < len(counts)])
    return counts


def add_counts(counts: Counts, ids: npt.NDArray[np.int64]) -> None:
    """Add how often each id occurs, in time that depends on the number of ids, not on that of the counts."""
    distinct, times = np.unique(ids, return_counts=True)
    counts[distinct] += times
