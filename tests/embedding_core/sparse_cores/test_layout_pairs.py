"""Every layout of tables restores what every other one saved: hosts, cores, whole copies, stacks on SparseCores."""

import functools
import itertools

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.tpu import tpu_embedding_v3_utils as upstream

from embedding_core.checkpoint import retrieve
from embedding_core.checkpoint.retrieve import load_checkpoint_into
from embedding_core.engines import HostEngine, TPUEmbedding, TPUEmbeddingV0, simulated_tpu
from embedding_core.errors import CheckpointError
from embedding_core.optimizers import Adagrad, Adam
from embedding_core.sparse_cores import Slice, SparseCoreEmbeddingConfig
from embedding_core.sparse_cores.stored_tables import stacked_copies, stacks_of_names
from embedding_core.sparse_cores.tpu_embedding import TPUEmbeddingV2
from embedding_core.translate import config_to_tensorflow
from tests.support.tables import config_of

simulated_tpu(hosts=2, cores_per_host=4)  # makes the logical devices before TensorFlow runs its first operation
SIZES = {"d": (64, 16, Adam()), "b": (7, 8, Adagrad()), "a": (40, 3, Adagrad())}  # d needs no padding
KEYS = ("vocabulary_size", "dim", "optimizer")
CONFIG = config_of(**{name: dict(zip(KEYS, settings, strict=True)) for name, settings in SIZES.items()})
OF_TENSORFLOW = "TensorFlow 2.16, 2 chips x 4"
SLICE = Slice(2, 4)
TOPOLOGIES = {
    "host": None,
    "V1 1x2": {"hosts": 1, "cores_per_host": 2},
    "V1 2x2": {"hosts": 2, "cores_per_host": 2},
    "V0 1x2": {"cores_per_host": 2, "embedding_feature": "V0"},
    "V2 1 chip x 4": {"cores_per_host": 1, "embedding_feature": "V2", "sparse_cores": 4},
    "V2 2 chips x 4": {"cores_per_host": 2, "embedding_feature": "V2", "sparse_cores": 4},
    "V2 4 chips x 2, not stacked": {"cores_per_host": 4, "embedding_feature": "V2", "sparse_cores": 2},
    OF_TENSORFLOW: None,
}


@functools.cache
def values():
    """The rows of every table and slot, by checkpoint key."""
    generator = np.random.default_rng(0)
    host = HostEngine(CONFIG)
    return {
        key: generator.normal(size=variable.shape).astype(np.float32) for key, variable in host.table_variables.items()
    }


def holder_of(layout):
    """Create the object that holds the tables in a layout of this project."""
    topology = TOPOLOGIES[layout]
    if topology is None:
        return HostEngine(CONFIG).tables
    features = config_to_tensorflow(CONFIG)
    for feature in features.values():
        feature.output_shape = tf.TensorShape([8])
    strategy = simulated_tpu(**topology)
    with strategy.scope():
        if strategy.embedding_feature == "V2":
            limits = SparseCoreEmbeddingConfig(disable_table_stacking="not stacked" in layout)
            holder = TPUEmbeddingV2(features, sparse_core_embedding_config=limits)
        else:
            holder = {"V0": TPUEmbeddingV0, "V1": TPUEmbedding}[strategy.embedding_feature](features, None)
    holder.build()
    return holder


def as_variables(rows):
    return {key: tf.Variable(value) for key, value in rows.items()}


def names_of_tensorflow():
    """The names of the stacks, by TensorFlow's own C++, which takes tables in the order in which features use them."""
    wrapper = pytest.importorskip("tensorflow.python.tpu._pywrap_tpu_embedding")
    padded = {name: (-(-rows // 64) * 64, -(-dim // 8) * 8) for name, (rows, dim, _) in SIZES.items()}
    heights, widths = zip(*padded.values(), strict=True)
    stacks = wrapper.stack_tables(heights, widths, [8] * 3, [0, 1, 1], list(SIZES), SLICE.chips)
    return ["_".join(stack) for stack in stacks]


def in_tensorflows_layout(rows):
    stacks = stacks_of_names(names_of_tensorflow(), CONFIG, SLICE)
    return stacked_copies(as_variables(rows), stacks, SLICE.shards)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """The checkpoint of each layout, by its name."""

    @functools.cache
    def of(layout):
        folder = tmp_path_factory.mktemp("saved")
        if layout == OF_TENSORFLOW:
            holder = in_tensorflows_layout(values())
        else:
            from_host = HostEngine(CONFIG)
            for key, variable in from_host.table_variables.items():
                variable.assign(values()[key])
            first = tf.train.Checkpoint(embedding=from_host.tables).write(str(folder / "first"))
            holder = holder_of(layout)
            tf.train.Checkpoint(embedding=holder).read(first).assert_consumed()
        return tf.train.Checkpoint(embedding=holder).write(str(folder / "of"))

    return of


def retrieved(prefix, layout, folder):
    """The rows of a checkpoint of any layout, by key."""
    retrieve(prefix, CONFIG, folder, vocabularies={}, slice_=SLICE if layout == OF_TENSORFLOW else None)
    host = HostEngine(CONFIG)
    load_checkpoint_into(folder, host.table_variables, CONFIG, vocabulary_digests={})
    return host


def read_by_tensorflow(holder):
    """Unstack with TensorFlow's own function."""
    found = {}
    for key in values():
        name, _, slot = key.partition("/")
        (stack,) = [stack for stack in stacks_of_names(names_of_tensorflow(), CONFIG, SLICE) if name in stack.name]
        (table,) = [table for table in stack.tables if table.name == name]
        stacked = getattr(holder, f"{stack.name}/{slot}" if slot else stack.name)
        size = table.padded_rows // SLICE.shards
        whole = upstream.unshuffle_from_sc_to_cpu(stacked, SLICE.shards, table.first_row, size, table.rotation)
        found[key] = upstream.remove_padding_from_sc(whole, SIZES[name][:2]).numpy()
    return found


@pytest.mark.parametrize(("source", "target"), itertools.product(TOPOLOGIES, TOPOLOGIES))
def test_rows_and_slots_are_those_that_another_layout_saved(saved, tmp_path, source, target):
    prefix = saved(source)
    if target == OF_TENSORFLOW:
        rows = {
            key: variable.numpy()
            for key, variable in retrieved(prefix, source, tmp_path / "out").table_variables.items()
        }
        found = read_by_tensorflow(in_tensorflows_layout(rows))
    else:
        if source == OF_TENSORFLOW:
            host = retrieved(prefix, source, tmp_path / "out")
            prefix = tf.train.Checkpoint(embedding=host.tables).write(str(tmp_path / "plain"))
        holder = holder_of(target)
        tf.train.Checkpoint(embedding=holder).read(prefix).assert_consumed()
        children = holder._trackable_children()
        found = {key: children[key].numpy() for key in values()}
    for key, rows in values().items():
        np.testing.assert_array_equal(found[key], rows, err_msg=key)


def test_stack_whose_name_fits_several_tables_is_refused():
    config = config_of(a={}, b={}, a_b={}, c={}, b_c={})
    with pytest.raises(CheckpointError, match=r"\['a', 'b_c'\] or \['a', 'b', 'c'\] or \['a_b', 'c'\]: rename"):
        stacks_of_names(["a_b_c"], config, Slice(1, 4))
