"""A vocabulary made from today's counts and yesterday's vocabulary, its base; no TensorFlow.

The rule, run after run (a run counts the data of a day, a month, whatever the pipeline is run on):

* A token is *admitted* in a run in which it is counted at least `min_count` times. It is *idle* for as many runs as
  have passed without that.
* A token expires when it has been idle for `expire_after` runs. So, but for `max_size`, the tokens that have not
  expired are those to which plain counting would have given a row in at least one of the last `expire_after` runs.
  Without `expire_after` no token expires.
* "rerank" gives rows to all tokens that have not expired, in the total order of the counts of the run that last
  admitted each (an idle token keeps its place among the frequent ones), `max_size` of them at most. Rows move: a
  checkpoint is remapped by token.
* "append" leaves the tokens of the base in their rows, expired ones too, and puts those newly admitted after them in
  the total order of this run's counts, up to `max_size` rows in all. An expired token's row is a tombstone: it is
  reserved for that token, which finds its own row again should it come back. The plain file of the base is the
  beginning of the new one. Space is given back by a run in mode "rerank".

What a token without a row was counted is not remembered. `docs/decisions/0008-vocabulary-evolution.md` says why.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from embedding_core.config import EvolutionMode
from embedding_core.errors import ConfigError
from embedding_core.vocabulary import (
    Evolution,
    FeatureSummary,
    Vocabulary,
    representable,
    total_order,
)

__all__ = ["evolved_vocabulary"]


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
    """Put this run's tokens and those of an earlier vocabulary together, by the rule above.

    Args:
      base: the earlier vocabulary, with a base of its own or without.
      tokens: [n] large_binary, each distinct token of this run once, in any order.
      counts: [n] int64, of this run.
      mode: "append" or "rerank".
      expire_after: runs; >= 1, or None.
      min_count: least count in a run that admits a token; >= 1.
      max_size: most tokens with a row; None for no limit.
      private: whether tokens may be shown only as digests.
      features: what was found out about each feature in this run.

    Returns:
      A vocabulary of the base's name, whose `counts`, `total_count` and `coverage` are of this run's data.

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
    """Where the tokens are that are admitted and that the base does not have, in their total order."""
    known = pc.is_in(tokens, value_set=base.tokens).to_numpy(zero_copy_only=False)
    fresh = np.flatnonzero(~known & (counts >= min_count))
    return fresh[total_order(tokens.take(pa.array(fresh)), counts[fresh])]


def _counts_of(base: Vocabulary, tokens: pa.Array, counts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """This run's count of each token of the base."""
    place = pc.fill_null(pc.index_in(base.tokens, value_set=tokens), -1).to_numpy(zero_copy_only=False)
    found: npt.NDArray[np.int64] = np.append(counts, 0)[place]
    return found


def _idleness(
    base: Vocabulary, counts: npt.NDArray[np.int64], min_count: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Idle runs and last admitted count of the base's tokens and of the new ones after them."""
    idle, last_counts = np.zeros_like(counts), counts.copy()
    earlier = base.evolution
    idle[: len(base)] = 0 if earlier is None else earlier.idle
    last_counts[: len(base)] = base.counts if earlier is None else earlier.last_counts
    admitted = counts >= min_count
    return np.where(admitted, 0, idle + 1), np.where(admitted, counts, last_counts)


def _appended(before: int, after: int, max_size: int | None) -> npt.NDArray[np.int64]:
    return np.arange(after if max_size is None else max(before, min(after, max_size)))


def _check_any(name: str, rows: npt.NDArray[np.int64], expire_after: int | None) -> None:
    if not len(rows):
        raise ConfigError(
            f"`expire_after` {expire_after} leaves vocabulary {name!r} no token: none was counted often enough in the "
            "last runs; check the data, lower `min_count`, or let tokens expire later."
        )
