"""Translates the configuration into the arguments of each component, without importing TensorFlow."""

from __future__ import annotations

from components.example_gen.row_selection import SplitByFile
from components.example_gen.settings import CsvFormat, Settings
from embedding_core.config import ColumnConfig, InitializerConfig, TableOverrides, TableSettings
from embedding_core.errors import ConfigError
from embedding_core.planning.topology import named_topology
from embedding_core.quality_rules import RankingProtocol, RankingSettings, Rules, main_metric
from embedding_core.rooms import hooks
from embedding_core.schema import Json
from embedding_core.tasks import metric_name
from embedding_core.training_config import RemapPolicy, TrainingConfig, TrainingSettings
from pipelines.config import PipelineConfig, VocabularyLimits
from pipelines.config.column_rules import column_kinds
from pipelines.config.sections import data_spans

_DEFAULT_LIMITS = VocabularyLimits()
_FIRST_ORDER_TABLES = TableSettings(occurrences_per_column=10, initializer=InitializerConfig(scale=0.005))


def vocabulary_features(config: PipelineConfig) -> list[Json]:
    """Make `features` of TableConfigGen: one mapping for each feature."""
    # A feature's `name` is not its column's, and VocabularyGen measures the dtype.
    declared = [key for key in ColumnConfig.model_fields if key not in ("name", "dtype")]
    return [
        {
            "name": feature.name,
            "column": {"name": feature.source, **{key: getattr(feature, key) for key in declared}},
            "vocabulary": feature.vocabulary_name,
            "table": feature.table_name,
            "max_sequence_length": feature.max_sequence_length,
        }
        for feature in config.features.categorical
    ]


def counted_features(config: PipelineConfig) -> list[Json]:
    """Make `features` of VocabularyGen: those of TableConfigGen, and whether a column may be empty."""
    more = {"may_be_empty": True} if config.data.empty_columns == "allow" else {}
    return [{**feature, **more} for feature in vocabulary_features(config)]


def vocabulary_limits(config: PipelineConfig) -> dict[str, VocabularyLimits]:
    """Make `vocabularies` of VocabularyGen: the limits of every vocabulary in use."""
    names = dict.fromkeys(feature.vocabulary_name for feature in config.features.categorical)
    return {name: config.vocabularies.get(name, _DEFAULT_LIMITS) for name in names}


def table_overrides(config: PipelineConfig) -> dict[str, TableSettings]:
    """Make `tables` of TableConfigGen: the overrides of each table in use, and those of all tables ("*").

    In a model with first-order terms, rows start close to 0, and a table whose rows occur rarely has few columns: a
    first-order term learns from any start. A product of two rows close to 0 hardly learns, so tables of other models
    keep the planner's defaults (decision 12).
    """
    every = _FIRST_ORDER_TABLES if config.build_arguments.get("first_order") else TableSettings()
    tables = {"*": every.replace(optimizer=config.training.table_optimizer)}
    for feature in config.features.categorical:
        limits = config.vocabularies.get(feature.vocabulary_name, _DEFAULT_LIMITS)
        table = config.tables.get(feature.table_name, TableOverrides())
        tables[feature.table_name] = TableSettings(oov_rows=limits.oov_rows, **table.given())
    return tables


def planned_topology(config: PipelineConfig) -> str | None:
    """Make `topology` of TableConfigGen: the slice that the tables must fit in.

    The result is None if `training.topology` is null, or is hosts x cores such as "2x4" instead of a slice's name.
    """
    topology = config.training.topology
    return None if topology is None or "x" in topology else topology


def plans_with_rows(config: PipelineConfig) -> bool:
    """Return whether an optional room reads the training's rows when tables are planned.

    It does not for a `run_fn`, which may draw other batches.
    """
    topology = planned_topology(config)
    if topology is None or config.model.run_fn is not None:
        return False
    return any(room.reads_rows(named_topology(topology)) for room in hooks("components", "table_limits"))


def quality_rules(config: PipelineConfig) -> Rules:
    """Make `rules` of QualityGate: the least numbers of rows, how retrieval is measured, and bounds of its metrics."""
    return Rules(
        min_rows=config.evaluation.min_rows,
        min_rows_per_class=config.evaluation.min_rows_per_class,
        draws_negatives=config.training.draws_negatives,
        protocol=config.evaluation.protocol,
        retrieval=config.evaluation.retrieval,
        bounded_elsewhere=any(name in config.evaluation.thresholds for name in config.evaluation.ranked),
        bounded_metrics=tuple(
            name
            for name in (metric_name(config.tasks, task, main_metric(task)) for task in config.tasks)
            if (bounds := config.evaluation.thresholds.get(name)) and (bounds.min, bounds.max) != (None, None)
        ),
    )


def drawn_features(config: PipelineConfig) -> tuple[str, ...]:
    """Make `drawn_features` of TableHealth: the features whose tokens training draws from the whole vocabulary."""
    negatives, softmax = config.training.negatives, config.training.softmax
    drawn = [negatives.feature] if negatives is not None and not negatives.within_batch else []
    return (*drawn, *([softmax.feature] if softmax is not None and softmax.sampled else []))


def ranking_settings(config: PipelineConfig) -> RankingSettings | None:
    """Make `ranking` of Evaluator; None if no metric needs it."""
    evaluation = config.evaluation
    if not evaluation.ranked and "GroupAUC" not in (evaluation.metrics or ()):
        return None
    source = config.training.softmax or config.training.negatives
    given = {name: getattr(evaluation.protocol, name) for name in RankingProtocol.model_fields}
    return RankingSettings(
        **given,
        columns=tuple(column_kinds(config)),
        feature=None if source is None else source.feature,
        seed=config.seed,
    )


def remap_policy(config: PipelineConfig) -> RemapPolicy:
    """Make `policy` of CheckpointLoader: the choices for rows, tables and slots that the checkpoint does not have."""
    choices = {} if config.warm_start is None else config.warm_start.row_choices()
    return RemapPolicy(**choices, seed=config.seed)


def transform_config(config: PipelineConfig) -> Json:
    """Make `custom_config` of Transform: dense features, column, key and kind of labels, the sample weight's column."""
    return {
        "dense": [
            {"name": feature.name, "column": feature.source, "log1p": feature.log1p}
            for feature in config.features.dense
        ],
        "labels": [
            {"name": task.name, "column": config.targets[task.name].column, "key": task.key, "kind": task.kind}
            for task in config.tasks
        ],
        "sample_weight_column": config.sample_weight,
    }


def example_settings(config: PipelineConfig) -> Settings:
    """Make `settings` of ExampleGen.

    The settings do not contain the seed: runs with different seeds train and are evaluated on the same rows, which are
    ingested once.
    """
    labels = {name: label for name, label in config.targets.items() if label.column is not None}
    return Settings(
        columns=column_kinds(config),
        row_filters=config.row_filters,
        split=config.split if config.data.eval_path is None else SplitByFile(),
        allowed_bad_rate=config.data.allowed_bad_rate,
        spans=data_spans(config.data),
        csv=CsvFormat(**{name: getattr(config.data, name) for name in CsvFormat.model_fields}),
        labels=labels,
        other_labels=0 < len(labels) < len(config.targets),
        weight=config.sample_weight,
        single_valued=_single_valued(config),
        whole_numbers=config.data.whole_numbers,
        allow_empty=config.data.empty_columns == "allow",
        private=any(feature.private for feature in config.features.categorical),
        histories=config.data.histories,
    )


def _single_valued(config: PipelineConfig) -> tuple[str, ...]:
    """List the columns that may have at most one value per row: no lists, and none that only user code reads."""
    single = {feature.source for feature in config.features.dense if config.preprocessing_fn is None}
    for feature in config.features.categorical:
        if not (feature.multivalent or feature.separator or feature.after_transform):
            single.add(feature.source)
    return tuple(sorted(single if config.sample_weight is None else single | {config.sample_weight}))


def data_format(config: PipelineConfig) -> str:
    """Return `data_format` of ExampleGen: "csv", "tfrecord" or "parquet".

    Raises:
      ConfigError: `data.format` is null, because `load_config` did not load the configuration.
    """
    if config.data.format is None:
        raise ConfigError("`data.format` is null: it must be known; load the configuration with `load_config`.")
    return config.data.format


def trainer_config(config: PipelineConfig) -> Json:
    """Make `custom_config` of EmbeddingTrainer: what is trained and how."""
    return {
        "training": training_config(config).to_mapping(),
        "arguments": config.build_arguments,
        "dense": [feature.name for feature in config.features.dense],
        "tasks": [task.to_mapping() for task in config.tasks],
        "weight_key": "sample_weight" if config.sample_weight else None,
        "scaling": {
            feature.name: {"column": feature.source, "log1p": feature.log1p} for feature in config.features.dense
        },
        "dense_start": {} if config.warm_start is None else config.warm_start.dense_choices(),
    }


def training_config(config: PipelineConfig) -> TrainingConfig:
    """Make the trainer's TrainingConfig: the section `training`, the weights of the classes, and the seed.

    The optimizers of the tables are in `table_overrides`.
    """
    section = {name: getattr(config.training, name) for name in TrainingSettings.model_fields}
    negative, positive = (config.class_weights.get(label, 1.0) for label in ("0", "1"))
    return TrainingConfig(**section, class_weights=(negative, positive), seed=config.seed)
