"""Looks up the features of a batch in tables of this process; errors name the feature whose id is invalid."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import tensorflow as tf

from embedding_core.feature_specs import FeatureSpec, Ids, Weights
from embedding_core.lookup import combine
from embedding_core.normal_form import NormalForm, kind_of, normal_form, with_valid_ids


def normal_forms(
    features: Sequence[FeatureSpec],
    tables: Mapping[str, tf.Variable],
    values: Sequence[Ids],
    weights: Sequence[Weights],
    *,
    checked: bool = False,
) -> list[NormalForm]:
    """Return the normal form of each feature, after checking the weights of all features.

    Args:
      features: the features.
      tables: by name.
      values: ids of each feature; a scalar is one example.
      weights: weights of each feature, or None.
      checked: whether to check ids here too; needed for forms that are used without a lookup, which would check them.
    """
    forms = [
        _form(feature, tables[feature.table], value, weight, checked)
        for feature, value, weight in zip(features, values, weights, strict=True)
    ]
    parts = [form.weights for form in forms if form.weights is not None]
    if checked:
        parts += [form.ids for form in forms]
    if not parts:
        return forms
    with tf.control_dependencies(parts):  # if the ids or weights of one table are refused, no other table is trained
        return [dataclasses.replace(form, ids=tf.identity(form.ids)) for form in forms]


def _form(feature: FeatureSpec, table: tf.Variable, value: Ids, weight: Weights, checked: bool) -> NormalForm:
    form = normal_form(feature, tf.reshape(value, [1]) if _is_scalar(value) else value, weight)
    if feature.invalid_id == "error" and not checked and "GPU" not in table.device:  # on CPU the lookup itself fails
        return form
    return with_valid_ids(feature, form)


def _is_scalar(value: Ids) -> bool:
    return kind_of(value) == "dense" and value.shape.rank == 0


def look_up_forms(
    features: Sequence[FeatureSpec],
    tables: Mapping[str, tf.Variable],
    forms: Sequence[NormalForm],
    values: Sequence[Ids],
) -> list[tf.Tensor]:
    """Return the activations of each feature, float32 [*leading, dim]; [dim] for a scalar id.

    Raises:
      tf.errors.InvalidArgumentError: an id is outside its table.
    """
    activations = [
        _combined(tables[feature.table], form, feature) for feature, form in zip(features, forms, strict=True)
    ]
    return [tf.squeeze(rows, 0) if _is_scalar(value) else rows for rows, value in zip(activations, values, strict=True)]


def _combined(table: tf.Variable, form: NormalForm, feature: FeatureSpec) -> tf.Tensor:
    try:
        return combine(table, form, feature.combiner, feature.quantization, _operation(feature))
    except tf.errors.InvalidArgumentError as error:  # in eager mode; in a graph, the operation's name has the feature
        if "is not in [0," not in error.message:
            raise
        message = (
            f"An id of feature {feature.path!r} is outside table {feature.table!r}: correct the ids. {error.message}"
        )
        raise tf.errors.InvalidArgumentError(None, None, message) from error


def _operation(feature: FeatureSpec) -> str:
    """Return the name of the lookup's operation, which the message about an id outside the table contains."""
    letters = f"feature_{feature.path}_in_table_{feature.table}"
    return "".join(letter if letter.isascii() and letter.isalnum() else "_" for letter in letters)
