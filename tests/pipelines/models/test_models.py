import sys
import types

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from embedding_core.config import EmbeddingConfig, FeatureConfig, TableConfig
from embedding_core.errors import ConfigError
from embedding_core.model_inputs import build_model, call_model, sequence_lengths
from embedding_core.tasks import Task
from pipelines.models.attention import CausalAttention, LastPosition, MaskedMean, TargetAttention
from pipelines.models.deepfm import PairwiseSum
from pipelines.models.dlrm import PairwiseDots
from pipelines.models.final_mlp import BilinearHeads
from pipelines.models.mmoe import mixed
from pipelines.models.parts import SeededDropout
from pipelines.models.two_tower import UnitLength

CONFIG = EmbeddingConfig(
    tables=(TableConfig(name="t", vocabulary_size=9, dim=4), TableConfig(name="u", vocabulary_size=5, dim=3)),
    features=(
        FeatureConfig(name="user", table="t"),
        FeatureConfig(name="item", table="t"),
        FeatureConfig(name="words", table="u", max_sequence_length=2),
    ),
)
EMBEDDINGS = {
    "item": tf.random.stateless_normal([6, 4], [1, 1]),
    "words": tf.random.stateless_normal([6, 2, 3], [1, 2]),
    "user": tf.random.stateless_normal([6, 4], [1, 3]),
}
DENSE = {"price": tf.random.stateless_normal([6, 1], [1, 4])}
TOWERS = {"query_features": ["user"], "candidate_features": ["item", "words", "price"]}


@pytest.mark.parametrize(
    ("module", "arguments"),
    [
        ("ranking", {}),
        ("ranking", {"hidden_units": [], "cross_layers": 0}),
        ("mmoe", {}),
        ("ple", {}),
        ("dlrm", {}),
        ("dlrm", {"bottom_units": [], "width": 3}),
        ("deepfm", {}),
        ("deepfm", {"hidden_units": []}),
        ("final_mlp", {}),
        ("two_tower", TOWERS),
        ("two_tower", {**TOWERS, "hidden_units": [8], "width": 5}),
    ],
)
def test_model_gives_logit_per_row_and_gradient_per_activation(module, arguments):
    model = build_model(f"pipelines.models.{module}", CONFIG, DENSE, arguments)
    with tf.GradientTape() as tape:
        tape.watch(EMBEDDINGS)
        logits = call_model(model, EMBEDDINGS, DENSE, training=True)["label"]
    assert logits.shape == [6, 1]
    assert all(gradient is not None for gradient in tape.gradient(logits, EMBEDDINGS).values())


MOOD = Task(name="mood", kind="multiclass", classes=("a", "b", "c"))
SEVERAL = (Task(name="click"), Task(name="shared", kind="regression"), Task(name="a.b-c", kind="count"), MOOD)


@pytest.mark.parametrize("tasks", [SEVERAL, (MOOD,)], ids=["several", "multiclass"])
@pytest.mark.parametrize("module", ["ranking", "mmoe", "ple", "dlrm", "deepfm", "final_mlp"])
def test_model_has_an_output_of_its_width_for_each_task(module, tasks):
    model = build_model(f"pipelines.models.{module}", CONFIG, DENSE, {}, tasks)
    with tf.GradientTape() as tape:
        outputs = call_model(model, EMBEDDINGS, DENSE, tasks, training=True)
    shapes = {name: tuple(output.shape) for name, output in outputs.items()}
    assert shapes == {task.name: (6, task.width) for task in tasks}
    assert all(gradient is not None for gradient in tape.gradient(list(outputs.values()), model.trainable_variables))


@pytest.mark.parametrize(
    ("tasks", "words"),
    [
        ((MOOD,), r"whose output has the shape \(None, 3\)"),
        (SEVERAL[:2], r"by task, with the shapes click \(None, 1\), shared \(None, 1\)"),
    ],
)
def test_model_of_one_column_is_refused_for_other_tasks(tasks, words):
    with pytest.raises(ConfigError, match=words):
        build_model("pipelines.models.two_tower", CONFIG, DENSE, TOWERS, tasks)


def test_gate_weighs_the_experts():
    experts = [tf.constant([[1.0, 2.0]]), tf.constant([[10.0, 20.0]])]
    np.testing.assert_allclose(mixed(experts, tf.constant([[0.25, 0.75]])), [[7.75, 15.5]])


def with_dim(dim):
    return EmbeddingConfig(tables=tuple(table.replace(dim=dim) for table in CONFIG.tables), features=CONFIG.features)


def moved(*names):
    return {name: value + 1.0 if name in names else value for name, value in EMBEDDINGS.items()}


@pytest.mark.parametrize("first_order", [True, False])
def test_ranking_model_without_deep_parts_is_a_token_regression(first_order):
    arguments = {"hidden_units": [], "cross_layers": 0, "first_order": first_order}
    model = build_model("pipelines.models.ranking", CONFIG, DENSE, arguments)
    base, user, item, both = (
        call_model(model, given, DENSE)["label"]
        for given in (EMBEDDINGS, moved("user"), moved("item"), moved("user", "item"))
    )
    np.testing.assert_allclose(both - base, (user - base) + (item - base), atol=1e-5)
    assert (np.abs(user - base) > 1e-3).all()


def test_first_column_of_each_row_is_added_to_the_output():
    model = build_model("pipelines.models.ranking", CONFIG, DENSE, {"first_order": True})
    kernel, bias = model.get_layer("logit").weights
    kernel.assign(tf.zeros_like(kernel))
    bias.assign([0.5])
    first = EMBEDDINGS["user"][:, :1] + EMBEDDINGS["item"][:, :1] + tf.reduce_mean(EMBEDDINGS["words"], 1)[:, :1]
    expected = 0.5 + 2.0 * first
    np.testing.assert_allclose(call_model(model, EMBEDDINGS, DENSE)["label"], expected, rtol=1e-5)


def test_several_tasks_each_scale_the_first_order_terms():
    model = build_model(
        "pipelines.models.ranking", CONFIG, DENSE, {"first_order": True}, (Task(name="a"), Task(name="b"))
    )
    for name in ("a", "b"):
        assert model.get_layer(f"first_order_{name}").weights[0].shape == (1, 1)


def test_rows_of_one_column_are_read_whole():
    model = build_model("pipelines.models.ranking", with_dim(1), DENSE, {"first_order": True})
    embeddings = {name: value[..., :1] for name, value in EMBEDDINGS.items()}
    assert call_model(model, embeddings, DENSE)["label"].shape == [6, 1]


LENGTHS = tf.constant([[2.0], [0.0], [1.0]])
SEQUENCE = tf.random.stateless_normal([3, 2, 4], [2, 1])


def test_only_filled_positions_count():
    mean, last = MaskedMean()([SEQUENCE, LENGTHS]), LastPosition()([SEQUENCE, LENGTHS])
    np.testing.assert_allclose(mean, [np.mean(SEQUENCE[0], 0), np.zeros(4), SEQUENCE[2, 0]], rtol=1e-6)
    np.testing.assert_allclose(last, [SEQUENCE[0, 1], np.zeros(4), SEQUENCE[2, 0]])


def test_length_above_that_of_the_sequence_counts_as_its_length():
    np.testing.assert_array_equal(LastPosition()([SEQUENCE, LENGTHS + 2.0]), SEQUENCE[:, 1])


def test_a_history_is_weighed_by_the_target():
    layer, target = TargetAttention([3]), tf.random.stateless_normal([3, 4], [2, 2])
    found = layer([SEQUENCE, LENGTHS, target]).numpy()
    assert not found[1].any()  # an empty history
    changed = SEQUENCE.numpy()
    changed[2, 1] += 1  # beyond the length of the third row
    np.testing.assert_allclose(layer([changed, LENGTHS, target]), found)
    assert (layer([SEQUENCE, LENGTHS, target + 1]).numpy()[0] != found[0]).any()


def test_a_position_sees_neither_later_ones_nor_padding():
    sequence, lengths = tf.random.stateless_normal([2, 5, 4], [3, 1]), tf.constant([[5.0], [3.0]])
    layer = CausalAttention(2)
    found = layer([sequence, sequence, lengths]).numpy()
    for position in range(5):
        changed = sequence.numpy()
        changed[:, position] += 1
        new = layer([changed, changed, lengths]).numpy()
        np.testing.assert_allclose(new[:, :position], found[:, :position], atol=1e-6)
        assert (new[0, position] != found[0, position]).any()
    changed = sequence.numpy()
    changed[1, 3:] = 7  # padding of the second row
    np.testing.assert_allclose(layer([sequence, changed, lengths])[1], found[1], atol=1e-6)


def test_a_single_query_is_that_of_the_last_position():
    sequence, lengths = tf.random.stateless_normal([2, 5, 4], [3, 1]), tf.constant([[5.0], [3.0]])
    layer = CausalAttention(2)
    whole = layer([sequence, sequence, lengths])
    last = LastPosition()([sequence, lengths])[:, tf.newaxis]
    np.testing.assert_allclose(
        layer([last, sequence, lengths])[:, 0], LastPosition()([whole, lengths]), rtol=1e-5, atol=1e-6
    )


SHARED = EmbeddingConfig(
    tables=(TableConfig(name="t", vocabulary_size=9, dim=4),),
    features=(
        FeatureConfig(name="seen", table="t", max_sequence_length=3),
        FeatureConfig(name="item", table="t"),
    ),
)


@pytest.mark.parametrize(
    ("module", "arguments"),
    [("sequential", {"history": "seen", "candidate": "item"}), ("din", {"histories": ["seen"], "target": "item"})],
)
def test_models_of_histories_get_their_lengths(module, arguments):
    model = build_model(f"pipelines.models.{module}", SHARED, (), arguments)
    activations = {
        "seen": tf.random.stateless_normal([4, 3, 4], [5, 1]),
        "item": tf.random.stateless_normal([4, 4], [5, 2]),
    }
    ids = {"seen": tf.ragged.constant([[1, 2], [], [3, 4, 5, 6], [7]], tf.int64)}
    lengths = sequence_lengths(SHARED, ids)
    assert lengths["seen/length"].numpy().tolist() == [[2.0], [0.0], [3.0], [1.0]]
    found = call_model(model, activations, lengths)["label"].numpy()
    assert found.shape == (4, 1)
    padding = activations["seen"].numpy()
    padding[0, 2:] = padding[1] = padding[3, 1:] = 9
    np.testing.assert_allclose(call_model(model, {**activations, "seen": padding}, lengths)["label"], found, atol=1e-5)


def test_logit_of_a_normalized_sequence_is_a_cosine():
    item = tf.random.stateless_normal([2, 4], [5, 2])
    inputs = {
        "seen": tf.random.stateless_normal([2, 3, 4], [5, 1]),
        "item": item,
        "seen/length": tf.constant([[2.0], [3.0]]),
    }
    models = [
        build_model(
            "pipelines.models.sequential", SHARED, (), {"history": "seen", "candidate": "item", "normalize": on}
        )
        for on in (False, True)
    ]
    models[1].set_weights(models[0].get_weights())
    query = models[0].query_vectors(inputs).numpy()
    cosine = np.sum(query * item, 1) / np.linalg.norm(query, axis=1) / np.linalg.norm(item, axis=1)
    np.testing.assert_allclose(
        np.sum(models[1].query_vectors(inputs) * models[1].candidate_vectors(inputs), 1), cosine, rtol=1e-5
    )


@pytest.mark.parametrize(
    ("module", "arguments", "words"),
    [
        ("sequential", {"history": "item", "candidate": "item"}, "must be a feature with `max_sequence_length`"),
        ("sequential", {"history": "seen", "candidate": "seen"}, "must be a feature of one vector"),
        ("sequential", {"history": "seen", "candidate": "item", "heads": 3}, "`heads` must divide them"),
        ("sequential", {"history": "seen", "candidate": "item", "heads": 0}, "divide them and be at least 1"),
        ("sequential", {"history": "seen", "candidate": "item", "blocks": 0}, "`blocks` is 0: it must be at least 1"),
        ("din", {"histories": ["item"], "target": "item"}, "a feature with `max_sequence_length`"),
        ("din", {"histories": ["seen"], "target": "seen"}, "a feature of one vector"),
    ],
)
def test_histories_that_do_not_fit_are_refused(module, arguments, words):
    with pytest.raises(ConfigError, match=words):
        build_model(f"pipelines.models.{module}", SHARED, (), arguments)


def test_pairs_of_vectors_are_multiplied():
    vectors = tf.constant([[[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]])
    assert PairwiseDots()(vectors).numpy().tolist() == [[11.0, 17.0, 39.0]]
    assert PairwiseSum()(vectors).numpy().tolist() == [[67.0]]


def test_heads_multiply_their_parts_of_two_vectors():
    layer = BilinearHeads(2)
    first, second = tf.constant([[1.0, 2.0, 3.0, 4.0]]), tf.constant([[5.0, 6.0]])
    layer.build([first.shape, second.shape])
    layer.set_weights([np.ones((2, 2, 1))])
    assert layer([first, second]).numpy().tolist() == [[15.0, 42.0]]


def test_dot_product_of_the_towers_is_the_logit():
    model = build_model("pipelines.models.two_tower", CONFIG, DENSE, {**TOWERS, "hidden_units": [8]})
    for variable in model.trainable_variables:
        variable.assign(tf.random.stateless_normal(variable.shape, [2, 2]))
    inputs = {**EMBEDDINGS, **DENSE}
    dots = tf.reduce_sum(model.query_vectors(inputs) * model.candidate_vectors(inputs), axis=1, keepdims=True)
    np.testing.assert_allclose(dots, call_model(model, EMBEDDINGS, DENSE)["label"], rtol=1e-4, atol=1e-5)


def test_logit_of_normalized_towers_is_a_cosine_and_biases():
    arguments = {"query_features": ["user"], "candidate_features": ["item"], "normalize": True}
    model = build_model("pipelines.models.two_tower", CONFIG, DENSE, arguments)
    user, item = EMBEDDINGS["user"].numpy(), np.zeros_like(EMBEDDINGS["item"])
    item[1:] = EMBEDDINGS["item"][1:]
    lengths = np.linalg.norm(user[:, 1:], axis=1) * np.maximum(np.linalg.norm(item[:, 1:], axis=1), 1e-9)
    found = call_model(model, {**EMBEDDINGS, "item": tf.constant(item)}, DENSE)["label"]
    expected = np.sum(user[:, 1:] * item[:, 1:], 1) / lengths + user[:, 0] + item[:, 0]
    np.testing.assert_allclose(found[:, 0], expected, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(found[0, 0], user[0, 0], rtol=1e-6)  # the candidate's vector is zero


def test_gradient_of_a_vector_of_zeros_is_not_multiplied():
    """Else the bias of a tower would follow rows without a token alone."""
    vectors = tf.constant([[0.0, 0.0], [3.0, 4.0]])
    with tf.GradientTape() as tape:
        tape.watch(vectors)
        units = UnitLength()(vectors)
        total = tf.reduce_sum(units * [[2.0, 1.0], [1.0, 0.0]])
    np.testing.assert_allclose(units, [[0, 0], [0.6, 0.8]], rtol=1e-6)
    np.testing.assert_allclose(tape.gradient(total, vectors), [[2, 1], [0.128, -0.096]], rtol=1e-5)


@pytest.mark.parametrize(
    ("module", "arguments", "words"),
    [
        ("final_mlp", {"heads": 0}, "`heads` is 0: `heads` must be at least 1"),
        (
            "final_mlp",
            {"second_units": [10]},
            r"`second_units` is \[10\] and `heads` is 4: .* the last width a multiple",
        ),
        ("mmoe", {"experts": 0}, "`experts` is 0: it must be at least 1"),
        ("ple", {"task_experts": 0, "shared_experts": 0}, "`shared_experts` is 0: one must be at least 1"),
    ],
)
def test_parts_that_a_model_must_have_are_asked_for(module, arguments, words):
    with pytest.raises(ConfigError, match=words):
        build_model(f"pipelines.models.{module}", CONFIG, DENSE, arguments)


@pytest.mark.parametrize("query", [[], ["nobody"], ["item"]])
def test_towers_that_cannot_be_are_refused(query):
    with pytest.raises(ConfigError, match="query_features"):
        build_model("pipelines.models.two_tower", CONFIG, DENSE, {**TOWERS, "query_features": query})


def test_module_without_build_is_refused():
    with pytest.raises(ConfigError, match="has no function `build`"):
        build_model("json", CONFIG, [], {})


def test_model_with_an_input_of_its_own_is_refused(monkeypatch):
    def build(config, embeddings, dense):
        return tf_keras.Model([*embeddings.values(), tf_keras.Input((1,), name="age")], embeddings["user"][:, :1])

    monkeypatch.setitem(sys.modules, "aged", types.SimpleNamespace(build=build, __name__="aged"))
    with pytest.raises(ConfigError, match=r"'aged' returned a model with the inputs \['age'\]"):
        build_model("aged", CONFIG, DENSE, {})


def test_dropout_continues_after_a_restore(tmp_path):
    x = tf.ones([4, 8])
    layer = SeededDropout(0.5, seed=3)
    layer(x, training=True)
    path = tf.train.Checkpoint(layer=layer).write(str(tmp_path / "c"))
    expected = layer(x, training=True)
    other = SeededDropout(0.5, seed=3)
    tf.train.Checkpoint(layer=other).read(path).assert_consumed()
    np.testing.assert_array_equal(other(x, training=True), expected)
    np.testing.assert_array_equal(other(x, training=False), x)


def test_dropout_inside_a_model_is_checkpointed_with_it():
    inputs = tf_keras.Input((4,))
    model = tf_keras.Model(inputs, SeededDropout(0.5)(inputs))
    assert [variable.shape for variable in model.non_trainable_variables] == [()]
