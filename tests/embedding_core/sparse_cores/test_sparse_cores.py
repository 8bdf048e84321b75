"""Simulated SparseCores: what the class accepts, its stacks and limits, and training beside the host engine."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from embedding_core import SGD, Adagrad, Adam, EmbeddingConfig, FeatureConfig, TableConfig
from embedding_core.engines import HostEngine, TPUEmbedding, simulated_tpu
from embedding_core.errors import ConfigError, DataError, EngineError, UnsupportedError
from embedding_core.sparse_cores import Ids, Slice, SparseCoreEmbeddingConfig, count_batch, stacks_of
from embedding_core.sparse_cores.stack_feeding import layouts_of, stacks_of_layouts
from embedding_core.sparse_cores.tpu_embedding import TPUEmbeddingV2
from embedding_core.translate import config_to_tensorflow
from tests.embedding_core.oracle import Samples, build_ragged
from tests.support.tables import config_of

tpu = tf.tpu.experimental.embedding
simulated_tpu(hosts=2, cores_per_host=4)  # makes the logical devices before TensorFlow runs its first operation
BATCH = 16
LARGE = SparseCoreEmbeddingConfig(max_ids_per_chip_per_sample=10_000)


def model(optimizer=None):
    """Three tables, of which two are of one width."""
    sizes = {"a": (40, 3, "mean"), "b": (7, 8, "sum"), "c": (30, 9, "sqrtn")}
    return EmbeddingConfig(
        tables=tuple(
            TableConfig(name=name, vocabulary_size=rows, dim=dim, combiner=combiner, optimizer=optimizer)
            for name, (rows, dim, combiner) in sizes.items()
        ),
        features=tuple(FeatureConfig(name=f"f{n}", table=table) for n, table in enumerate("abca")),
    )


def on(strategy, config, *, limits=LARGE, optimizer=None, batch=BATCH, **arguments):
    features = config_to_tensorflow(config)
    for feature in features.values():
        feature.output_shape = tf.TensorShape([batch // strategy.num_replicas_in_sync])
    with strategy.scope():
        return TPUEmbeddingV2(features, optimizer, sparse_core_embedding_config=limits, **arguments)


def draw(config, generator, batch=BATCH):
    found = {}
    for feature in config.features:
        rows = config.table(feature.table).vocabulary_size
        lengths = generator.integers(0, 4, batch)
        ids = [generator.integers(0, rows, length).tolist() for length in lengths]
        found[feature.name] = build_ragged(Samples(ids))[0]
    return found


def step_of(embedding, strategy, loss_of):
    """A step in which every chip looks up its part of a global batch and applies the gradients of its loss."""

    def step(batch):
        def on_chip():
            chip = tf.get_static_value(tf.distribute.get_replica_context().replica_id_in_sync_group)
            size = BATCH // strategy.num_replicas_in_sync
            activations, preserved = embedding({name: ragged[chip * size :][:size] for name, ragged in batch.items()})
            with tf.GradientTape() as tape:
                tape.watch(activations)
                loss = loss_of(activations)
            embedding.apply_gradients(tape.gradient(loss, activations), preserved)
            return loss

        return strategy.reduce(tf.distribute.ReduceOp.SUM, strategy.run(on_chip), axis=None)

    spec = tf.RaggedTensorSpec([BATCH, None], tf.int64, ragged_rank=1)
    return tf.function(step, [{f"f{n}": spec for n in range(4)}], autograph=False)


def loss_of(activations):
    return tf.add_n([tf.reduce_sum(tf.square(value - 0.3)) for value in activations.values()])


@pytest.mark.parametrize(
    "optimizer",
    [Adam(learning_rate=0.1, epsilon=1e-3), Adagrad(learning_rate=lambda: tf.constant(0.05))],
    ids=["slots of each table", "rate that is a function"],
)
def test_tables_slots_and_losses_of_steps_equal_host_engines(optimizer):
    strategy = simulated_tpu(cores_per_host=2, embedding_feature="V2", sparse_cores=2)
    config = model(optimizer)
    embedding, host = on(strategy, config, seed=3), HostEngine(config, seed=3)
    step, losses = step_of(embedding, strategy, loss_of), []
    generator = np.random.default_rng(0)
    for _ in range(5):
        batch = draw(config, generator)
        lookup = host.look_up([batch[f"f{n}"] for n in range(4)], [None] * 4)
        activations = dict(zip(batch, lookup.activations(), strict=True))
        with tf.GradientTape() as tape:
            tape.watch(activations)
            loss = loss_of(activations)
        lookup.update(list(tape.gradient(loss, activations).values()))
        losses.append((float(step(batch)), float(loss)))
    np.testing.assert_allclose(*zip(*losses, strict=True), rtol=1e-5)
    assert list(embedding.table_views) == list(host.table_variables)
    for key, variable in host.table_variables.items():
        np.testing.assert_allclose(embedding.table_views[key].numpy(), variable.numpy(), rtol=1e-4, atol=1e-5)


def test_stacks_are_padded_and_named_as_in_tensorflow():
    strategy = simulated_tpu(cores_per_host=2, embedding_feature="V2", sparse_cores=4)
    embedding = on(strategy, model(SGD()))
    shapes = {name: table.shape.as_list() for name, table in embedding.embedding_tables.items()}
    assert shapes == {"a_b": [128, 8], "c": [64, 16]}  # 8 SparseCores, each with a multiple of 8 rows
    assert {name: len(shards) for name, shards in embedding.embedding_table_shards.items()} == {"a_b": 2, "c": 2}
    layout = embedding.embedding_layouts["b"]
    assert (layout.stacked_table_name, layout.sparse_core_shard_row_offset) == ("a_b", 8)
    assert layout.sparse_core_shard_rotation == 4
    stack = embedding.embedding_tables["a_b"].numpy().reshape(8, 16, 8)
    np.testing.assert_array_equal(stack[(3 + 4) % 8, 8], embedding.table_views["b"].numpy()[3])
    apart = on(strategy, model(SGD()), limits=SparseCoreEmbeddingConfig(disable_table_stacking=True))
    assert sorted(apart.embedding_tables) == ["a", "b", "c"]


def test_layouts_say_which_stacks_there_are():
    config, slice_ = model(SGD()), Slice(2, 4)
    stacks = stacks_of(config, slice_, BATCH)
    layouts = layouts_of(stacks, {table.name: table.dim for table in config.tables}, slice_)
    assert stacks_of_layouts(layouts.values()) == {stack.name: stack for stack in stacks}


def test_tpu_embedding_is_the_class_for_sparse_cores_there():
    feature = tpu.FeatureConfig(tpu.TableConfig(8, 2, name="t"), output_shape=[4])
    with simulated_tpu(embedding_feature="V2").scope():
        assert isinstance(TPUEmbedding(feature, tpu.SGD()), TPUEmbeddingV2)
    with pytest.raises(EngineError, match="should be created under TPUStrategy"), simulated_tpu().scope():
        TPUEmbeddingV2(feature, tpu.SGD())


@pytest.mark.parametrize(
    ("optimizer", "name"),
    [
        (SGD(weight_decay_factor=0.1), "weight_decay_factor"),
        (Adam(lazy_adam=False), "lazy_adam"),
        (SGD(use_gradient_accumulation=False), "use_gradient_accumulation"),
    ],
)
def test_hyperparameter_that_sparse_cores_ignore_is_refused(optimizer, name):
    strategy = simulated_tpu(embedding_feature="V2")
    with pytest.raises(NotImplementedError, match=f"`{name}` .* leave it .* V1 embedding engine"):
        on(strategy, model(optimizer))


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"output_shape": None}, DataError, "not fully defined"),
        ({"output_shape": [6]}, ConfigError, "6 samples: they must be a multiple of the 4 SparseCores"),
        (
            {"output_shape": [4, 2], "max_sequence_length": 2},
            UnsupportedError,
            "`max_sequence_length` .* layer does so",
        ),
    ],
)
def test_feature_that_sparse_cores_cannot_look_up_is_refused(change, error, message):
    feature = tpu.FeatureConfig(tpu.TableConfig(8, 2, name="t"), **change)
    with simulated_tpu(embedding_feature="V2").scope(), pytest.raises(error, match=message):
        TPUEmbeddingV2(feature, tpu.SGD())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"sparse_cores": 2}, "only embedding_feature='V2' has SparseCores"),
        ({"embedding_feature": "V2", "sparse_cores": 0}, "`sparse_cores` .* whole number >= 1"),
        ({"embedding_feature": "V3"}, "'V0', 'V1' or 'V2'"),
    ],
)
def test_bad_simulated_tpu_is_refused(arguments, message):
    with pytest.raises(ConfigError, match=message):
        simulated_tpu(**arguments)


@pytest.fixture
def one_table():
    """A table of 8 rows on one chip with 2 SparseCores, which look up 2 samples each; and a step in it."""
    table = tpu.TableConfig(8, 2, name="t", initializer=tf.initializers.Constant(1.0), combiner="sum")
    strategy = simulated_tpu(cores_per_host=1, embedding_feature="V2", sparse_cores=2)

    def make(**limits):
        with strategy.scope():
            config = SparseCoreEmbeddingConfig(**limits)
            embedding = TPUEmbeddingV2(
                tpu.FeatureConfig(table, output_shape=[4]), tpu.SGD(1.0), sparse_core_embedding_config=config
            )

        def on_chip(ids):
            activations, preserved = embedding(ids)
            embedding.apply_gradients(tf.ones_like(activations), preserved)
            return activations

        spec = tf.RaggedTensorSpec([4, None], tf.int32, ragged_rank=1)
        return embedding, tf.function(lambda ids: strategy.run(on_chip, (ids,)), [spec], autograph=False)

    return make


FULL = tf.ragged.constant([[0, 2, 4, 0], [2, 4], [1], []])  # on SparseCore 0: 5 ids, 3 of them distinct, in partition 0


@pytest.mark.parametrize(
    ("limits", "what"),
    [
        ({"max_ids_per_table": {"t": 3}}, "may have at most 3 ids in one partition.*max_ids_per_table.*4"),
        ({"max_unique_ids_per_table": {"t": 2}}, "at most 2 distinct ids in one partition"),
    ],
)
def test_ids_over_a_limit_are_an_error_and_change_nothing(one_table, limits, what):
    embedding, step = one_table(**limits)
    with pytest.raises(tf.errors.InvalidArgumentError, match=what):
        step(tf.ragged.constant([[0, 2, 4, 0], [2], [1], []]))
    np.testing.assert_array_equal(embedding.table_views["t"].numpy(), np.ones([8, 2]))
    assert int(embedding.dropped_ids["t"]) == 0


@pytest.mark.parametrize(
    ("limits", "kept", "dropped"),
    [
        ({"max_ids_per_table": {"t": 3}}, [[0, 2, 0], [2], [1], []], 2),
        ({"max_unique_ids_per_table": {"t": 1}}, [[0, 0], [], [1], []], 4),
        ({}, [[0, 2, 4, 0], [2, 4], [1], []], 0),
    ],
)
def test_ids_over_a_limit_are_dropped_and_counted(one_table, limits, kept, dropped):
    """The entries of partition 0 on SparseCore 0 are, in order: id 0 of sample 0, id 2 of 0 and 1, id 4 of 0 and 1."""
    embedding, step = one_table(allow_id_dropping=True, **limits)
    _, whole = one_table()
    first = step(FULL)
    np.testing.assert_array_equal(first, whole(tf.ragged.constant(kept, tf.int32)))
    assert int(embedding.dropped_ids["t"]) == dropped
    np.testing.assert_array_equal(  # and they get no gradient
        embedding.table_views["t"].numpy()[:, 0],
        1 - np.bincount([number for row in kept for number in row], minlength=8),
    )
    step(FULL)
    assert int(embedding.dropped_ids["t"]) == 2 * dropped


def test_buffer_that_is_too_small_is_an_error_or_drops(one_table):
    """4 samples x 4 ids are 8 for each of the 2 SparseCores: the second partition begins beyond."""
    two = tf.ragged.constant([[0, 1], [], [], []])
    _, step = one_table(max_ids_per_chip_per_sample=4)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"at most 8 ids, with padding, on one SparseCore.*16"):
        step(two)
    embedding, step = one_table(max_ids_per_chip_per_sample=4, allow_id_dropping=True)
    assert step(two).numpy()[0].tolist() == [1, 1]
    assert int(embedding.dropped_ids["t"]) == 1


def test_limits_of_other_stacks_are_refused(one_table):
    with pytest.raises(ConfigError, match="not the stack 't', whose limit would be a guess"):
        one_table(max_ids_per_table={"a_b": 3})


def test_id_outside_its_table_but_in_the_stack_is_an_error(one_table):
    _, step = one_table()
    with pytest.raises(tf.errors.InvalidArgumentError, match="is outside its table of 8 rows"):
        step(tf.ragged.constant([[8], [], [], []]))


def test_batch_without_ids_gives_zeros_and_changes_nothing(one_table):
    embedding, step = one_table(allow_id_dropping=True)
    np.testing.assert_array_equal(step(tf.ragged.constant([[], [], [], []], tf.int32)), np.zeros([4, 2]))
    np.testing.assert_array_equal(embedding.table_views["t"].numpy(), np.ones([8, 2]))


def test_ids_that_any_chip_drops_are_counted():
    table = tpu.TableConfig(8, 2, name="t", combiner="sum")
    strategy = simulated_tpu(cores_per_host=2, embedding_feature="V2", sparse_cores=2)
    limits = SparseCoreEmbeddingConfig(max_ids_per_table={"t": 1}, allow_id_dropping=True)
    with strategy.scope():
        feature = tpu.FeatureConfig(table, output_shape=[2])
        embedding = TPUEmbeddingV2(feature, tpu.SGD(), sparse_core_embedding_config=limits)
    ids = tf.ragged.constant([[0, 4], [1, 5, 2]])  # of 4 partitions: two ids in one, and again
    tf.function(lambda: strategy.run(lambda: embedding(ids)[0]), autograph=False)()
    assert int(embedding.dropped_ids["t"]) == 4


def test_view_neither_reads_nor_writes_a_row_outside_its_table():
    embedding = on(simulated_tpu(cores_per_host=1, embedding_feature="V2"), model(SGD()))
    embedding.build()
    view = embedding.table_views["b"]
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"table 'b' is not in \[0, 7\)"):
        tf.gather(view, [7])
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"table 'b' is not in \[0, 7\)"):
        view.scatter_update(tf.IndexedSlices(tf.zeros([1, 8]), tf.constant([-1])))


def test_calls_at_the_wrong_place_are_refused(one_table):
    embedding, _ = one_table()
    ids = tf.ragged.constant([[0], [], [], []])
    with pytest.raises(EngineError, match="apply_gradients called on unbuilt"):
        embedding.apply_gradients(tf.ones([4, 2]), {})
    with pytest.raises(EngineError, match=r"dequeue is not valid outside of strategy\.run"):
        embedding.dequeue(embedding.enqueue(ids))
    with pytest.raises(DataError, match="Non-TPU device CPU:0"):
        embedding.enqueue(ids, device="CPU:0")
    strategy = embedding._state.strategy

    def nested():
        return tf.cond(tf.constant(True), lambda: embedding(ids)[0], lambda: tf.zeros([4, 2]))

    with pytest.raises(EngineError, match="inside control flow"):
        tf.function(lambda: strategy.run(nested), autograph=False)()


def test_pipelined_activations_are_one_step_old():
    strategy = simulated_tpu(cores_per_host=2, embedding_feature="V2", sparse_cores=2)
    table = tpu.TableConfig(8, 2, name="t", initializer=tf.initializers.Constant(1.0), combiner="sum")
    with strategy.scope():
        embedding = TPUEmbedding(tpu.FeatureConfig(table, output_shape=[2]), tpu.SGD(0.5), True)

    def on_chip():
        activations, preserved = embedding(tf.constant([3, 4]))
        embedding.apply_gradients(tf.ones_like(activations), preserved)
        return activations

    step = tf.function(lambda: strategy.run(on_chip), autograph=False)
    found = [strategy.experimental_local_results(step())[1].numpy()[0, 0] for _ in range(3)]
    assert found == [1, 1, 0]


@pytest.mark.parametrize("shape", [(1, 4), (4, 2)])
@pytest.mark.parametrize("seed", range(4))
def test_counts_are_those_that_the_limits_come_from(seed, shape):
    slice_ = Slice(*shape)
    config, generator = model(SGD()), np.random.default_rng(seed)
    batch = draw(config, generator, batch=2 * slice_.shards)
    given = {name: Ids(ragged.values.numpy(), ragged.row_splits.numpy()) for name, ragged in batch.items()}
    features, size = config_to_tensorflow(config), 2 * slice_.per_chip
    for feature in features.values():
        feature.output_shape = tf.TensorShape([size])
    expected = {
        stack.name: count_batch(stack, config, slice_, given, 2)
        for stack in stacks_of(config, slice_, 2 * slice_.shards)
    }
    for chip in range(slice_.chips):
        part = {name: ragged[chip * size :][:size] for name, ragged in batch.items()}
        ids, unique = TPUEmbeddingV2.compute_sparse_core_stats(part, features, *shape)
        cores = slice(chip * slice_.per_chip, (chip + 1) * slice_.per_chip)
        for name, count in expected.items():
            assert (ids[name], unique[name]) == (count.ids[cores].max(), count.unique_ids[cores].max())


def test_configuration_of_tensorflow_is_taken():
    @dataclasses.dataclass
    class Theirs:  # the class of TensorFlow 2.21
        max_ids_per_table: dict
        initialize_tables_on_host: bool = True
        enable_fast_table_initialization: bool = False

    made = SparseCoreEmbeddingConfig.of(Theirs({"t": tf.constant(3)}))
    assert made == SparseCoreEmbeddingConfig(max_ids_per_table={"t": 3})
    with pytest.raises(ConfigError, match="`enable_fast_table_initialization` is True"):
        SparseCoreEmbeddingConfig.of(Theirs({}, enable_fast_table_initialization=True))
    with pytest.raises(ConfigError, match="it must be a SparseCoreEmbeddingConfig or None"):
        SparseCoreEmbeddingConfig.of(3)


def of_two_chips():
    """An embedding on two chips, a value per chip, and the rows that chips 0 and 1 should look up."""
    config = config_of(a={"vocabulary_size": 40, "dim": 3, "combiner": "sum", "optimizer": SGD()})
    strategy = simulated_tpu(cores_per_host=2, embedding_feature="V2", sparse_cores=2)
    embedding = on(strategy, config)
    embedding.build()
    samples = BATCH // 2
    ids = np.arange(BATCH).reshape(2, samples, 1) % 40
    per_chip = strategy.experimental_distribute_values_from_function(
        lambda context: tf.constant(ids[context.replica_id_in_sync_group])
    )
    return strategy, embedding, per_chip, embedding.table_views["a"].numpy()[ids[:, :, 0]]


def test_value_that_the_function_captures_is_read_on_its_chip():
    strategy, embedding, per_chip, expected = of_two_chips()
    found = strategy.run(lambda: embedding({"a": per_chip})[0]["a"])
    for chip, values in enumerate(strategy.experimental_local_results(found)):
        np.testing.assert_allclose(values, expected[chip], rtol=1e-6)


def test_inputs_of_several_chips_need_a_device_outside_of_run():
    strategy, embedding, per_chip, _ = of_two_chips()
    with pytest.raises(DataError, match="inputs of 2 chips, and returns the ids of one: name the chip as `device`"):
        embedding.enqueue({"a": per_chip})
    chips = strategy.extended.worker_devices
    for chip, device in enumerate(chips):
        rows = embedding.enqueue({"a": per_chip}, device=device)["a"].rows
        assert rows.shape[0] == BATCH // len(chips), chip


def test_ids_of_another_object_are_refused(one_table):
    strategy, embedding, per_chip, _ = of_two_chips()
    other, _ = one_table()
    foreign = other.enqueue(tf.ragged.constant([[0], [], [], []]))
    for wrong, what in ((foreign, r"\['t'\]"), (per_chip, "EagerTensor"), ({"a": 1}, r"\['a'\]")):
        with pytest.raises(DataError, match=f"the partitioned ids are of {what}"):
            strategy.run(lambda ids: embedding.dequeue(ids)[0], (wrong,))
