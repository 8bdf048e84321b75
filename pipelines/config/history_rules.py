"""Checks how features, labels, filters, split and model use the columns that `data.histories` makes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from components.example_gen.history_section import split_mistakes
from embedding_core.errors import nearest
from embedding_core.schema import Mistakes
from pipelines.config.columns import column_kinds, column_uses, label_columns
from pipelines.config.feature_sections import Categorical
from pipelines.config.model import BUILT_IN_MODELS
from pipelines.config.pipeline_config import PipelineConfig

_MADE = "data.histories.columns"


def _histories_fit_the_split(config: PipelineConfig) -> Mistakes:
    yield from split_mistakes(config.data.histories, config.split)


def _new_columns_are_of_tokens(config: PipelineConfig) -> Mistakes:
    histories, kinds = config.data.histories, column_kinds(config)
    if histories is None:
        return
    for name, source in histories.columns.items():
        if kinds.get(source) == "float":
            rule = "which is read as a number: a history holds tokens; list another column."
            yield f"{_MADE}.{name}", f"is {source!r}, {rule}"
        if name not in kinds:
            read = [one for _, one, _ in column_uses(config)]
            rule = f"is read by no feature: {nearest(name, read)} A feature reads it with `multivalent: true`."
            yield f"{_MADE}.{name}", rule
        for path in _misused(config, name):
            rule = "which `data.histories` makes of tokens: only a categorical feature or `preprocessing_fn` reads it."
            yield path, f"reads column {name!r}, {rule}"


def _misused(config: PipelineConfig, name: str) -> Iterator[str]:
    for path, column, kind in column_uses(config):
        if column == name and (kind == "float" or column in label_columns(config)):
            yield path
    for index, row_filter in enumerate(config.row_filters):
        if row_filter.column == name:
            yield f"row_filters.{index}.column"
    for index, columns in enumerate(config.evaluation.slices):
        if name in columns:
            yield f"evaluation.slices.{index}"
    if name in config.split.columns:
        yield "split"
    if name in config.data.whole_numbers:
        yield "data.whole_numbers"


def _histories_are_read_whole(config: PipelineConfig) -> Mistakes:
    """Refuse features that would read only a part of a history."""
    histories = config.data.histories
    for path, feature in _features_of_histories(config):
        assert histories is not None
        if feature.separator is not None or not feature.multivalent:
            key = "multivalent" if feature.separator is None else "separator"
            given = getattr(feature, key)
            rule = f"but column {feature.source!r} is made by `data.histories`: set `multivalent: true` alone."
            yield f"{path}.{key}", f"is {given!r}, {rule}"
        length = feature.max_sequence_length
        cut = length < histories.max_length if isinstance(length, int) else length != "max"
        if length and cut:
            yield (
                f"{path}.max_sequence_length",
                (
                    f"is {length!r}, and histories have up to {histories.max_length} events, the oldest first: the "
                    f"latest would be cut off; write {histories.max_length}, or set `data.histories.max_length`."
                ),
            )


def _histories_show_nothing_private(config: PipelineConfig) -> Mistakes:
    private = {one.source: one.name for one in config.features.categorical if one.private}
    histories = config.data.histories
    for path, feature in _features_of_histories(config):
        assert histories is not None
        source = histories.columns[feature.source]
        if source in private and not feature.private:
            rule = f"lists column {source!r}, which is private as feature {private[source]!r}: set it to true."
            yield f"{path}.private", f"is False, but column {feature.source!r} {rule}"
    for index, row_filter in enumerate(() if histories is None else histories.remember):
        if row_filter.column in private and any(one.rule != "present" for one in row_filter.conditions):
            rule = f"the column of the private feature {private[row_filter.column]!r}; use `present` alone."
            yield f"data.histories.remember.{index}", f"gives a value of {row_filter.column!r}, {rule}"


def _features_of_histories(config: PipelineConfig) -> Iterator[tuple[str, Categorical]]:
    histories = config.data.histories
    for index, feature in enumerate(config.features.categorical):
        if histories is not None and feature.source in histories.columns and not feature.after_transform:
            yield f"features.categorical.{index}", feature


def _models_read_sequences(config: PipelineConfig) -> Mistakes:
    """Require that the features that `sequential` and `din` read as histories are sequences."""
    arguments = {"sequential": "history", "din": "histories"}
    argument = next((arguments[name] for name in arguments if config.model.module == BUILT_IN_MODELS[name]), "")
    given = config.model.arguments.get(argument)
    features = {one.name: one for one in config.features.categorical}
    for name in [given] if isinstance(given, str) else given if isinstance(given, list | tuple) else []:
        path = f"model.arguments.{argument}"
        if name not in features:
            yield path, f"names {name!r}: it must be a categorical feature; {nearest(str(name), features)}"
        elif not features[name].max_sequence_length:
            yield (
                path,
                (
                    f"names {name!r}, which has no `max_sequence_length`, and so no order: set it; `data.histories` "
                    "makes such a column of events in the order of their `time`."
                ),
            )


HISTORY_RULES: list[tuple[frozenset[str], Callable[[PipelineConfig], Mistakes]]] = [
    (frozenset({"data", "split"}), _histories_fit_the_split),
    (
        frozenset(
            {"data", "features", "label", "labels", "columns", "sample_weight", "row_filters", "evaluation", "split"}
        ),
        _new_columns_are_of_tokens,
    ),
    (frozenset({"data", "features"}), _histories_are_read_whole),
    (frozenset({"data", "features"}), _histories_show_nothing_private),
    (frozenset({"model", "features"}), _models_read_sequences),
]
