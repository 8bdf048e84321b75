"""Makes small versions, and the checkpoint of their tables, to be served without a training."""

import numpy as np
import tensorflow as tf

from components.pusher.publish import publish
from embedding_core.checkpoint import write_tables
from embedding_core.config import ColumnConfig, EmbeddingConfig, FeatureConfig, TableConfig
from tests.support.vocabularies import vocabulary_of

PRIVATE, PUBLIC = b"anna", b"<b>item</b>"
CONFIG = EmbeddingConfig(
    tables=(
        TableConfig(name="item", vocabulary_size=5, dim=2, vocabulary="item", oov_rows=1),
        TableConfig(name="user", vocabulary_size=2, dim=2, vocabulary="user"),
        TableConfig(name="raw", vocabulary_size=30, dim=2),
    ),
    features=(
        FeatureConfig(name="item", table="item", column=ColumnConfig(name="item", multivalent=True)),
        FeatureConfig(name="user", table="user", column=ColumnConfig(name="user", private=True)),
        FeatureConfig(name="raw", table="raw"),
    ),
)
ITEMS = [[1, 0], [0, 1], [2, 0.1], [0, 0], [1, 0]]  # the last is that of unknown tokens
FACTS = {"public": {"columns": ["item"], "answers": False}, "sources": {"model_run": "gone"}}


def spec(name, dtype, *sizes):
    return tf.TensorSpec([None, *sizes], dtype, name=name)


def push_model(folder, base, number, added=0.0):
    """Publish a model whose scores are prices plus `added`; return the path of the version."""
    module = tf.Module()
    module.added = tf.Variable(added)
    columns = spec("item", tf.string, None), spec("price", tf.float32), spec("number", tf.int64)

    def raw(item, price, number):
        return {"score": price + module.added, "item": item[:, 0], "next": number + 1, "item_bytes": item[:, 0]}

    def checked(examples):
        with tf.control_dependencies([tf.debugging.assert_none_equal(examples, b"bad", message="bad row")]):
            return {"length": tf.cast(tf.strings.length(examples), tf.float32) / 3 + module.added}

    signatures = {
        "raw": tf.function(raw).get_concrete_function(*columns),
        "serving_default": tf.function(checked).get_concrete_function(spec("examples", tf.string)),
        "counters": tf.function(lambda: {"dropped": tf.constant([1, 2])}).get_concrete_function(),
    }
    tf.saved_model.save(module, str(folder), signatures=signatures)
    return publish(folder, base, check=lambda path: FACTS, clock=lambda: float(number)).path


def write_checkpoint(folder):
    """Write the checkpoint of the tables; the tokens of `user` are private."""
    rows = {"item": ITEMS, "user": [[1, 2], [3, 4]], "raw": [[number, 1] for number in range(30)]}
    vocabularies = {
        "item": vocabulary_of([PUBLIC, b"i1", b"\xff", b"i3"], "item"),
        "user": vocabulary_of([PRIVATE, b"bert"], "user", private=True),
    }
    arrays = {name: np.array(values, np.float32) for name, values in rows.items()}
    write_tables(folder, CONFIG, lambda key: [(0, arrays[key])], step=1, vocabularies=vocabularies)
    return str(folder)
