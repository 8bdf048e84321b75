"""Checks how features, row filters, slices and the split use the columns of the data."""

from __future__ import annotations

import re
from collections.abc import Callable

from components.example_gen.formats import format_of
from embedding_core.errors import ConfigError, nearest
from embedding_core.schema import Mistakes
from pipelines.config.columns import column_kinds, transform_columns
from pipelines.config.data import Data
from pipelines.config.files import data_files
from pipelines.config.pipeline_config import PipelineConfig


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


def _private_columns(config: PipelineConfig) -> dict[str, str]:
    """Return the columns that private features read, each with the name of the first feature that reads it."""
    columns: dict[str, str] = {}
    for feature in config.features.categorical:
        if feature.private:
            columns.setdefault(feature.source, feature.name)
    return columns


def _slices_show_nothing_private(config: PipelineConfig) -> Mistakes:
    private = _private_columns(config)
    for index, columns in enumerate(config.evaluation.slices):
        for column in (column for column in columns if column in private):
            yield (
                f"evaluation.slices.{index}",
                (
                    f"is {list(columns)!r}: {column!r} is the column of the private feature {private[column]!r}, and a "
                    "slice shows its values in reports; slice by another column."
                ),
            )


def _row_filters_show_nothing_private(config: PipelineConfig) -> Mistakes:
    private = _private_columns(config)
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


def _plain_features_show_nothing_private(config: PipelineConfig) -> Mistakes:
    """Require that all features of a private column are private: reports on the others would show its values."""
    private = _private_columns(config)
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


def _split_shows_nothing_private(config: PipelineConfig) -> Mistakes:
    private = _private_columns(config)
    column = getattr(config.split, "column", None)  # a hash key shows no value
    if column in private:
        yield (
            "split.column",
            (
                f"is {column!r}, the column of the private feature {private[column]!r}: its values would appear in the "
                "configuration and in messages; split by another column, or by hash with `key`."
            ),
        )


def _inputs_have_names_of_their_own(config: PipelineConfig) -> Mistakes:
    """Refuse columns with equal input names in the served model (`embedding_core.columns.raw_columns.input_name`)."""
    raw = {
        feature.source: f"features.categorical.{index}"
        for index, feature in enumerate(config.features.categorical)
        if not feature.after_transform
    }
    dense = {feature.source: f"features.dense.{index}" for index, feature in enumerate(config.features.dense)}
    columns = dict.fromkeys([*raw, *transform_columns(config, serving=True)])
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


COLUMN_RULES: list[tuple[frozenset[str], Callable[[PipelineConfig], Mistakes]]] = [
    (frozenset({"data", "features"}), _lists_are_in_the_data),
    (frozenset({"features", "evaluation"}), _slices_show_nothing_private),
    (frozenset({"features", "row_filters"}), _row_filters_show_nothing_private),
    (frozenset({"features"}), _plain_features_show_nothing_private),
    (frozenset({"features", "split"}), _split_shows_nothing_private),
    (frozenset({"features", "columns", "label", "labels", "sample_weight"}), _inputs_have_names_of_their_own),
    (
        frozenset({"data", "features", "columns", "label", "labels", "sample_weight", "evaluation"}),
        _whole_numbers_are_tokens,
    ),
]
