"""Checks the inputs of one chip, and sorts them by the stacks of tables that its SparseCores look up."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import tensorflow as tf

from embedding_core.engines import output_shapes as shapes
from embedding_core.engines.batches import FeatureIds
from embedding_core.engines.feeding import check_kinds, check_weights, ids_of
from embedding_core.engines.stack_ids import Limit, SortedIds, sorted_ids
from embedding_core.engines.stack_layouts import stacks_of_model
from embedding_core.errors import ConfigError, UnsupportedError
from embedding_core.feature_specs import FeatureSpec, Ids, Weights
from embedding_core.normal_form import NormalForm, with_valid_ids
from embedding_core.sparsecore import Slice, SparseCoreEmbeddingConfig, Stack
from embedding_core.translate import Model


class StackFeeder:
    """Sorts the ids of a chip by stack.

    Attributes:
      output_shapes: of each feature, fully defined.
      stacks: the stacks.
      features: positions of the features of each stack, by name of the stack.
    """

    def __init__(self, model: Model, slice_: Slice, config: SparseCoreEmbeddingConfig):
        """Stack the tables.

        Args:
          model: tables and features.
          slice_: the SparseCores.
          config: how tables are stacked.

        Raises:
          ConfigError (ValueError): a feature is a sequence, or the SparseCores of a chip cannot share its samples.
          DataError (ValueError): a feature has no output shape that is fully defined.
        """
        refuse_sequences(model)
        self._model, self._slice = model, slice_
        self.output_shapes = shapes.configured_shapes(model.features)
        shapes.check_defined(self.output_shapes, model.features)
        samples = dict.fromkeys((table.name for table in model.tables), 0)
        for place, feature in enumerate(model.features):
            _check_samples(feature, self.rows_of(place), slice_)
            samples[feature.table] += self.rows_of(place) * slice_.chips
        self.stacks = stacks_of_model(model, samples, slice_, apart=config.disable_table_stacking)
        self.features = {stack.name: self._features_of(stack) for stack in self.stacks}

    def _features_of(self, stack: Stack) -> list[int]:
        names = {table.name for table in stack.tables}
        return [place for place, feature in enumerate(self._model.features) if feature.table in names]

    def rows_of(self, place: int) -> int:
        """Return the number of samples of a feature on one chip."""
        return math.prod(self.output_shapes[place].as_list())

    def samples_of(self, stack: Stack) -> int:
        """Return the number of samples of all features of a stack on one chip."""
        return sum(self.rows_of(place) for place in self.features[stack.name])

    def limits(self, config: SparseCoreEmbeddingConfig) -> dict[str, Limit]:
        """Return the limits of each stack, by name.

        Raises:
          ConfigError (ValueError): the limits are of other stacks.
        """
        known, limits = config.limits_of([stack.name for stack in self.stacks]), {}
        for stack in self.stacks:
            buffer = config.max_ids_per_chip_per_sample * self.samples_of(stack) // self._slice.per_chip
            limits[stack.name] = Limit(stack.name, *known[stack.name], buffer, config.allow_id_dropping)
        return limits

    def sorted_ids(self, values: Sequence[Ids], weights: Sequence[Weights]) -> dict[str, SortedIds]:
        """Sort the flat inputs of one chip, by name of the stack.

        Raises:
          DataError (ValueError): a kind, shape or weight does not fit.
          tf.errors.InvalidArgumentError: an id is outside its table, or a weight is not finite.
        """
        features = self._model.features
        check_kinds(self._model, values)
        input_shapes = [shapes.input_shape(value, feature) for value, feature in zip(values, features, strict=True)]
        shapes.check_shapes(self.output_shapes, shapes.output_shapes(input_shapes, features), features)
        check_weights(self._model, values, weights)
        given = [_valid(*one) for one in zip(features, self.output_shapes, values, weights, strict=True)]
        places = self.features
        return {
            stack.name: sorted_ids(
                stack,
                self._slice,
                [features[place] for place in places[stack.name]],
                [given[place] for place in places[stack.name]],
            )
            for stack in self.stacks
        }


def refuse_sequences(model: Model) -> None:
    """Refuse sequence features, whose length TensorFlow's class for SparseCores (2.16 to 2.21) ignores.

    Raises:
      UnsupportedError (ValueError, NotImplementedError): a feature is a sequence.
    """
    for feature in model.features:
        if feature.max_sequence_length:
            raise UnsupportedError(
                f"`max_sequence_length` of feature {feature.path!r} is {feature.max_sequence_length!r}: TensorFlow's "
                "class for SparseCores would ignore it; leave it 0, and give each position a row of ids of its own. "
                "The Keras layer does so."
            )


def _check_samples(feature: FeatureSpec, rows: int, slice_: Slice) -> None:
    if not rows or rows % slice_.per_chip:
        raise ConfigError(
            f"`output_shape` of feature {feature.path!r} has {rows} samples: they must be a multiple of the "
            f"{slice_.per_chip} SparseCores of a chip, which share them."
        )


def _valid(feature: FeatureSpec, shape: tf.TensorShape, value: Ids, weight: Weights) -> FeatureIds:
    """Return the ids of a feature, all of which are within its table: a row beyond is one of another table."""
    found = ids_of(feature, shape, value, weight)
    if feature.invalid_id != "error":  # applied already
        return found
    return dataclasses.replace(found, ids=with_valid_ids(feature, NormalForm(found.ids, None, None, found.rows)).ids)
