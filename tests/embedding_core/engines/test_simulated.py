"""The simulated TPU: order of batches, stale activations, checkpoints, initial rows, datasets and invalid calls."""

import gc

import numpy as np
import pytest
import tensorflow as tf

from embedding_core import SGD, Adagrad, Adam, EmbeddingConfig, FeatureConfig, TableConfig
from embedding_core.engines import HostEngine, TPUEmbedding, initialize_simulated_tpu, simulated_tpu
from tests.support.engine_steps import this_core

tpu = tf.tpu.experimental.embedding
CONFIG = EmbeddingConfig(
    tables=(TableConfig(name="t", vocabulary_size=7, dim=2, combiner="sum"),),
    features=(FeatureConfig(name="f", table="t"),),
)
IDS = {"f": tf.constant([0, 1])}


@pytest.fixture(autouse=True)
def _collected():
    """Collect garbage before each test: a collection during tracing can wait forever for the thread of a dataset."""
    gc.collect()


def embedding_on(hosts=1, cores=2, optimizer=None, config=CONFIG, **arguments):
    strategy = simulated_tpu(hosts=hosts, cores_per_host=cores)
    with strategy.scope():
        embedding = TPUEmbedding(config, optimizer or SGD(learning_rate=1.0), **arguments)
    embedding.build(2)
    return strategy, embedding


def table_of(embedding, slot="parameters"):
    return embedding._engine.variables["t"][slot].numpy()


def train_on(strategy, embedding):
    """Return a step that gives every activation the gradient -1: with SGD(1.0), each lookup adds 1 to its row."""

    @tf.function
    def step(ids):
        def on_core():
            activations = embedding.dequeue()
            embedding.apply_gradients({"f": -tf.ones_like(activations["f"])})
            return activations["f"]

        embedding.enqueue(ids)
        return strategy.experimental_local_results(strategy.run(on_core))[0]

    return step


def evaluate_on(strategy, embedding):
    @tf.function
    def step(ids):
        embedding.enqueue(ids, training=False)
        return strategy.experimental_local_results(strategy.run(lambda: embedding.dequeue()["f"]))[0]

    return step


@pytest.mark.parametrize(("pipelined", "expected"), [(False, [0, 2, 4, 6]), (True, [0, 0, 2, 4])])
def test_activations_are_one_step_old_when_pipelined(pipelined, expected):
    strategy, embedding = embedding_on(pipeline_execution_with_tensor_core=pipelined)
    first, step = table_of(embedding)[0], train_on(strategy, embedding)
    found = [step(IDS).numpy()[0] - first for _ in expected]
    np.testing.assert_allclose(found, np.array(expected, np.float32)[:, None] * np.ones(2), atol=1e-5)
    np.testing.assert_allclose(table_of(embedding)[0] - first, [8, 8], atol=1e-5)


def test_pipelined_lookup_sees_restored_rows(tmp_path):
    strategy, embedding = embedding_on(pipeline_execution_with_tensor_core=True)
    checkpoint = tf.train.Checkpoint(embedding=embedding)
    path, first = checkpoint.write(str(tmp_path / "x")), table_of(embedding)
    step = train_on(strategy, embedding)
    step(IDS), step(IDS)
    checkpoint.read(path).assert_consumed()
    np.testing.assert_array_equal(evaluate_on(strategy, embedding)(IDS).numpy(), first[:2])


def test_pipelining_with_adam_that_moves_every_row():
    strategy, embedding = embedding_on(optimizer=Adam(lazy_adam=False), pipeline_execution_with_tensor_core=True)
    first, step = table_of(embedding), train_on(strategy, embedding)
    step(IDS)
    np.testing.assert_array_equal(step({"f": tf.constant([1, 5])}).numpy(), first[[1, 5]])


def test_none_gradient_counts_as_zeros():
    strategy, embedding = embedding_on(optimizer=Adam())
    embedding._engine.variables["t"]["momenta"].assign(tf.ones([7, 2]))
    embedding.enqueue(IDS)

    def step():
        embedding.dequeue()
        embedding.apply_gradients({"f": None})

    strategy.run(step)
    np.testing.assert_allclose(table_of(embedding, "momenta")[:3, 0], [0.9, 0.9, 1.0], rtol=1e-6)


def test_eager_step_is_the_traced_one():
    strategy, embedding = embedding_on()
    other_strategy, other = embedding_on()
    with_graph = train_on(strategy, embedding)(IDS)
    eager = train_on(other_strategy, other).python_function(IDS)
    np.testing.assert_array_equal(eager.numpy(), with_graph.numpy())
    np.testing.assert_array_equal(table_of(other), table_of(embedding))


def test_first_rows_are_the_same_on_every_topology():
    host = HostEngine(CONFIG, seed=5, with_slots=False).embedding_tables["t"].numpy()
    for hosts, cores in ((1, 1), (2, 2)):
        np.testing.assert_array_equal(table_of(embedding_on(hosts, cores, seed=5)[1]), host)
    (tables_only,) = TPUEmbedding(CONFIG, None, seed=5).embedding_tables.values()
    np.testing.assert_array_equal(tables_only.numpy(), host)


def test_tensorflows_own_class_reads_the_checkpoint(tmp_path):
    strategy, embedding = embedding_on(optimizer=Adagrad())
    train_on(strategy, embedding)(IDS)
    path = tf.train.Checkpoint(embedding=embedding).write(str(tmp_path / "x"))
    table = tpu.TableConfig(7, 2, name="t")
    theirs = tpu.TPUEmbedding(tpu.FeatureConfig(table), tpu.Adagrad())
    theirs.build()
    tf.train.Checkpoint(embedding=theirs).read(path).assert_consumed()
    np.testing.assert_array_equal(theirs.embedding_tables[table].numpy(), table_of(embedding))


def test_dataset_function_is_called_once_per_host():
    strategy = simulated_tpu(hosts=2, cores_per_host=2)
    contexts = []

    def dataset(context):
        contexts.append((context.num_input_pipelines, context.input_pipeline_id, context.num_replicas_in_sync))
        start = 100 * context.input_pipeline_id
        return tf.data.Dataset.range(start, start + 8).batch(2, drop_remainder=True)

    options = tf.distribute.InputOptions(experimental_fetch_to_device=False)
    batch = next(iter(strategy.distribute_datasets_from_function(dataset, options)))
    assert contexts == [(2, 0, 4), (2, 1, 4)]
    local = [value.numpy().tolist() for value in strategy.experimental_local_results(batch)]
    assert local == [[0, 1], [2, 3], [100, 101], [102, 103]]


@pytest.mark.parametrize(
    ("hosts", "rows", "expected"),
    [(2, 3, [((2, 2), (0, 0)), ((1, 2), (2, 0))]), (4, 1, [((1, 2), (0, 0))])],
    ids=["rows on each host", "hosts without rows"],
)
def test_sharding_aware_initializer_is_called_per_host(hosts, rows, expected):
    blocks = []

    def initializer(shape, dtype, shard_info):
        blocks.append(shard_info)
        return tf.cast(tf.range(shard_info.shape[0])[:, None] + [[0, 0]], dtype) + shard_info.offset[0]

    feature = tpu.FeatureConfig(tpu.TableConfig(rows, 2, initializer=initializer, name="t"))
    strategy, embedding = embedding_on(hosts=hosts, cores=1, config={"f": feature})
    assert blocks == expected
    np.testing.assert_array_equal(table_of(embedding)[:, 0], range(rows))
    train_on(strategy, embedding)({"f": tf.constant([0, 0])})
    np.testing.assert_array_equal(table_of(embedding)[:, 0], [2 * hosts, *range(1, rows)])


def test_callers_configuration_is_never_changed():
    table = tpu.TableConfig(7, 2)
    embedding_on(config=tpu.FeatureConfig(table), optimizer=tpu.SGD(1.0))
    TPUEmbedding(tpu.FeatureConfig(table), tpu.SGD(1.0)).build()
    assert table.name is None
    assert table.optimizer is None


@pytest.mark.parametrize("kind", ["callable", "callable with a default", "schedule"])
def test_learning_rates_are_evaluated_every_step(kind):
    number = tf.Variable(0.0)
    rates = {
        "callable": lambda: 1.0 - 0.5 * number,
        "callable with a default": lambda slope=0.5: 1.0 - slope * number,
        "schedule": tf.keras.optimizers.schedules.PiecewiseConstantDecay([0], [1.0, 0.5]),
    }
    strategy, embedding = embedding_on(optimizer=SGD(learning_rate=rates[kind]))
    step, found = train_on(strategy, embedding), [table_of(embedding)[0, 0]]
    for _ in range(2):
        step(IDS)
        number.assign_add(1.0)
        found.append(table_of(embedding)[0, 0])
    np.testing.assert_allclose(np.diff(found), [2, 1], atol=1e-5)


def test_evaluation_may_dequeue_in_a_nested_function():
    strategy, embedding = embedding_on()

    @tf.function
    def step(ids):
        embedding.enqueue(ids, training=False)
        nested = tf.function(lambda: embedding.dequeue()["f"])
        return strategy.experimental_local_results(strategy.run(lambda: nested() * 2.0))

    for found in step(IDS):
        np.testing.assert_array_equal(found.numpy(), 2.0 * table_of(embedding)[:2])


def after_enqueuing(on_core, times=1):
    """Return a call that enqueues batches, and then runs a function of the embedding on every core."""

    def call(strategy, embedding):
        for _ in range(times):
            embedding.enqueue(IDS)
        strategy.run(lambda: on_core(embedding))

    return call


def two_lookups(embedding):
    embedding.dequeue()
    return embedding.dequeue()["f"]


def gradients_twice(embedding):
    gradients = embedding.dequeue()
    embedding.apply_gradients(gradients)
    embedding.apply_gradients(gradients)


def gradients_in_a_condition(embedding):
    gradients = embedding.dequeue()
    tf.cond(gradients["f"][0, 0] > -100.0, lambda: embedding.apply_gradients(gradients), lambda: None)


def lookup_in_a_condition(embedding):
    tf.cond(tf.random.uniform([]) < 2.0, lambda: embedding.dequeue()["f"], lambda: tf.zeros([2, 2]))


def enqueue_in_a_nested_function(strategy, embedding):
    nested = tf.function(lambda: embedding.enqueue(IDS))
    strategy.run(lambda: nested() and None)


def different_batches(strategy, embedding):
    for core, device in enumerate(strategy.extended.worker_devices):
        embedding.enqueue(IDS, training=core == 0, device=device)
    strategy.run(embedding.dequeue)


def other_kinds(strategy, embedding):
    kinds = [IDS, {"f": tf.RaggedTensor.from_row_lengths([0, 1], [1, 1])}]

    def on_core():
        embedding.enqueue(kinds[this_core()])
        embedding.dequeue()

    strategy.run(on_core)


def enqueue_for_one_core(strategy, embedding):
    embedding.enqueue(IDS, device=strategy.extended.worker_devices[0])
    strategy.run(embedding.dequeue)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda s, e: s.run(e.dequeue), tf.errors.InvalidArgumentError, "without a batch"),
        (after_enqueuing(two_lookups, 2), tf.errors.InvalidArgumentError, "previous training batch waits"),
        (after_enqueuing(gradients_twice), tf.errors.InvalidArgumentError, "without a training batch"),
        (after_enqueuing(gradients_in_a_condition), RuntimeError, "top level of the function"),
        (after_enqueuing(lookup_in_a_condition), tf.errors.InvalidArgumentError, "inside control flow"),
        (enqueue_in_a_nested_function, RuntimeError, "inside control flow or a tf.function"),
        (different_batches, tf.errors.InvalidArgumentError, "training batches and others"),
        (other_kinds, tf.errors.InvalidArgumentError, "other kinds of inputs"),
        (enqueue_for_one_core, tf.errors.InvalidArgumentError, "without a batch"),
        (lambda s, e: e.dequeue(), RuntimeError, "outside of strategy.run"),
        (lambda s, e: e.apply_gradients(IDS), RuntimeError, "outside of strategy.run"),
        (lambda s, e: s.run(e.apply_gradients, args=({"f": tf.ones([2, 3])},)), ValueError, "gradient of shape"),
        (lambda s, e: s.run(e.apply_gradients, args=({"f": "x"},)), ValueError, "non-tensor type"),
        (lambda s, e: e.enqueue(IDS, device="/device:GPU:0"), ValueError, "Non-TPU device"),
        (lambda s, e: e.enqueue({"f": tf.constant([0, 1, 2])}), ValueError, "Inconsistent shape"),
        (lambda s, e: e.enqueue({"f": [0, 1]}), (ValueError, TypeError), "structure|unknown type"),
    ],
)
def test_call_at_the_wrong_time_or_place_is_refused(call, error, message):
    with pytest.raises(error, match=message):
        tf.function(call, autograph=False)(*embedding_on())


def test_tables_on_a_tpu_are_not_read_eagerly():
    with pytest.raises(RuntimeError, match="Unable to retrieve"):
        embedding_on()[1].embedding_tables  # noqa: B018


def test_invalid_id_is_refused_naming_the_table():
    strategy, embedding = embedding_on()
    with pytest.raises(tf.errors.InvalidArgumentError, match="lookup_in_t"):
        evaluate_on(strategy, embedding)({"f": tf.constant([0, 7])})


def test_one_engine_per_initialization():
    strategy, _ = embedding_on()
    with strategy.scope():
        second = TPUEmbedding(CONFIG, SGD())
    with pytest.raises(RuntimeError, match="unbuilt"):
        second.dequeue()
    with pytest.raises(RuntimeError, match="already initialized"):
        second.build(2)
    initialize_simulated_tpu(strategy)
    second.build(2)


def test_off_tpu_there_are_tables_only():
    embedding = TPUEmbedding(CONFIG, Adagrad())
    assert [variable.shape for variable in embedding.embedding_tables.values()] == [[7, 2]]
    for call in (lambda: embedding.enqueue(IDS), embedding.dequeue, lambda: embedding.apply_gradients(IDS)):
        with pytest.raises(RuntimeError, match="not created under a TPUStrategy"):
            call()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"hosts": 0}, "whole number"), ({"hosts": 100}, "logical CPU")],
)
def test_impossible_topology_is_refused(arguments, message):
    with pytest.raises((ValueError, RuntimeError), match=message):
        simulated_tpu(**arguments)
