"""The simulated TPU: order of batches, stale activations, checkpoints, initial rows, datasets and invalid calls."""

import gc

import numpy as np
import pytest
import tensorflow as tf

from embedding_core import SGD, Adagrad, Adam, EmbeddingConfig, FeatureConfig, TableConfig
from embedding_core.engines import HostEngine, TPUEmbedding, initialize_simulated_tpu, simulated_tpu
from embedding_core.lookup import cpu_embedding_lookup

tpu = tf.tpu.experimental.embedding
simulated_tpu(hosts=2, cores_per_host=4)  # makes the logical devices before TensorFlow runs its first operation


@pytest.fixture(autouse=True)
def _collected():
    """Collect garbage before each test: a collection during tracing can wait forever for the thread of a dataset."""
    gc.collect()


def config_of(rows=7, dim=2, combiner="sum"):
    table = TableConfig(name="t", vocabulary_size=rows, dim=dim, combiner=combiner)
    return EmbeddingConfig(tables=(table,), features=(FeatureConfig(name="f", table="t"),))


def embedding_on(hosts=1, cores=2, optimizer=None, config=None, batch=2, **arguments):
    strategy = simulated_tpu(hosts=hosts, cores_per_host=cores)
    with strategy.scope():
        embedding = TPUEmbedding(config or config_of(), optimizer or SGD(learning_rate=1.0), **arguments)
    embedding.build(batch)
    return strategy, embedding


def table_of(embedding, slot="parameters"):
    return embedding._engine.variables["t"][slot].numpy()


IDS = {"f": tf.constant([0, 1])}


def train_on(strategy, embedding, name=None):
    """Return a step that gives every activation the gradient -1: with SGD(1.0), each lookup adds 1 to its row."""

    @tf.function
    def step(ids):
        def on_core():
            activations = embedding.dequeue(name)
            embedding.apply_gradients({"f": -tf.ones_like(activations["f"])}, name)
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
    config = config_of()
    strategy, embedding = embedding_on(optimizer=Adam(lazy_adam=False), pipeline_execution_with_tensor_core=True)
    first, step = table_of(embedding), train_on(strategy, embedding)
    step(IDS)
    np.testing.assert_array_equal(step({"f": tf.constant([1, 5])}).numpy(), first[[1, 5]])
    assert config.table("t").vocabulary_size == 7


def test_batches_leave_in_the_order_they_came():
    strategy, embedding = embedding_on(config=config_of(rows=9))

    @tf.function
    def several():
        for start in tf.range(3):
            embedding.enqueue({"f": tf.stack([start, start + 1])}, training=False)
        found = tf.TensorArray(tf.float32, 3)
        for turn in tf.range(3):
            values = strategy.run(lambda: embedding.dequeue()["f"])
            found = found.write(turn, strategy.experimental_local_results(values)[1])
        return found.stack()

    table = table_of(embedding)
    np.testing.assert_array_equal(several().numpy(), [table[:2], table[1:3], table[2:4]])


def test_enqueue_inside_run_is_the_one_outside():
    strategy, embedding = embedding_on()
    other_strategy, other = embedding_on()

    @tf.function
    def step(ids):
        def on_core():
            embedding.enqueue(ids)
            activations = embedding.dequeue()
            embedding.apply_gradients({"f": -tf.ones_like(activations["f"])})
            return activations["f"]

        return strategy.experimental_local_results(strategy.run(on_core))[0]

    np.testing.assert_array_equal(step(IDS).numpy(), train_on(other_strategy, other)(IDS).numpy())
    np.testing.assert_array_equal(table_of(embedding), table_of(other))


def test_training_loop_in_the_graph_is_the_one_outside():
    strategy, embedding = embedding_on(optimizer=Adagrad())
    other_strategy, other = embedding_on(optimizer=Adagrad())
    inner, step = train_on(strategy, embedding), train_on(other_strategy, other)

    @tf.function
    def several():
        for start in tf.range(3):
            inner({"f": tf.stack([start, start + 1])})

    several()
    for start in range(3):
        step({"f": tf.constant([start, start + 1])})
    np.testing.assert_array_equal(table_of(embedding), table_of(other))
    np.testing.assert_array_equal(table_of(embedding, "accumulators"), table_of(other, "accumulators"))


def test_none_gradient_counts_as_zeros():
    strategy, embedding = embedding_on(optimizer=Adam())
    embedding._engine.variables["t"]["momenta"].assign(tf.ones([7, 2]))
    embedding.enqueue(IDS)

    @tf.function
    def step():
        embedding.dequeue()
        embedding.apply_gradients({"f": None})

    strategy.run(step.python_function)
    np.testing.assert_allclose(table_of(embedding, "momenta")[:3, 0], [0.9, 0.9, 1.0], rtol=1e-6)


def test_eager_step_is_the_traced_one():
    strategy, embedding = embedding_on()
    other_strategy, other = embedding_on()
    with_graph = train_on(strategy, embedding)(IDS)
    tf.config.run_functions_eagerly(True)
    try:
        eager = train_on(other_strategy, other)(IDS)
    finally:
        tf.config.run_functions_eagerly(False)
    np.testing.assert_array_equal(eager.numpy(), with_graph.numpy())
    np.testing.assert_array_equal(table_of(other), table_of(embedding))


def test_first_rows_are_the_same_on_every_topology():
    host = HostEngine(config_of(), seed=5, with_slots=False).embedding_tables["t"].numpy()
    for hosts, cores in ((1, 1), (2, 2)):
        np.testing.assert_array_equal(table_of(embedding_on(hosts, cores, seed=5)[1]), host)
    np.testing.assert_array_equal(tables_only(seed=5).numpy(), host)


def tables_only(seed):
    return next(iter(TPUEmbedding(config_of(), None, seed=seed).embedding_tables.values()))


def test_checkpoint_fits_another_topology_and_tensorflows_class(tmp_path):
    strategy, embedding = embedding_on(1, 2, Adagrad())
    train_on(strategy, embedding)(IDS)
    path = tf.train.Checkpoint(embedding=embedding).write(str(tmp_path / "x"))
    _, other = embedding_on(2, 2, Adagrad(), seed=9)
    tf.train.Checkpoint(embedding=other).read(path).assert_consumed()
    np.testing.assert_array_equal(table_of(other, "accumulators"), table_of(embedding, "accumulators"))
    table = tpu.TableConfig(7, 2, name="t")
    upstream = tpu.TPUEmbedding(tpu.FeatureConfig(table), tpu.Adagrad())
    upstream.build()
    tf.train.Checkpoint(embedding=upstream).read(path).assert_consumed()
    np.testing.assert_array_equal(upstream.embedding_tables[table].numpy(), table_of(embedding))


def test_checkpoint_manager_restores_before_the_variables_exist(tmp_path):
    strategy, embedding = embedding_on(optimizer=Adagrad())
    train_on(strategy, embedding)(IDS)
    tf.train.CheckpointManager(tf.train.Checkpoint(e=embedding), str(tmp_path), 1).save()
    with simulated_tpu(hosts=2, cores_per_host=1).scope():
        later = TPUEmbedding(config_of(), Adagrad(), seed=8)
    status = tf.train.Checkpoint(e=later).restore(tf.train.latest_checkpoint(str(tmp_path)))
    later.build(2)
    status.assert_consumed()
    np.testing.assert_array_equal(table_of(later), table_of(embedding))


def test_dataset_function_is_called_once_per_host():
    strategy = simulated_tpu(hosts=2, cores_per_host=2)
    contexts = []

    def dataset(context):
        contexts.append(context)
        start = 100 * context.input_pipeline_id
        return tf.data.Dataset.range(start, start + 8).batch(2, drop_remainder=True)

    options = tf.distribute.InputOptions(experimental_fetch_to_device=False)
    batch = next(iter(strategy.distribute_datasets_from_function(dataset, options)))
    assert [(c.num_input_pipelines, c.input_pipeline_id, c.num_replicas_in_sync) for c in contexts] == [
        (2, 0, 4),
        (2, 1, 4),
    ]
    local = [value.numpy().tolist() for value in strategy.experimental_local_results(batch)]
    assert local == [[0, 1], [2, 3], [100, 101], [102, 103]]


def test_sharding_aware_initializer_is_called_per_host():
    blocks = []

    def initializer(shape, dtype, shard_info):
        blocks.append((shape, shard_info))
        return tf.cast(tf.range(shard_info.shape[0])[:, None] + [[0, 0]], dtype) + shard_info.offset[0]

    feature = tpu.FeatureConfig(tpu.TableConfig(3, 2, initializer=initializer, name="t"))
    _, embedding = embedding_on(hosts=2, cores=1, config=feature)
    assert blocks == [((3, 2), ((2, 2), (0, 0))), ((3, 2), ((1, 2), (2, 0)))]
    np.testing.assert_array_equal(table_of(embedding)[:, 0], [0, 1, 2])


def test_hosts_without_rows_are_left_out():
    offsets = []

    def initializer(shape, dtype, shard_info):
        offsets.append(shard_info.offset[0])
        return tf.zeros(shard_info.shape, dtype)

    feature = tpu.FeatureConfig(tpu.TableConfig(1, 2, initializer=initializer, name="t"))
    strategy, embedding = embedding_on(hosts=4, cores=1, config={"f": feature})
    train_on(strategy, embedding)({"f": tf.constant([0, 0])})
    assert offsets == [0]
    np.testing.assert_array_equal(table_of(embedding), [[8, 8]])


def test_callers_configuration_is_never_changed():
    table = tpu.TableConfig(7, 2)
    embedding_on(config=tpu.FeatureConfig(table), optimizer=tpu.SGD(1.0))
    TPUEmbedding(tpu.FeatureConfig(table), tpu.SGD(1.0)).build()
    assert table.name is None
    assert table.optimizer is None


def test_learning_rates_are_evaluated_every_step():
    step_number = tf.Variable(0.0)
    schedule = tf.keras.optimizers.schedules.PiecewiseConstantDecay([0], [1.0, 0.5])
    for rate in (lambda: 1.0 - 0.5 * step_number, schedule):
        step_number.assign(0.0)
        strategy, embedding = embedding_on(optimizer=SGD(learning_rate=rate))
        first, step = table_of(embedding)[0], train_on(strategy, embedding)
        step(IDS)
        step_number.assign(1.0)
        middle = table_of(embedding)[0]
        step(IDS)
        np.testing.assert_allclose([middle - first, table_of(embedding)[0] - middle], [[2, 2], [1, 1]], atol=1e-5)


def test_named_batch_without_gradients_is_forgotten():
    strategy, embedding = embedding_on()

    @tf.function
    def looked_up(ids):
        embedding.enqueue(ids)
        return strategy.experimental_local_results(strategy.run(lambda: embedding.dequeue("call")["f"]))[0]

    looked_up(IDS)
    np.testing.assert_array_equal(looked_up(IDS).numpy(), table_of(embedding)[:2])


def test_evaluation_may_dequeue_in_a_nested_function():
    strategy, embedding = embedding_on()

    @tf.function
    def step(ids):
        embedding.enqueue(ids, training=False)
        nested = tf.function(lambda: embedding.dequeue()["f"])
        return strategy.experimental_local_results(strategy.run(lambda: nested() * 2.0))

    for found in step(IDS):
        np.testing.assert_array_equal(found.numpy(), 2.0 * table_of(embedding)[:2])


def two_lookups(strategy, embedding):
    def on_core():
        embedding.dequeue()
        return embedding.dequeue()["f"]

    embedding.enqueue(IDS)
    embedding.enqueue(IDS)
    strategy.run(on_core)


def gradients_twice(strategy, embedding):
    def on_core():
        gradients = embedding.dequeue()
        embedding.apply_gradients(gradients)
        embedding.apply_gradients(gradients)

    embedding.enqueue(IDS)
    strategy.run(on_core)


def gradients_in_a_condition(strategy, embedding):
    def on_core():
        gradients = embedding.dequeue()
        tf.cond(gradients["f"][0, 0] > -100.0, lambda: embedding.apply_gradients(gradients), lambda: None)

    embedding.enqueue(IDS)
    strategy.run(on_core)


def lookup_in_a_condition(strategy, embedding):
    def on_core():
        tf.cond(
            tf.constant(True) & (tf.random.uniform([]) < 2.0),
            lambda: embedding.dequeue()["f"],
            lambda: tf.zeros([2, 2]),
        )

    embedding.enqueue(IDS)
    strategy.run(on_core)


def enqueue_in_a_nested_function(strategy, embedding):
    nested = tf.function(lambda: embedding.enqueue(IDS))

    def on_core():
        nested()

    strategy.run(on_core)


def different_batches(strategy, embedding):
    for core, device in enumerate(strategy.extended.worker_devices):
        embedding.enqueue(IDS, training=core == 0, device=device)
    strategy.run(embedding.dequeue)


def other_kinds(strategy, embedding):
    kinds = [IDS, {"f": tf.RaggedTensor.from_row_lengths([0, 1], [1, 1])}]

    def on_core():
        embedding.enqueue(kinds[tf.get_static_value(tf.distribute.get_replica_context().replica_id_in_sync_group)])
        embedding.dequeue()

    strategy.run(on_core)


def enqueue_for_one_core(strategy, embedding):
    embedding.enqueue(IDS, device=strategy.extended.worker_devices[0])
    strategy.run(embedding.dequeue)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda s, e: s.run(e.dequeue), tf.errors.InvalidArgumentError, "without a batch"),
        (two_lookups, tf.errors.InvalidArgumentError, "previous training batch waits"),
        (gradients_twice, tf.errors.InvalidArgumentError, "without a training batch"),
        (gradients_in_a_condition, RuntimeError, "top level of the function"),
        (lookup_in_a_condition, tf.errors.InvalidArgumentError, "inside control flow"),
        (enqueue_in_a_nested_function, RuntimeError, "inside control flow or a tf.function"),
        (different_batches, tf.errors.InvalidArgumentError, "training batches and others"),
        (other_kinds, tf.errors.InvalidArgumentError, "other kinds of inputs"),
        (enqueue_for_one_core, tf.errors.InvalidArgumentError, "without a batch"),
        (lambda s, e: e.dequeue(), RuntimeError, "outside of strategy.run"),
        (lambda s, e: e.apply_gradients(IDS), RuntimeError, "outside of strategy.run"),
        (lambda s, e: s.run(e.apply_gradients, args=({"f": tf.ones([2, 3])},)), ValueError, "gradient of shape"),
        (lambda s, e: s.run(e.apply_gradients, args=({"f": "x"},)), ValueError, "non-tensor type"),
        (lambda s, e: e.embedding_tables, RuntimeError, "Unable to retrieve"),
        (lambda s, e: e.enqueue(IDS, device="/device:GPU:0"), ValueError, "Non-TPU device"),
        (lambda s, e: e.enqueue({"f": tf.constant([0, 1, 2])}), ValueError, "Inconsistent shape"),
        (lambda s, e: e.enqueue({"f": [0, 1]}), (ValueError, TypeError), "structure|unknown type"),
    ],
)
def test_call_at_the_wrong_time_or_place_is_refused(call, error, message):
    strategy, embedding = embedding_on()
    function = call if "embedding_tables" in call.__code__.co_names else tf.function(call, autograph=False)
    with pytest.raises(error, match=message):
        function(strategy, embedding)


def test_invalid_id_is_refused_naming_the_table():
    strategy, embedding = embedding_on()
    with pytest.raises(tf.errors.InvalidArgumentError, match="lookup_in_t"):
        evaluate_on(strategy, embedding)({"f": tf.constant([0, 7])})


def test_one_engine_per_initialization():
    strategy, _ = embedding_on()
    with strategy.scope():
        second = TPUEmbedding(config_of(), SGD())
    with pytest.raises(RuntimeError, match="already initialized"):
        second.build(2)
    initialize_simulated_tpu(strategy)
    second.build(2)


def test_unbuilt_engine_refuses_dequeue():
    with simulated_tpu().scope():
        embedding = TPUEmbedding(config_of(), SGD())
    with pytest.raises(RuntimeError, match="unbuilt"):
        embedding.dequeue()


def test_off_tpu_there_are_tables_only():
    embedding = TPUEmbedding(config_of(), Adagrad())
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


def test_serving_function_is_exported_from_the_training_scope(tmp_path):
    _, embedding = embedding_on()
    module = tf.Module()
    module.embedding = embedding
    signature = [tf.TensorSpec([None], tf.int64)]
    module.serve = tf.function(
        lambda ids: cpu_embedding_lookup({"f": ids}, None, embedding.embedding_tables, config_of())["f"], signature
    )
    tf.saved_model.save(module, str(tmp_path))
    loaded = tf.saved_model.load(str(tmp_path))
    found = loaded.serve(tf.constant([3], tf.int64))
    np.testing.assert_array_equal(found.numpy(), table_of(embedding)[3:4])
