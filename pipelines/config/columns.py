"""Lists the columns of the data that the configuration reads, and the kind of each."""

from __future__ import annotations

from collections.abc import Iterator

from components.example_gen.label_section import ColumnKind, Label
from pipelines.config.pipeline_config import PipelineConfig


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


def transform_columns(config: PipelineConfig, *, serving: bool = False) -> tuple[str, ...]:
    """Return the raw columns that Transform reads, sorted.

    Args:
      config: the configuration.
      serving: whether to leave out the columns of the label and the sample weight, which a served model does not get.
    """
    not_served = {*label_columns(config), config.sample_weight} if serving else set()
    return tuple(sorted({column for _, column, _ in _transform_uses(config)} - not_served))
