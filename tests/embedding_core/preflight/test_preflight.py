import json
import threading
from pathlib import Path

import pytest
import tensorflow as tf
import tf_keras

from embedding_core.config import EmbeddingConfig, FeatureConfig, TableConfig
from embedding_core.errors import ConfigError
from embedding_core.optimizers import FTRL, SGD, Adagrad, AdagradMomentum, Adam
from embedding_core.planning.topology import named_topology
from embedding_core.preflight import PipelineStep, Step, preflight, preflight_run
from embedding_core.preflight.trace import no_engine_yet, strategy_of_topology
from embedding_core.training_config import TrainingConfig

TRAINING = TrainingConfig(steps=10)
CONFIG = EmbeddingConfig(
    tables=(
        TableConfig(name="user", vocabulary_size=1_000_003, dim=16, optimizer=Adagrad(learning_rate=0.1)),
        TableConfig(name="item", vocabulary_size=50, dim=8, optimizer=SGD(learning_rate=0.1)),
    ),
    features=(FeatureConfig(name="u", table="user"), FeatureConfig(name="i", table="item")),
)


def with_optimizer(optimizer):
    tables = tuple(table.replace(optimizer=optimizer) for table in CONFIG.tables)
    return CONFIG.replace(tables=tables)


def two_lines(embedding, rows):
    """Make a caller's step, which enqueues a batch and applies gradients; it does nothing without an engine."""

    def step(batch):
        if hasattr(embedding, "dequeue"):
            embedding.enqueue(batch)
            embedding.apply_gradients(tf.nest.map_structure(tf.ones_like, embedding.dequeue()))

    return Step(step, dict.fromkeys("ui", tf.TensorSpec([rows, 1], tf.int64)))


def enqueues_on_the_host(embedding, rows):
    def step(batch):
        embedding.apply_gradients(tf.nest.map_structure(tf.ones_like, embedding.dequeue()))
        return tf.reduce_sum(batch["i"])

    return Step(step, dict.fromkeys("ui", tf.RaggedTensorSpec([rows, None], tf.int64)), embedding.enqueue)


def report(config=CONFIG, topology="v2-8", batch_size=64, **more):
    return preflight(config, named_topology(topology), batch_size=batch_size, **{"make_step": two_lines, **more})


def with_model(kind, monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parent)
    step = PipelineStep(model="planted", dense=["d"], arguments={"kind": kind}, training=TRAINING)
    return report(make_step=step, own_tables=True)


def kinds(found):
    return [finding.kind for finding in found.findings]


def test_own_step_is_traced_as_the_engine_would_get_it():
    found = report(topology="v3-32", batch_size=64, sizes="guessed")
    engine, data = found.program["engine"], json.loads(json.dumps(found.to_json()))
    assert (data["green"], data["sizes"]) == (True, "guessed")
    assert "not sufficient" in data["necessary_not_sufficient"]
    assert (engine["hosts"], engine["cores"]) == (4, 32)
    assert found.program["embedding_operations"]["SendTPUEmbeddingGradients"] == 1
    assert engine["features"] == [
        {"name": "i", "table": "item", "shape": [2]},
        {"name": "u", "table": "user", "shape": [2]},
    ]
    user = next(table for table in found.tables if table["name"] == "user")
    assert user["rows_per_host"] == [250_001, 250_001, 250_001, 250_000]


def test_step_may_enqueue_on_the_host_for_all_cores():
    found = report(make_step=enqueues_on_the_host)
    assert found.green
    assert found.program["embedding_operations"]["EnqueueTPUEmbeddingArbitraryTensorBatch"] == 8


def test_optimizer_parameters_and_rates_are_those_of_the_program():
    config = with_optimizer(Adam(learning_rate=0.5, beta_1=0.25, lazy_adam=False, clip_weight_max=2.0))
    table = report(config).program["engine"]["tables"][0]
    assert table["optimizer"] == "adam"
    assert table["learning_rate"] == 0.5
    assert table["parameters"]["beta1"] == 0.25
    assert table["parameters"]["use_non_lazy_adam"] is True
    assert table["parameters"]["clipping_limits"]["upper"] == 2.0


def test_rates_of_the_step_have_a_tag_for_each():
    step = PipelineStep(
        model="pipelines.models.ranking",
        dense=[],
        arguments={},
        training=TrainingConfig(steps=9, decay="linear"),
    )
    found = report(with_optimizer(SGD(learning_rate=0.1)), make_step=step, own_tables=True)
    assert [table["learning_rate"] for table in found.program["engine"]["tables"]] == [{"tag": 0}, {"tag": 0}]


@pytest.mark.parametrize(("batch_size", "remedy"), [(100, "pass 96 or 104"), (3, "pass 8")])
def test_batch_that_cores_cannot_share_is_found(batch_size, remedy):
    found = report(batch_size=batch_size)
    assert kinds(found) == ["batch"]
    assert found.findings[0].remedy == remedy


def test_table_too_large_is_found_without_taking_memory():
    large = CONFIG.tables[0].replace(vocabulary_size=1_500_000_000)
    found = report(CONFIG.replace(tables=(large, CONFIG.tables[1])))
    assert kinds(found) == ["memory"]
    assert "'user'" in found.findings[0].rule


def test_hyperparameters_that_the_hardware_ignores_are_found():
    found = report(with_optimizer(Adagrad(clip_weight_max=1.0, clipvalue=2.0)), "v5p-8")
    named = [finding.what for finding in found.findings if finding.kind == "hyperparameter"]
    assert len(named) == 4
    assert {"clip_weight_max", "clipvalue"} == {what.split("`")[1] for what in named}


def test_factor_that_is_ignored_may_be_multiplied_by_the_rate():
    decayed = {"weight_decay_factor": 0.1, "multiply_weight_decay_factor_by_learning_rate": True}
    found = report(with_optimizer(Adagrad(**decayed)), "v5e-8")
    assert [finding.what.split("`")[1] for finding in found.findings if finding.kind == "hyperparameter"] == [
        "weight_decay_factor"
    ] * 2


def test_hyperparameters_that_an_engine_plays_are_not_found():
    assert report(with_optimizer(FTRL(clip_weight_max=1.0, clipvalue=2.0))).green


def test_optimizer_that_keras_lacks_is_found_if_keras_trains():
    config = with_optimizer(AdagradMomentum())
    step = PipelineStep(model="pipelines.models.ranking", dense=[], arguments={}, training=TRAINING)
    found = report(config, "v5e-8", make_step=step, own_tables=True)
    assert "AdagradMomentum" in found.findings[0].what


def test_pipelines_own_step_is_traced_for_sparse_cores():
    """TensorFlow's class for SparseCores needs the number of rows in a core's batch before it makes the tables."""
    step = PipelineStep(model="pipelines.models.ranking", dense=["d"], arguments={}, training=TRAINING)
    found = report(topology="v6e-8", make_step=step, own_tables=True)
    assert found.green, found.findings
    assert found.hardware == "V2"
    assert any("SparseDenseMatmul" in kind for kind in found.program["embedding_operations"])


@pytest.mark.parametrize("topology", ["v2-8", "v5e-8"])
def test_tables_that_nothing_trains_are_found(topology):
    def looks_up_only(embedding, rows):
        def step(batch):
            if topology == "v2-8":
                embedding.enqueue(batch, training=False)
                return embedding.dequeue()
            return embedding(batch)

        return Step(step, dict.fromkeys("ui", tf.TensorSpec([rows, 1], tf.int64)))

    found = report(topology=topology, make_step=looks_up_only)
    assert kinds(found) == ["untrained"]
    assert "'user', 'item'" in found.findings[0].what


def test_table_is_not_taken_for_one_that_ends_with_a_number(monkeypatch):
    monkeypatch.setattr(preflight_run, "_written", lambda traced: {"user_1", "item_1"})
    config = CONFIG.replace(
        tables=(*CONFIG.tables, CONFIG.tables[0].replace(name="user_1")),
        features=(*CONFIG.features, FeatureConfig(name="u1", table="user_1")),
    )
    (found,) = preflight_run.untrained_findings(None, config, "V0")
    assert found.what.startswith("tables 'user', which")


def test_every_operation_without_a_kernel_is_named(monkeypatch):
    found = with_model("texts", monkeypatch)
    named = [finding.what for finding in found.findings if finding.kind == "kernel"]
    assert {what.split()[1] for what in named} == {"AsString", "StringToNumber", "StringFormat", "PrintV2"}
    assert all("planted.py:" in what for what in named)
    assert "dtype" in kinds(found)


def test_operation_inside_a_called_function_is_named(monkeypatch):
    found = with_model("inside", monkeypatch)
    assert kinds(found) == ["kernel"]
    assert "AsString, called by StatefulPartitionedCall" in found.findings[0].what


def test_shapes_and_types_that_a_tpu_lacks_but_xla_has_are_found(monkeypatch):
    found = with_model("shapes", monkeypatch)
    assert sorted(kinds(found)) == ["dtype", "shape", "shape"]
    assert {word for finding in found.findings for word in finding.what.split()} >= {"Unique", "Where", "complex128"}
    assert found.program["xla"]["whole"] == "compiled"
    assert any(note.startswith("float64") for note in found.notes)


def test_program_that_does_not_compile_as_a_whole_is_found(monkeypatch):
    found = with_model("values", monkeypatch)
    assert "compile" in kinds(found)
    assert any("must be a compile-time constant" in finding.what for finding in found.findings)


def test_step_that_cannot_be_traced_is_found_with_its_line(monkeypatch):
    found = with_model("python", monkeypatch)
    assert kinds(found) == ["step"]
    assert "planted.py" in found.findings[0].what
    assert found.program is None


def test_table_without_an_optimizer_is_refused():
    with pytest.raises(ConfigError, match="table 'user' is None"):
        report(with_optimizer(None))


def test_strategy_of_topology_is_refused_if_it_makes_variables():
    with pytest.raises(ConfigError, match="eagerly"):
        strategy_of_topology(named_topology("v2-8"), "V1")


def test_nothing_of_the_preflight_stays_behind():
    before = tf.Tensor.__bool__
    seen = []
    report()
    with no_engine_yet():
        other = threading.Thread(target=lambda: seen.append(bool(tf.constant(True)) and not tf.constant(False)))
        other.start()
        other.join()
        with tf.Graph().as_default(), pytest.raises(TypeError, match="bool"):
            bool(tf.compat.v1.placeholder(tf.bool))
    assert seen == [True]
    assert tf.Tensor.__bool__ is before
    assert isinstance(tf_keras.layers.Dense(1)(tf.ones([1, 2])).numpy().item(), float)
