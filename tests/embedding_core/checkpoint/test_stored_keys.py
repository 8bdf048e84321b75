from typing import get_args

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from embedding_core.checkpoint import BundleReader, retrieve
from embedding_core.checkpoint.stored_keys import _KERAS_NAMES, others_at, training_key
from embedding_core.config import EmbeddingConfig, FeatureConfig, TableConfig
from embedding_core.engines import HostEngine, TPUEmbedding, simulated_tpu
from embedding_core.errors import CheckpointError
from embedding_core.layer import TPUEmbedding as TPUEmbeddingLayer
from embedding_core.optimizers import FTRL, SGD, Adagrad, Adam, Optimizer, _KnownOptimizer

KERAS = [(Adagrad(), "Adagrad"), (Adam(), "Adam"), (FTRL(), "Ftrl"), (SGD(), "SGD")]


def config(optimizer: Optimizer) -> EmbeddingConfig:
    tables = [TableConfig(name=name, vocabulary_size=7, dim=3, optimizer=optimizer) for name in ("a.b", "item")]
    features = [FeatureConfig(name=f"f.{table.name}", table=table.name) for table in tables]
    return EmbeddingConfig(tables=tuple(tables), features=tuple(features))


def read(folder) -> dict[str, np.ndarray]:
    reader = BundleReader(str(folder / "tables"))
    return {key: np.concatenate([rows for _, rows in reader.slices(key)]) for key in reader.entries}


class Tables(tf.train.Checkpoint):
    """A checkpoint of tables that a Keras optimizer trained, with slots under the optimizer's own names."""

    def __init__(self, optimizer):
        self.own = {name: tf.Variable(tf.random.normal([7, 3]), name=name) for name in ("a.b", "item")}
        super().__init__(tables=tf.train.Checkpoint(**self.own), optimizer=optimizer, step=tf.Variable(5))
        for _ in range(2):
            optimizer.apply_gradients([(tf.random.normal([7, 3]), variable) for variable in self.own.values()])


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize(("optimizer", "name"), KERAS)
def test_slots_of_keras_optimizers_are_found(tmp_path, optimizer, name, legacy):
    keras = getattr(tf_keras.optimizers.legacy if legacy else tf_keras.optimizers, name)()
    trained = Tables(keras)
    retrieve(trained.write(str(tmp_path / "ckpt")), config(optimizer), tmp_path / "out", vocabularies={})
    found = read(tmp_path / "out")
    names = {"accumulators": "accumulator", "momenta": "m", "velocities": "v", "linears": "linear"}
    for table, variable in trained.own.items():
        np.testing.assert_array_equal(found[table], variable.numpy())
        for slot in optimizer.slots:
            if legacy:
                expected = keras.get_slot(variable, names[slot.name])
            else:
                (expected,) = [each for each in keras.variables if each.name == f"{name}/{names[slot.name]}/{table}:0"]
            np.testing.assert_array_equal(found[f"{table}/{slot.name}"], expected.numpy())


def test_names_of_other_tables_are_shown_as_they_were_given(tmp_path):
    held = tf.train.Checkpoint(**{name: tf.Variable(tf.zeros([7, 3])) for name in ("x.Sales", "a..S", "item")})
    reader = BundleReader(held.write(str(tmp_path / "ckpt")))
    assert others_at(reader, "", [training_key("item", "")]) == {"a..S": (7, 3), "x.Sales": (7, 3)}


def test_tables_of_every_engine_are_found(tmp_path):
    made = config(Adam())
    on_host = HostEngine(made)
    off_tpu = TPUEmbedding(made, None)
    off_tpu.build()
    with simulated_tpu(hosts=1, cores_per_host=2).scope():
        on_tpu = TPUEmbedding(made, None)
        on_tpu.build(4)
    holders = {"host": on_host.tables, "off": off_tpu, "tpu": on_tpu}
    for name, holder in holders.items():
        prefix = tf.train.Checkpoint(model=tf.train.Checkpoint(deep=holder)).write(str(tmp_path / name / "ckpt"))
        retrieve(prefix, made, tmp_path / name / "out", vocabularies={})
        found = read(tmp_path / name / "out")
        expected = tf.train.load_checkpoint(prefix)
        for key, rows in found.items():
            stored = f"model/deep/{key.replace('.', '..').replace('/', '.S')}/.ATTRIBUTES/VARIABLE_VALUE"
            np.testing.assert_array_equal(rows, expected.get_tensor(stored))


def test_tables_in_two_places_need_a_root(tmp_path):
    made = config(SGD())
    both = tf.train.Checkpoint(one=HostEngine(made).tables, two=HostEngine(made, seed=1).tables)
    prefix = both.write(str(tmp_path / "ckpt"))
    with pytest.raises(CheckpointError, match=r"equally many of the tables .* at \['one', 'two'\]"):
        retrieve(prefix, made, tmp_path / "out", vocabularies={})
    retrieve(prefix, made, tmp_path / "out", vocabularies={}, root="two")
    np.testing.assert_array_equal(read(tmp_path / "out")["item"], both.two.item.numpy())


def test_checkpoint_without_any_of_the_tables_is_refused(tmp_path):
    prefix = tf.train.Checkpoint(step=tf.Variable(1)).write(str(tmp_path / "ckpt"))
    with pytest.raises(CheckpointError, match="none of the tables"):
        retrieve(prefix, config(SGD()), tmp_path / "out", vocabularies={})


@pytest.mark.parametrize("mode", ["keras", "engine"])
def test_tables_of_the_keras_layer_are_found(tmp_path, mode):
    table = tf.tpu.experimental.embedding.TableConfig(7, 3, name="item")
    feature = {"f": tf.tpu.experimental.embedding.FeatureConfig(table=table)}
    layer = TPUEmbeddingLayer(feature, tf_keras.optimizers.Adagrad(0.1), table_update=mode)
    inputs = {"f": tf_keras.Input([1], dtype=tf.int32)}
    model = tf_keras.Model(inputs, tf_keras.layers.Dense(1)(layer(inputs)["f"]))
    model.compile(tf_keras.optimizers.Adagrad(0.1), "mse")
    model.fit({"f": tf.constant([[1], [2], [3], [3]])}, tf.ones([4, 1]), verbose=0)
    prefix = tf.train.Checkpoint(model=model).write(str(tmp_path / "ckpt"))
    made = TableConfig(name="item", vocabulary_size=7, dim=3, optimizer=Adagrad())
    features = (FeatureConfig(name="f", table="item"),)
    retrieve(prefix, EmbeddingConfig(tables=(made,), features=features), tmp_path / "out", vocabularies={})
    found = read(tmp_path / "out")
    np.testing.assert_array_equal(found["item"], next(iter(layer.embedding_tables.values())).numpy())
    trained = (found["item/accumulators"] != 0.1).any(axis=1)
    np.testing.assert_array_equal(np.flatnonzero(trained), [1, 2, 3])


def test_every_slot_has_a_name_in_keras():
    assert {slot.name for kind in get_args(_KnownOptimizer) for slot in kind().slots} <= set(_KERAS_NAMES)
