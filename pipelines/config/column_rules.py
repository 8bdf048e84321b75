"""Checks how features, labels, filters, slices, split and histories use the columns of the data."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from components.example_gen.settings import ColumnKind, Histories, Label, format_of, split_mistakes
from embedding_core.errors import ConfigError, nearest
from embedding_core.schema import Mistakes
from pipelines.config.pipeline_config import BUILT_IN_MODELS, PipelineConfig
from pipelines.config.sections import Categorical, Data, data_files

# Lists the columns of the data that the configuration reads, and the kind of each.


def column_uses(config: PipelineConfig) -> Iterator[tuple[str, str, ColumnKind]]:
    """Yield the keys that read a column for the model or Transform: the key's path, the column, and its kind.

    The kind is "token" for a value as it is in the data, "float" for a number. Columns of row filters and splits are
    left out, because examples do not keep them. `column_kinds` adds the columns of the evaluation.
    """
    yield from _transform_uses(config)
    for index, feature in enumerate(config.features.categorical):
        if not feature.after_transform:
            yield f"features.categorical.{index}", feature.source, "token"


def _transform_uses(config: PipelineConfig) -> Iterator[tuple[str, str, ColumnKind]]:
    for index, feature in enumerate(config.features.dense):
        yield f"features.dense.{index}", feature.source, "float"
    for column, kind in config.columns.items():
        yield f"columns.{column}", column, kind
    for path, label in label_paths(config):
        if label.column is not None:
            yield f"{path}.column", label.column, "token" if label.kind == "multiclass" else "float"
        for column, kind in label.columns.items():
            yield f"{path}.columns.{column}", column, kind
    if config.sample_weight is not None:
        yield "sample_weight", config.sample_weight, "float"


def label_paths(config: PipelineConfig) -> Iterator[tuple[str, Label]]:
    """Yield the key of each label in the configuration, and the label."""
    for name, label in config.targets.items():
        yield "label" if config.label is not None else f"labels.{name}", label


def label_columns(config: PipelineConfig) -> set[str]:
    """Return the columns of the data that labels are read or computed from."""
    return {column for label in config.targets.values() for column in label.sources}


def column_kinds(config: PipelineConfig) -> dict[str, ColumnKind]:
    """Return the kind of every column of the examples, by name: the columns of model, Transform and evaluation.

    The columns of slices and of the user are a "token", unless something else reads them as a number.
    """
    kinds: dict[str, ColumnKind] = {column: kind for _, column, kind in column_uses(config)}
    user = () if config.evaluation.user is None else (config.evaluation.user,)
    for column in (column for columns in (*config.evaluation.slices, user) for column in columns):
        kinds.setdefault(column, "token")
    return dict(sorted(kinds.items()))


def served_columns(config: PipelineConfig) -> tuple[str, ...]:
    """Return the raw columns that Transform reads for a served model, sorted: not the label and the sample weight."""
    not_served = {*label_columns(config), config.sample_weight}
    return tuple(sorted({column for _, column, _ in _transform_uses(config)} - not_served))


# Checks how features, row filters, slices and the split use the columns of the data.

DECLARED: list[tuple[frozenset[str], Callable[[PipelineConfig], Mistakes]]] = []
"""The rules, each with the sections that it reads: it runs only if these have no mistakes."""


def reads(*needs: str) -> Callable[[Callable[[PipelineConfig], Mistakes]], Callable[[PipelineConfig], Mistakes]]:
    """Return a decorator that adds a function to `DECLARED`, with the sections that it reads."""

    def add(function: Callable[[PipelineConfig], Mistakes]) -> Callable[[PipelineConfig], Mistakes]:
        DECLARED.append((frozenset(needs), function))
        return function

    return add


@reads("data", "features")
def _lists_are_in_the_data(config: PipelineConfig) -> Mistakes:
    if not _is_csv(config.data):
        return
    made = () if config.data.histories is None else config.data.histories.columns
    for index, feature in enumerate(config.features.categorical):
        in_the_data = not feature.after_transform and feature.source not in made
        if feature.multivalent and feature.separator is None and in_the_data:
            yield (
                f"features.categorical.{index}.multivalent",
                (
                    "is True, but CSV has no lists: each field would be one token; say what splits it, "
                    'such as `separator: "|"`.'
                ),
            )


def _is_csv(data: Data) -> bool:
    try:
        return (data.format or format_of(data_files(data)[0])) == "csv"
    except ConfigError:  # another rule reports that the file is missing
        return False


def private_columns(config: PipelineConfig) -> dict[str, str]:
    """Return the columns whose values private features read, each with the name of the first such feature.

    They include the columns that `data.histories` makes such a feature's column of.
    """
    made = {} if config.data is None or config.data.histories is None else config.data.histories.columns
    columns: dict[str, str] = {}
    for feature in config.features.categorical:
        if feature.private:
            for column in {feature.source, made.get(feature.source, feature.source)}:
                columns.setdefault(column, feature.name)
    return columns


@reads("features", "evaluation")
def _slices_show_nothing_private(config: PipelineConfig) -> Mistakes:
    private = private_columns(config)
    for index, columns in enumerate(config.evaluation.slices):
        for column in (column for column in columns if column in private):
            yield (
                f"evaluation.slices.{index}",
                (
                    f"is {list(columns)!r}: {column!r} is the column of the private feature {private[column]!r}, and a "
                    "slice shows its values in reports; slice by another column."
                ),
            )


@reads("features", "row_filters")
def _row_filters_show_nothing_private(config: PipelineConfig) -> Mistakes:
    private = private_columns(config)
    for index, row_filter in enumerate(config.row_filters):
        if row_filter.column not in private:
            continue
        for condition in row_filter.conditions:
            if condition.rule != "present":
                # The message does not repeat the value, because messages are written to logs.
                yield (
                    f"row_filters.{index}.{condition.rule}",
                    (
                        f"gives a value of {row_filter.column!r}, the column of the private feature "
                        f"{private[row_filter.column]!r}, and reports show it; use `present` alone, or filter the rows "
                        "before they come here."
                    ),
                )


@reads("features")
def _plain_features_show_nothing_private(config: PipelineConfig) -> Mistakes:
    """Require that all features of a private column are private: reports on the others would show its values."""
    private = private_columns(config)
    for kind in ("categorical", "dense"):
        for index, feature in enumerate(getattr(config.features, kind)):
            if feature.source in private and not getattr(feature, "private", False):
                remedy = "give it `private: true` as well" if kind == "categorical" else "remove one of them"
                yield (
                    f"features.{kind}.{index}",
                    (
                        f"reads column {feature.source!r}, which is private as feature {private[feature.source]!r}, "
                        f"and would show its values in reports; {remedy}."
                    ),
                )


@reads("features", "split")
def _split_shows_nothing_private(config: PipelineConfig) -> Mistakes:
    private = private_columns(config)
    column = getattr(config.split, "column", None)  # a hash key shows no value
    if column in private:
        yield (
            "split.column",
            (
                f"is {column!r}, the column of the private feature {private[column]!r}: its values would appear in the "
                "configuration and in messages; split by another column, or by hash with `key`."
            ),
        )


@reads("features", "columns", "label", "labels", "sample_weight")
def _inputs_have_names_of_their_own(config: PipelineConfig) -> Mistakes:
    """Refuse columns with equal input names in the served model (`embedding_core.columns.input_name`)."""
    raw = {
        feature.source: f"features.categorical.{index}"
        for index, feature in enumerate(config.features.categorical)
        if not feature.after_transform
    }
    dense = {feature.source: f"features.dense.{index}" for index, feature in enumerate(config.features.dense)}
    columns = dict.fromkeys([*raw, *served_columns(config)])
    first: dict[str, str] = {}
    for column in columns:
        other = first.setdefault(input_key(column), column)
        if other != column:
            path = raw.get(column) or dense.get(column) or f"columns.{column}"
            yield (
                path,
                (
                    f"reads column {column!r}, but column {other!r} would have the same name among the served "
                    "model's inputs, which ignore capitals and replace signs by `_`; rename one of them in the data."
                ),
            )


def input_key(column: str) -> str:
    """Return the input name of a column in lower case, which no other column may have."""
    name = re.sub(r"\W", "_", column, flags=re.ASCII)
    name = name if name[:1].isalpha() else f"column_{name.lstrip('_')}"
    return name.lower()  # TensorFlow's signatures ignore case


@reads("data", "features", "columns", "label", "labels", "sample_weight", "evaluation")
def _whole_numbers_are_tokens(config: PipelineConfig) -> Mistakes:
    kinds = column_kinds(config)
    histories = config.data.histories
    events = () if histories is None else (histories.user, *histories.sources)
    kinds = {**dict.fromkeys(events, "token"), **kinds}
    known = [name for name, kind in kinds.items() if kind == "token"]
    for index, name in enumerate(config.data.whole_numbers):
        if kinds.get(name) != "token":
            yield (
                f"data.whole_numbers.{index}",
                f"is {name!r}: it must be a column that is read as tokens; {nearest(name, known)}",
            )


# Checks how features, labels, filters, split and model use the columns that `data.histories` makes.

_MADE = "data.histories.columns"


@reads("data", "split")
def _histories_fit_the_split(config: PipelineConfig) -> Mistakes:
    if config.data.eval_path is None:
        yield from split_mistakes(config.data.histories, config.split)


@reads("data", "features", "label", "labels", "columns", "sample_weight", "row_filters", "evaluation", "split")
def _new_columns_are_of_tokens(config: PipelineConfig) -> Mistakes:
    histories, kinds = config.data.histories, column_kinds(config)
    if histories is None:
        return
    for name, source in histories.columns.items():
        if kinds.get(source) == "float":
            rule = "which is read as a number: a history holds tokens; list another column."
            yield f"{_MADE}.{name}", f"is {source!r}, {rule}"
        if name not in kinds:
            read = [column for _, column, _ in column_uses(config)]
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


@reads("data", "features")
def _histories_are_read_whole(config: PipelineConfig) -> Mistakes:
    """Refuse features that would read only a part of a history."""
    for path, feature, histories in _features_of_histories(config):
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


@reads("data", "features")
def _histories_show_nothing_private(config: PipelineConfig) -> Mistakes:
    private = private_columns(config)
    for path, feature, histories in _features_of_histories(config):
        source = histories.columns[feature.source]
        if source in private and not feature.private:
            rule = f"lists column {source!r}, which is private as feature {private[source]!r}: set it to true."
            yield f"{path}.private", f"is False, but column {feature.source!r} {rule}"
    remember = () if config.data.histories is None else config.data.histories.remember
    for index, row_filter in enumerate(remember):
        if row_filter.column in private and any(condition.rule != "present" for condition in row_filter.conditions):
            rule = f"the column of the private feature {private[row_filter.column]!r}; use `present` alone."
            yield f"data.histories.remember.{index}", f"gives a value of {row_filter.column!r}, {rule}"


def _features_of_histories(config: PipelineConfig) -> Iterator[tuple[str, Categorical, Histories]]:
    """Yield the key of each feature that reads a history, the feature, and the section of the histories."""
    histories = config.data.histories
    for index, feature in enumerate(config.features.categorical):
        if histories is not None and feature.source in histories.columns and not feature.after_transform:
            yield f"features.categorical.{index}", feature, histories


@reads("model", "features")
def _models_read_sequences(config: PipelineConfig) -> Mistakes:
    """Require that the features that `sequential` and `din` read as histories are sequences."""
    arguments = {"sequential": "history", "din": "histories"}
    argument = next((arguments[name] for name in arguments if config.model.module == BUILT_IN_MODELS[name]), "")
    given = config.model.arguments.get(argument)
    features = {feature.name: feature for feature in config.features.categorical}
    for name in [given] if isinstance(given, str) else given if isinstance(given, list | tuple) else []:
        path = f"model.arguments.{argument}"
        if not isinstance(name, str):
            continue  # the check of the argument's type reports it
        if name not in features:
            yield path, f"names {name!r}: it must be a categorical feature; {nearest(name, features)}"
        elif not features[name].max_sequence_length:
            yield (
                path,
                (
                    f"names {name!r}, which has no `max_sequence_length`, and so no order: set it; `data.histories` "
                    "makes such a column of events in the order of their `time`."
                ),
            )
