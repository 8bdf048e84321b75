"""Looks up the rows of tokens in an exported model whose vocabularies change while it is served.

The tokens of the export are in the static table of `TokenTable`. Tokens that came or went since then are in three
variables, sorted by a hash, which a lookup searches first. They are variables, and not a hash table of TensorFlow,
because two loads of one SavedModel in a process would share such a table.
"""

from __future__ import annotations

import os

import tensorflow as tf

from embedding_core.columns import TokenTable

GONE = -1
"""The row of a token that went: it is unknown from then on."""
NO_TOKEN = b"\n"
"""The first entry of every list of changed tokens, which is never empty: no token contains a line break."""
_HASHES = 2**63 - 1
_CPU = "/device:CPU:0"


def hashes_of(tokens: tf.Tensor) -> tf.Tensor:
    """Compute the hashes that the lists of changed tokens are sorted by, int64 of at least 0."""
    return tf.strings.to_hash_bucket_fast(tokens, _HASHES)


class ChangingTokenTable(TokenTable):
    """Maps tokens to rows of one table; deltas add, move and remove tokens.

    Attributes:
      hashes: int64 `[n]`, ascending: the hash of each changed token, after the least int64 for `NO_TOKEN`.
      changed: string `[n]`, the changed tokens.
      places: int64 `[n]`, their rows in the table; `GONE` for a token that went.
    """

    def __init__(self, vocabulary_file: str | os.PathLike[str], vocabulary_size: int, oov_rows: int) -> None:
        """Load the vocabulary of the export.

        Raises:
          VocabularyError: the file does not hold exactly `vocabulary_size - oov_rows` tokens.
        """
        super().__init__(vocabulary_file, vocabulary_size, oov_rows)
        with tf.device(_CPU):
            self.hashes = tf.Variable([tf.int64.min], shape=[None], dtype=tf.int64, trainable=False, name="hashes")
            self.changed = tf.Variable([NO_TOKEN], shape=[None], dtype=tf.string, trainable=False, name="changed")
            self.places = tf.Variable([GONE], shape=[None], dtype=tf.int64, trainable=False, name="places")

    def ids_of(self, tokens: tf.Tensor) -> tf.Tensor:
        """Look up the rows of tokens `[N]`: int64 `[N]`, -1 for an unknown token that has no row.

        A lookup that runs while a delta is written may read the three variables at different times, and is repeated.
        It must not fail, so positions are clipped to each of them.
        """
        found = tf.searchsorted(self.hashes.read_value(), hashes_of(tokens))
        same = tf.equal(_at(self.changed, found), tokens)
        exported = tf.constant(GONE, tf.int64) if self._table is None else self._table.lookup(tokens)
        row = tf.where(same, _at(self.places, found), exported)
        return tf.where(row < 0, self.unknown_ids(tokens), row)

    def _default(self) -> int:
        """Return -1 always: the number of tokens may not be in the graph, except as a `size_constant`."""
        return GONE

    def merged(self, tokens: tf.Tensor, places: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
        """Merge changes with those that are there, without writing them.

        Args:
          tokens: string `[m]`, each token once.
          places: int64 `[m]`.

        Returns:
          New values of `hashes`, `changed` and `places`; and whether they can be written, bool: a token may not be
          given twice, or have the hash of another one.
        """
        given = hashes_of(tokens)
        hashes = tf.concat([given, self.hashes.read_value()], 0)
        order = tf.argsort(hashes, stable=True)  # of equal hashes, the given one comes first
        hashes = tf.gather(hashes, order)
        changed = tf.gather(tf.concat([tokens, self.changed.read_value()], 0), order)
        rows = tf.gather(tf.concat([places, self.places.read_value()], 0), order)
        repeated = tf.equal(hashes[1:], hashes[:-1])
        sound = tf.reduce_all(tf.logical_not(repeated) | tf.equal(changed[1:], changed[:-1]))
        once = tf.equal(tf.size(tf.unique(given).y), tf.size(given))
        kept = tf.concat([[True], tf.logical_not(repeated)], 0)
        return (*(tf.boolean_mask(values, kept) for values in (hashes, changed, rows)), sound & once)


def _at(variable: tf.Variable, places: tf.Tensor) -> tf.Tensor:
    values = variable.read_value()
    return tf.gather(values, tf.minimum(places, tf.size(values) - 1))
