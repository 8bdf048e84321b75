"""Builds a two-tower retrieval model: its logit is the dot product of a query vector and a candidate vector.

Copy this file to write your own model. Serving treats a model with `query_features`, `candidate_features`,
`query_vectors` and `candidate_vectors` as a two-tower model, and then also returns the top k candidates of a query.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import tensorflow as tf
import tf_keras

from embedding_core.config import EmbeddingConfig
from embedding_core.errors import ConfigError
from pipelines.models.parts import FirstColumn, joined, mlp, one_vector

_layers = tf_keras.layers


class TwoTower(tf_keras.Model):
    """A model whose logit is the dot product of a query vector and a candidate vector.

    Attributes:
      query_features, candidate_features: names of the inputs of each tower.
    """

    query_features: tuple[str, ...]
    candidate_features: tuple[str, ...]
    query_tower: tf_keras.Model
    candidate_tower: tf_keras.Model

    def query_vectors(self, inputs: Mapping[str, tf.Tensor], *, training: bool = False) -> tf.Tensor:
        """Compute query vectors `[B, n]` from the activations and numbers that the query tower reads."""
        return _call(self.query_tower, inputs, training)

    def candidate_vectors(self, inputs: Mapping[str, tf.Tensor], *, training: bool = False) -> tf.Tensor:
        """Compute candidate vectors `[B, n]` from the activations and numbers that the candidate tower reads."""
        return _call(self.candidate_tower, inputs, training)


def _call(tower: tf_keras.Model, inputs: Mapping[str, tf.Tensor], training: bool) -> tf.Tensor:
    """Call a tower with the inputs that it was built from, a mapping by name."""
    return tower({name: inputs[name] for name in tower.input}, training=training)


class _Constant(tf_keras.layers.Layer):
    """Returns a column of ones, or of one trained scalar (initially 0), with as many rows as the input."""

    def __init__(self, *, trained: bool) -> None:
        super().__init__()
        self._value = self.add_weight(
            name="value", shape=(1, 1), initializer="zeros" if trained else "ones", trainable=trained
        )

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """Return `[B, 1]` for inputs `[B, ...]`."""
        return tf.repeat(self._value, tf.shape(inputs)[0], axis=0)


_NO_LENGTH = 1e-12  # square of a length


class UnitLength(tf_keras.layers.Layer):
    """Divides each vector by its length; a vector of zeros, as of an unknown token, stays as it is."""

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """Return `[B, n]` for inputs `[B, n]`."""
        squared = tf.reduce_sum(tf.square(inputs), 1, keepdims=True)
        # A vector of zeros is divided by 1: the gradient of `l2_normalize` there is a million times that of the output.
        return inputs * tf.math.rsqrt(tf.where(squared > _NO_LENGTH, squared, tf.ones_like(squared)))


def _choose(
    argument: str, names: Sequence[str], embeddings: Mapping[str, tf.Tensor], dense: Mapping[str, tf.Tensor]
) -> dict[str, tf.Tensor]:
    known = {**dense, **embeddings}
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        raise ConfigError(
            f"`{argument}` of the model is {list(names)!r}: name at least one feature, of {', '.join(sorted(known))}."
        )
    return {name: known[name] for name in names}


def _sum(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    return tensors[0] if len(tensors) == 1 else _layers.Add()(tensors)


def _tower(
    inputs: Mapping[str, tf.Tensor], width: int, hidden_units: Sequence[int], dropout: float, seed: int
) -> tf.Tensor:
    """Build a tower: the sum of its features' vectors, plus an MLP of them if there are `hidden_units`.

    Returns:
      The sum, `[B, width]`.
    """
    vectors = [one_vector(value) for value in inputs.values()]
    terms = [vector if vector.shape[-1] == width else _layers.Dense(width)(vector) for vector in vectors]
    if hidden_units:
        deep = mlp(joined(vectors), hidden_units, dropout=dropout, seed=seed)
        terms.append(_layers.Dense(width)(deep))
    return _sum(terms)


def _with_biases(query: tf.Tensor, candidate: tf.Tensor, *, normalize: bool) -> tuple[tf.Tensor, tf.Tensor]:
    """Turn the towers' sums, whose first columns are biases, into the vectors whose dot product is the logit."""
    query_bias, query_vector = FirstColumn()(query)
    candidate_bias, candidate_vector = FirstColumn()(candidate)
    if normalize:
        query_vector, candidate_vector = UnitLength()(query_vector), UnitLength()(candidate_vector)
    bias = _sum([query_bias, _Constant(trained=True)(query_bias)])
    ones = _Constant(trained=False)(query_bias), _Constant(trained=False)(candidate_bias)
    return (
        _layers.Concatenate()([query_vector, bias, ones[0]]),
        _layers.Concatenate()([candidate_vector, ones[1], candidate_bias]),
    )


def build(
    config: EmbeddingConfig,
    embeddings: Mapping[str, tf.Tensor],
    dense: Mapping[str, tf.Tensor],
    *,
    query_features: Sequence[str],
    candidate_features: Sequence[str],
    width: int | None = None,
    hidden_units: Sequence[int] = (),
    dropout: float = 0.0,
    normalize: bool = False,
    seed: int = 0,
) -> TwoTower:
    """Build the model.

    Each tower sums its features' vectors; with `hidden_units`, an MLP of them is added. The first column of the sum is
    the tower's bias, ``b_q`` or ``b_c``; ``b`` is one trained scalar. With one feature per tower and no MLP, this is
    matrix factorisation with biases. The query vector is ``[q, b_q + b, 1]`` and the candidate vector ``[c, 1, b_c]``:
    their dot product is the whole logit ``q . c + b_q + b_c + b``.

    Args:
      config: tables and features; unused here.
      embeddings: activations by feature, `[B, dim]`, or `[B, L, dim]` for a sequence, which is averaged over `L`.
      dense: dense features by name, `[B, 1]`.
      query_features: names of the features, also dense ones, that describe the query, such as the customer.
      candidate_features: names of the features that describe the candidate, such as the item.
      width: number of columns of a tower's sum, its bias included; None takes the width of the widest candidate
        feature. A linear layer maps features of another width to it.
      hidden_units: widths of each tower's MLP; empty for none.
      dropout: share of the MLP's values to drop while training.
      normalize: whether ``q`` and ``c`` are scaled to the length 1, so that ``q . c`` is their cosine; true by default
        in a configuration with `training.softmax`. The range of a cosine is too narrow for a softmax without a small
        `temperature`.
      seed: seed of the dropout masks.

    Returns:
      A model from all inputs of both towers to logits `[B, 1]`.

    Raises:
      ConfigError: a feature is unknown or in both towers, or a tower has no feature.
    """
    del config
    query = _choose("query_features", query_features, embeddings, dense)
    candidate = _choose("candidate_features", candidate_features, embeddings, dense)
    both = sorted(set(query) & set(candidate))
    if both:
        raise ConfigError(f"{both[0]!r} is in `query_features` and in `candidate_features`: a feature is in one tower.")
    width = width or max(tensor.shape[-1] for tensor in candidate.values())
    query_sum = _tower(query, width, hidden_units, dropout, seed)
    candidate_sum = _tower(candidate, width, hidden_units, dropout, seed + 1000)
    query_vector, candidate_vector = _with_biases(query_sum, candidate_sum, normalize=normalize)
    logit = _layers.Dot(axes=1, name="logit")([query_vector, candidate_vector])
    model = TwoTower([query, candidate], logit)
    model.query_features, model.candidate_features = tuple(query), tuple(candidate)
    model.query_tower = tf_keras.Model(query, query_vector)
    model.candidate_tower = tf_keras.Model(candidate, candidate_vector)
    return model
