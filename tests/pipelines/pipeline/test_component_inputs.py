import pytest

from components.example_gen.settings import Settings
from embedding_core.config import ColumnConfig, InitializerConfig, TableSettings
from embedding_core.optimizers import DEFAULT_OPTIMIZER
from embedding_core.training_config import DEFAULT_EPOCHS, DenseStart, RemapPolicy
from pipelines.config import config_from_mapping
from pipelines.config.column_rules import served_columns
from pipelines.config.pipeline_config import Model
from pipelines.pipeline import component_inputs


@pytest.fixture
def config(tmp_path):
    (tmp_path / "rows.csv").write_text("")
    values = {
        "data": {"path": "rows.csv", "allowed_bad_rate": 0.1},
        "label": {"key": "y", "columns": ["tips"]},
        "preprocessing_fn": "pipelines.examples.taxi.preprocessing_fn",
        "columns": {"lat": "float"},
        "class_weights": {1: 3},
        "split": {"by": "time", "column": "when", "before": "2011-11-01"},
        "row_filters": [{"column": "user", "present": True}, {"column": "n", "min": 1, "in": [1, 2]}],
        "features": {
            "dense": ["fare", {"name": "log_fare", "column": "fare", "log1p": True}],
            "categorical": [
                {"name": "item", "vocabulary": "v"},
                {"name": "last_items", "vocabulary": "v", "separator": "|", "max_sequence_length": "auto"},
                {"name": "cell", "after_transform": True},
                {"name": "own", "vocabulary": "v", "table": "own_rows", "column": "Own Item"},
            ],
        },
        "vocabularies": {"v": {"min_count": 2, "oov_rows": 3}},
        "tables": {"v": {"dim": 8, "initializer": "uniform"}},
        "evaluation": {"slices": ["country", "item"]},
    }
    return config_from_mapping(values, tmp_path)


def test_vocabulary_features_fit_column_config(config):
    features = component_inputs.vocabulary_features(config)
    assert [feature["table"] for feature in features] == ["v", "v", "cell", "own_rows"]
    assert [feature["vocabulary"] for feature in features] == ["v", "v", "cell", "v"]
    assert ColumnConfig(**features[1]["column"]).many
    assert features[3]["column"]["name"] == "Own Item"


def test_only_the_counting_is_told_that_columns_may_be_empty(config):
    allowed = config.replace(data=config.data.replace(empty_columns="allow"))
    assert component_inputs.counted_features(config) == component_inputs.vocabulary_features(config)
    assert component_inputs.vocabulary_features(allowed) == component_inputs.vocabulary_features(config)
    assert all(feature["may_be_empty"] for feature in component_inputs.counted_features(allowed))


@pytest.mark.room("sparse_cores")
@pytest.mark.parametrize(
    ("training", "model", "expected"),
    [
        ({"topology": "v6e-8"}, {}, True),
        ({"topology": "v5p-8"}, {}, True),
        ({"topology": "v3-8"}, {}, False),
        ({"topology": "2x4", "strategy": "simulated_tpu"}, {}, False),
        ({}, {}, False),
        ({"topology": "v6e-8"}, {"run_fn": "pipelines.examples.taxi.preprocessing_fn"}, False),
    ],
)
def test_rows_are_read_for_slices_with_sparse_cores(config, training, model, expected):
    values = config.to_mapping()
    values["training"].update(training)
    values["model"].update(model)
    assert component_inputs.plans_with_rows(config_from_mapping(values)) is expected


def test_policy_of_a_warm_start_is_what_the_loader_takes(config):
    policy = {"new_rows": "oov", "new_tables": "initialize", "changed_dim": "resize", "changed_optimizer": "convert"}
    warm = config_from_mapping({**config.to_mapping(), "seed": 3, "warm_start": {"checkpoint": "latest", **policy}})
    assert component_inputs.remap_policy(warm) == RemapPolicy(**policy, seed=3)
    assert component_inputs.remap_policy(config) == RemapPolicy()


def test_choices_for_the_dense_part_are_what_the_trainer_takes(config):
    said = {"checkpoint": "latest", "dense": "require", "dense_optimizer": "reset", "ranges": "recompute"}
    warm = config_from_mapping({**config.to_mapping(), "warm_start": said})
    start = DenseStart(folder="dense", **component_inputs.trainer_config(warm)["dense_start"])
    assert (start.dense, start.dense_optimizer, start.ranges) == ("require", "reset", "recompute")
    assert component_inputs.trainer_config(config)["dense_start"] == {}


def test_limits_and_overrides_are_by_vocabulary_and_table(config):
    limits = component_inputs.vocabulary_limits(config)
    assert {name: limit.counting_rule() for name, limit in limits.items()} == {
        "v": {"min_count": 2, "max_size": None},
        "cell": {"min_count": 1, "max_size": None},
    }
    tables = component_inputs.table_overrides(config)
    assert tables["*"].optimizer == DEFAULT_OPTIMIZER
    assert tables["v"] == TableSettings(oov_rows=3, dim=8, initializer=InitializerConfig(name="uniform"))
    assert tables["own_rows"] == TableSettings(oov_rows=3)


def test_tables_of_the_ranking_model_start_close_to_zero(config):
    rows = component_inputs.table_overrides(config.replace(model=Model(name="ranking")))["*"]
    earlier = Model(name="ranking", arguments={"first_order": False})
    assert component_inputs.table_overrides(config.replace(model=earlier))["*"].initializer is None
    others = component_inputs.table_overrides(config.replace(model=Model(name="dlrm")))["*"]
    assert (rows.initializer, rows.occurrences_per_column) == (InitializerConfig(scale=0.005), 10)
    assert (others.initializer, others.occurrences_per_column) == (None, None)


def test_example_settings_are_what_example_gen_reads(config):
    settings = Settings.from_json(component_inputs.example_settings(config).to_json())
    kinds = {"country": "token", "fare": "float", "item": "token", "last_items": "token", "lat": "float"}
    assert settings.columns == {**kinds, "tips": "float", "Own Item": "token"}
    assert len(settings.conditions) == 3
    assert settings.split.columns == ("when",)
    assert settings.allowed_bad_rate == 0.1


def test_transform_columns_leave_out_the_answer_when_serving(config):
    assert served_columns(config) == ("fare", "lat")


def test_training_is_what_the_trainer_reads(config):
    made = component_inputs.training_config(config)
    assert made.epochs == DEFAULT_EPOCHS
    assert made.class_weights == (1.0, 3.0)
    assert made.dense_optimizer.name == "adam"
