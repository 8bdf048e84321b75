"""Provides layers for sequences `[B, L, dim]` of which only the first positions of each row are filled."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf
import tf_keras

from pipelines.models.parts import SeededDropout

_layers = tf_keras.layers
_CLOSED = -1e9  # attention logit of a masked position


def filled(sequence: tf.Tensor, lengths: tf.Tensor) -> tf.Tensor:
    """Return whether each position is filled, bool `[B, L]`, from the lengths `[B, 1]` of sequences `[B, L, dim]`."""
    return tf.cast(tf.range(tf.shape(sequence)[1]), lengths.dtype)[tf.newaxis] < lengths


class MaskedMean(tf_keras.layers.Layer):
    """The mean of the filled positions: `[B, L, dim]` and lengths `[B, 1]` -> `[B, dim]`; 0 for an empty sequence."""

    def call(self, inputs: Sequence[tf.Tensor]) -> tf.Tensor:
        """Return the mean of the sequence, given with its lengths."""
        sequence, lengths = inputs
        weight = tf.cast(filled(sequence, lengths), sequence.dtype)[..., tf.newaxis]
        return tf.math.divide_no_nan(tf.reduce_sum(sequence * weight, 1), tf.reduce_sum(weight, 1))


class LastPosition(tf_keras.layers.Layer):
    """The last filled position: `[B, L, dim]` and lengths `[B, 1]` -> `[B, dim]`; 0 for an empty sequence.

    A length above `L` counts as `L`.
    """

    def call(self, inputs: Sequence[tf.Tensor]) -> tf.Tensor:
        """Return the last vector of the sequence, given with its lengths."""
        sequence, lengths = inputs
        most = tf.shape(sequence)[1]
        last = tf.one_hot(tf.minimum(tf.cast(lengths[:, 0], tf.int32), most) - 1, most, dtype=sequence.dtype)
        return tf.einsum("bl,bld->bd", last, sequence)


class TargetAttention(tf_keras.layers.Layer):
    """Weighs the positions of a history by their relevance to a target, and sums them (DIN; Zhou et al., 2018).

    The weight of a position is an MLP of its vector, the target's, their difference and their product. As in the paper,
    the weights are not normalized: the size of the result tells how strong the interest is.
    """

    def __init__(self, units: Sequence[int], name: str | None = None) -> None:
        """Take the widths of the MLP's hidden layers."""
        super().__init__(name=name)
        self._hidden = [_layers.Dense(width, activation="sigmoid") for width in units]
        self._weight = _layers.Dense(1)

    def call(self, inputs: Sequence[tf.Tensor]) -> tf.Tensor:
        """Return `[B, dim]` for a history `[B, L, dim]`, its lengths `[B, 1]`, and a target `[B, dim]`."""
        history, lengths, target = inputs
        target = tf.repeat(target[:, tf.newaxis], tf.shape(history)[1], axis=1)
        values = tf.concat([history, target, history - target, history * target], -1)
        for layer in self._hidden:
            values = layer(values)
        weights = tf.where(filled(history, lengths), self._weight(values)[..., 0], 0.0)
        return tf.einsum("bl,bld->bd", weights, history)


class Positions(tf_keras.layers.Layer):
    """Multiplies the vectors of a sequence `[B, L, dim]` by sqrt(dim), and adds a trained vector for each position."""

    def build(self, input_shape: tf.TensorShape) -> None:
        """Create the vectors of the positions."""
        shape = (input_shape[-2], input_shape[-1])
        self._positions = self.add_weight(name="positions", shape=shape, initializer="random_normal", trainable=True)
        super().build(input_shape)

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """Return the sequence with its positions."""
        return inputs * float(inputs.shape[-1]) ** 0.5 + self._positions


class CausalAttention(tf_keras.layers.Layer):
    """Self-attention in which a position sees itself and the filled positions before it (Vaswani et al., 2017).

    If there is only one query, it is that of the last filled position, which sees all filled positions.
    """

    def __init__(self, heads: int, name: str | None = None) -> None:
        """Take the number of heads, which must divide dim."""
        super().__init__(name=name)
        self._heads = heads

    def build(self, input_shape: Sequence[tf.TensorShape]) -> None:
        """Create the projections."""
        dim = input_shape[0][-1]
        self._projections = [_layers.Dense(dim, use_bias=False) for _ in range(3)]
        for projection in self._projections:
            projection.build(input_shape[0])
        super().build(input_shape)

    def call(self, inputs: Sequence[tf.Tensor]) -> tf.Tensor:
        """Return `[B, Q, dim]` for Q queries (L or 1), the sequence `[B, L, dim]` they attend to, and its lengths."""
        queries, sequence, lengths = inputs
        (count, dim), length = queries.shape[1:], sequence.shape[1]
        width = dim // self._heads
        projected = [
            tf.transpose(tf.reshape(layer(value), [-1, value.shape[1], self._heads, width]), [0, 2, 1, 3])
            for layer, value in zip(self._projections, (queries, sequence, sequence), strict=True)
        ]
        logits = tf.matmul(projected[0], projected[1], transpose_b=True) / float(width) ** 0.5
        is_open = tf.linalg.band_part(tf.ones([length, length]), -1, 0)[tf.newaxis, -count:] > 0
        is_open &= filled(sequence, lengths)[:, tf.newaxis]
        weights = tf.nn.softmax(tf.where(is_open[:, tf.newaxis], logits, _CLOSED))
        return tf.reshape(tf.transpose(tf.matmul(weights, projected[2]), [0, 2, 1, 3]), [-1, count, dim])


def last_of_causal_blocks(
    sequence: tf.Tensor, lengths: tf.Tensor, *, blocks: int, heads: int, dropout: float, seed: int
) -> tf.Tensor:
    """Apply the blocks of SASRec (Kang and McAuley, 2018) and return the last filled position.

    A block is attention and a feed-forward layer, each with a residual. The last block is computed for the last
    position alone, since nothing reads the others.

    Args:
      sequence: `[B, L, dim]`.
      lengths: `[B, 1]`.
      blocks: number of blocks, at least 1.
      heads: number of heads of the attention; it must divide dim.
      dropout: share of the values to drop while training.
      seed: seed of the dropout masks.

    Returns:
      `[B, dim]`, normalized; 0 for an empty sequence.
    """
    dim = sequence.shape[-1]
    values = SeededDropout(dropout, seed=seed)(Positions()(sequence))
    for block in range(blocks):
        first = seed + 10 * (block + 1)
        queries = _layers.LayerNormalization(epsilon=1e-8)(values)
        if block == blocks - 1:
            queries = _layers.Reshape((1, dim))(LastPosition()([queries, lengths]))
        seen = CausalAttention(heads)([queries, values, lengths])
        values = _layers.Add()([queries, SeededDropout(dropout, seed=first)(seen)])
        normal = _layers.LayerNormalization(epsilon=1e-8)(values)
        inner = SeededDropout(dropout, seed=first + 1)(_layers.Dense(dim, activation="relu")(normal))
        inner = SeededDropout(dropout, seed=first + 2)(_layers.Dense(dim)(inner))
        values = _layers.Add()([normal, inner])
    return LastPosition()([_layers.LayerNormalization(epsilon=1e-8)(values), lengths])
