"""Collects whole candidates from the train split: for each id of one feature, the other features of its first row."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from embedding_core.training.training_inputs import Batch

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
