"""Configurations for hardware are copies or translations; settings that hardware would ignore are refused."""

import pytest
import tensorflow as tf

from embedding_core import FTRL, SGD, Adagrad, AdagradMomentum, Adam, EmbeddingConfig, FeatureConfig, TableConfig
from embedding_core.engines import TPUEmbeddingV0, simulated_tpu
from embedding_core.engines.hardware_configs import copied_configs, refuse_ignored
from embedding_core.translate import model_of, optimizer_to_core, optimizer_to_tensorflow

tpu = tf.tpu.experimental.embedding

OPTIMIZERS = [
    SGD(clipvalue=0.5, clip_weight_min=-1.0),
    Adagrad(initial_accumulator_value=0.3, weight_decay_factor=0.1),
    AdagradMomentum(momentum=0.9, exponent=3.0, use_nesterov=True, beta2=0.9),
    Adam(lazy_adam=False, sum_inside_sqrt=False, clipvalue=(None, 1.0)),
    FTRL(beta=0.1, l1_regularization_strength=0.2, multiply_linear_by_learning_rate=True),
]


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda optimizer: type(optimizer).__name__)
def test_optimizer_there_and_back_is_the_same(optimizer):
    back = optimizer_to_core(optimizer_to_tensorflow(optimizer))
    assert back.gradient_bounds == optimizer.gradient_bounds
    assert vars(back) | {"clipvalue": 0} == vars(optimizer) | {"clipvalue": 0}


@pytest.mark.parametrize(
    ("optimizer", "message"),
    [
        ("sgd", "unsupported optimizer class"),
        (tf.keras.optimizers.legacy.SGD(), "unsupported optimizer class"),
        (tpu.SGD(learning_rate=-1.0), "`learning_rate` of SGD"),
        (tpu.AdagradMomentum(beta2=5.0), "`beta2` of AdagradMomentum"),
        (tpu.FTRL(learning_rate_power=1.0), "`learning_rate_power` of FTRL"),
    ],
)
def test_optimizer_that_cannot_be_meant_is_refused(optimizer, message):
    with pytest.raises(ValueError, match=message):
        optimizer_to_core(optimizer)


def test_copies_share_tables_as_the_originals_do():
    table = tpu.TableConfig(7, 2)
    features = {"a": tpu.FeatureConfig(table), "b": tpu.FeatureConfig(table)}
    copies, _ = copied_configs(features, tpu.SGD())
    assert copies["a"].table is copies["b"].table is not table


@pytest.mark.parametrize("packed", [False, True])
def test_protos_get_the_number_of_an_enum(packed):
    """protobuf 7 refuses a bool for an enum field, and TensorFlow's classes pass the bool on."""
    given = tpu.SGD(low_dimensional_packing_status=packed)
    feature, optimizer = copied_configs(tpu.FeatureConfig(tpu.TableConfig(7, 2, optimizer=given)), given)
    for copied in (feature.table.optimizer, optimizer):
        assert type(copied.low_dimensional_packing_status) is int
        assert copied.low_dimensional_packing_status == packed
        assert vars(copied) == vars(given)
    assert type(given.low_dimensional_packing_status) is bool


def test_own_configuration_is_translated_for_hardware():
    config = EmbeddingConfig(
        tables=(TableConfig(name="t", vocabulary_size=7, dim=2, combiner="sqrtn", optimizer=Adam()),),
        features=(FeatureConfig(name="f", table="t", max_sequence_length=3),),
    )
    features, optimizer = copied_configs(config, SGD(learning_rate=0.3))
    table = features["f"].table
    assert (table.name, table.vocabulary_size, table.dim, table.combiner) == ("t", 7, 2, "sqrtn")
    assert isinstance(table.optimizer, tpu.Adam)
    assert features["f"].max_sequence_length == 3
    assert optimizer.learning_rate == 0.3


def test_schedule_on_hardware_is_refused():
    schedule = tf.keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.9)
    with pytest.raises(ValueError, match="without arguments"):
        copied_configs(tpu.FeatureConfig(tpu.TableConfig(7, 2)), SGD(learning_rate=schedule))


@pytest.mark.parametrize(
    ("optimizer", "name"),
    [
        (tpu.SGD(clipvalue=1.0), "clipvalue"),
        (tpu.SGD(clip_weight_max=1.0), "clip_weight_max"),
        (tpu.Adam(weight_decay_factor=0.1), "weight_decay_factor"),
        (tpu.Adam(lazy_adam=False), "lazy_adam"),
        (tpu.SGD(use_gradient_accumulation=False), "use_gradient_accumulation"),
        (tpu.SGD(low_dimensional_packing_status=True), "low_dimensional_packing_status"),
    ],
)
def test_hyperparameter_that_sparse_cores_ignore_is_refused(optimizer, name):
    model = model_of(tpu.FeatureConfig(tpu.TableConfig(7, 2)), optimizer, needs_optimizer=True)
    with pytest.raises(ValueError, match=f"`{name}`.*SparseCore"):
        refuse_ignored(model, "V2")


def test_hyperparameter_that_v0_cores_ignore_is_refused():
    feature = tpu.FeatureConfig(tpu.TableConfig(7, 2))
    with (
        simulated_tpu(embedding_feature="V0").scope(),
        pytest.raises(ValueError, match=r"`clipvalue`.*Keras optimizer"),
    ):
        TPUEmbeddingV0(feature, tpu.SGD(clipvalue=1.0))


def test_policy_for_invalid_ids_on_hardware_is_refused():
    config = EmbeddingConfig(
        tables=(TableConfig(name="t", vocabulary_size=7, dim=2),),
        features=(FeatureConfig(name="f", table="t", invalid_id="drop"),),
    )
    with pytest.raises(ValueError, match="`invalid_id` of feature 'f'"):
        copied_configs(config, SGD())


def test_two_tables_of_one_name_are_refused():
    features = [tpu.FeatureConfig(tpu.TableConfig(7, 2, name="t")) for _ in range(2)]
    with pytest.raises(ValueError, match="Multiple tables with name t found"):
        model_of(features, tpu.SGD(), needs_optimizer=True)
