"""Merges the counts of this run with the vocabulary of a previous run, its base, without loading TensorFlow.

The rule, run after run (a run counts the data that the pipeline is run on, such as a day or a month):

* A run *admits* a token that it counts at least `min_count` times. A token has been *idle* in all runs since the
  last one that admitted it.
* A token expires when it has been idle for `expire_after` runs. Apart from `max_size`, the tokens that have not
  expired are those to which plain counting would have given a row in at least one of the last `expire_after` runs.
  Without `expire_after` no token expires.
* "rerank" gives rows to all tokens that have not expired, at most `max_size` of them. Their total order uses each
  token's count in the run that last admitted it, so an idle token keeps its rank. Rows move: a checkpoint is remapped
  by token.
* "append" leaves the tokens of the base in their rows, expired ones too, and puts newly admitted tokens after them in
  the total order of this run's counts, up to `max_size` rows in all. The row of an expired token is a tombstone: it
  stays reserved, and the token finds its own row again if it comes back. The plain file of the new vocabulary begins
  with that of the base. To reclaim the space, run once in mode "rerank".

Counts of tokens without a row are not remembered. `docs/decisions/0005-vocabulary-evolution.md` says why.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from embedding_core.config import EvolutionMode
from embedding_core.errors import ConfigError
from embedding_core.vocabulary.vocabulary import Evolution, FeatureSummary, Vocabulary, representable, total_order


def evolved_vocabulary(
    base: Vocabulary,
    tokens: pa.Array,
    counts: npt.NDArray[np.int64],
    *,
    mode: EvolutionMode,
    expire_after: int | None = None,
    min_count: int = 1,
    max_size: int | None = None,
    private: bool = False,
    features: Mapping[str, FeatureSummary] | None = None,
) -> Vocabulary:
    """Merge this run's tokens with those of a previous vocabulary, by the rule above.

    Args:
      base: vocabulary of the previous run; it may have a base itself.
      tokens: [n] large_binary, each distinct token of this run once, in any order.
      counts: [n] int64, of this run.
      mode: "append" or "rerank".
      expire_after: number of runs; >= 1, or None.
      min_count: smallest count with which a run admits a token; >= 1.
      max_size: largest number of tokens with a row; None for no limit.
      private: whether tokens may be shown only as digests.
      features: statistics of each feature in this run.

    Returns:
      A vocabulary with the base's name; its `counts`, `total_count` and `coverage` are those of this run's data.

    Raises:
      ConfigError: no token is left.
    """
    total = int(counts.sum())
    tokens, counts = representable(tokens, counts)
    before, fresh = len(base), _fresh(base, tokens, counts, min_count)
    all_tokens = pa.concat_arrays([base.tokens, tokens.take(pa.array(fresh))])
    all_counts = np.concatenate([_counts_of(base, tokens, counts), counts[fresh]])
    idle, last_counts = _idleness(base, all_counts, min_count)
    if mode == "append":
        rows = _appended(before, len(all_tokens), max_size)
    else:
        rows = total_order(all_tokens, last_counts)
        rows = rows[idle[rows] < (np.inf if expire_after is None else expire_after)][:max_size]
    _check_any(base.name, rows, expire_after)
    kept = int(np.count_nonzero(rows < before))
    return Vocabulary(
        name=base.name,
        tokens=all_tokens.take(pa.array(rows)),
        counts=all_counts[rows],
        total_count=total,
        distinct=len(tokens),
        unrepresentable=total - int(counts.sum()),
        min_count=min_count,
        max_size=max_size,
        private=private,
        features=dict(features or {}),
        evolution=Evolution(
            mode=mode,
            expire_after=expire_after,
            base=base.digest,
            kept=kept,
            new=len(rows) - kept,
            dropped=before - kept,
            refused=len(fresh) - (len(rows) - kept),
            idle=idle[rows],
            last_counts=last_counts[rows],
        ),
    )


def _fresh(base: Vocabulary, tokens: pa.Array, counts: npt.NDArray[np.int64], min_count: int) -> npt.NDArray[np.int64]:
    """Find the positions of the admitted tokens that the base does not have, in their total order."""
    known = pc.is_in(tokens, value_set=base.tokens).to_numpy(zero_copy_only=False)
    fresh = np.flatnonzero(~known & (counts >= min_count))
    return fresh[total_order(tokens.take(pa.array(fresh)), counts[fresh])]


def _counts_of(base: Vocabulary, tokens: pa.Array, counts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Look up this run's count of each token of the base."""
    positions = pc.fill_null(pc.index_in(base.tokens, value_set=tokens), -1).to_numpy(zero_copy_only=False)
    of_base: npt.NDArray[np.int64] = np.append(counts, 0)[positions]
    return of_base


def _idleness(
    base: Vocabulary, counts: npt.NDArray[np.int64], min_count: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Compute the idle runs and the last admitted count of the base's tokens, and of the new ones after them."""
    idle, last_counts = np.zeros_like(counts), counts.copy()
    previous = base.evolution
    idle[: len(base)] = 0 if previous is None else previous.idle
    last_counts[: len(base)] = base.counts if previous is None else previous.last_counts
    admitted = counts >= min_count
    return np.where(admitted, 0, idle + 1), np.where(admitted, counts, last_counts)


def _appended(before: int, after: int, max_size: int | None) -> npt.NDArray[np.int64]:
    return np.arange(after if max_size is None else max(before, min(after, max_size)))


def _check_any(name: str, rows: npt.NDArray[np.int64], expire_after: int | None) -> None:
    if not len(rows):
        raise ConfigError(
            f"`expire_after` {expire_after} leaves vocabulary {name!r} no token: the last runs admitted none; check "
            "the data, lower `min_count`, or let tokens expire later."
        )
