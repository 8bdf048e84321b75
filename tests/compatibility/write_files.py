"""Writes small files in every format, with the code of the commit that is checked out: see README.md beside it.

python tests/compatibility/write_files.py <new folder> [--rows-dtypes float32 float16] [--layouts host ...]
"""

import argparse
import os
from pathlib import Path

os.environ["TF_USE_LEGACY_KERAS"] = "1"
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import numpy as np
import pyarrow as pa
import tensorflow as tf

from components.pusher.publish import publish
from embedding_core.checkpoint import retrieve
from embedding_core.config import ColumnConfig, EmbeddingConfig, FeatureConfig, TableConfig
from embedding_core.engines import HostEngine, TPUEmbedding, TPUEmbeddingV0, simulated_tpu
from embedding_core.optimizers import Adagrad, Adam
from embedding_core.serving import export_embeddings
from embedding_core.translate import config_to_tensorflow
from embedding_core.vocabulary import Vocabulary

SIZES = {"d": (16, 8, Adam()), "b": (7, 8, Adagrad()), "a": (20, 3, Adagrad())}
CONFIG = EmbeddingConfig(
    tables=tuple(
        TableConfig(
            name=name,
            vocabulary_size=rows,
            dim=dim,
            optimizer=optimizer,
            **({"vocabulary": "words", "oov_rows": 1} if name == "b" else {}),
        )
        for name, (rows, dim, optimizer) in SIZES.items()
    ),
    features=tuple(
        FeatureConfig(name=f"of_{name}", table=name, column=ColumnConfig(name=name, dtype=dtype))
        for name, dtype in (("d", "int64"), ("b", "string"), ("a", "int64"))
    ),
)
TOKENS = [b"one", b"two", b"three", b"four", b"five", "šest".encode()]
LAYOUTS = {
    "host": None,
    "v1_2_hosts_2_cores": {"hosts": 2, "cores_per_host": 2},
    "v0_2_cores": {"cores_per_host": 2, "embedding_feature": "V0"},
    "v2_2_chips_4_sparse_cores": {"cores_per_host": 2, "embedding_feature": "V2", "sparse_cores": 4},
    "v2_2_chips_2_sparse_cores_not_stacked": {"cores_per_host": 2, "embedding_feature": "V2", "sparse_cores": 2},
}
REQUEST = {"d": [3, 15], "b": [TOKENS[5], b"unknown"], "a": [0, 19]}
NUMBER = 1790000000


def holder_of(layout):
    """Create the object that holds the tables in a layout."""
    if LAYOUTS[layout] is None:
        return HostEngine(CONFIG).tables
    features = config_to_tensorflow(CONFIG)
    for feature in features.values():
        feature.output_shape = tf.TensorShape([8])
    strategy = simulated_tpu(**LAYOUTS[layout])
    with strategy.scope():
        if layout.startswith("v2"):  # which older commits lack
            from embedding_core.sparse_cores import SparseCoreEmbeddingConfig
            from embedding_core.sparse_cores.tpu_embedding import TPUEmbeddingV2

            limits = SparseCoreEmbeddingConfig(disable_table_stacking="not_stacked" in layout)
            holder = TPUEmbeddingV2(features, sparse_core_embedding_config=limits)
        else:
            holder = (TPUEmbeddingV0 if layout.startswith("v0") else TPUEmbedding)(features, None)
    holder.build()
    return holder


def example(position):
    """Make a serialized tf.Example of one position of REQUEST."""
    made = tf.train.Example()
    for name, values in REQUEST.items():
        feature = made.features.feature[name]
        (feature.bytes_list if name == "b" else feature.int64_list).value.append(values[position])
    return made.SerializeToString()


def main():
    """Write checkpoints in every layout, an embedding checkpoint, versions, and what they contain."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rows-dtypes", nargs="+", default=["float32", "float16"])
    parser.add_argument("--layouts", nargs="+", default=list(LAYOUTS), help="host first")
    given = parser.parse_args()
    simulated_tpu(hosts=2, cores_per_host=2)  # makes the logical devices before TensorFlow runs its first operation
    given.folder.mkdir()
    host, generator = HostEngine(CONFIG), np.random.default_rng(0)
    for variable in host.table_variables.values():
        variable.assign(generator.normal(size=variable.shape).astype(np.float32))
    expected = {f"tables/{key}": variable.numpy() for key, variable in host.table_variables.items()}
    first = str(given.folder / "host" / "ckpt")
    for layout in given.layouts:
        holder = holder_of(layout)
        if layout == "host":
            holder = host.tables
        else:
            tf.train.Checkpoint(embedding=holder).read(first).assert_consumed()
        tf.train.Checkpoint(embedding=holder).write(str(given.folder / layout / "ckpt"))
    words = Vocabulary(
        name="words",
        tokens=pa.array(TOKENS, pa.large_binary()),
        counts=np.arange(6, 0, -1),
        total_count=21,
        distinct=6,
        features={},
    )
    checkpoint = given.folder / "embedding_checkpoint"
    retrieve(first, CONFIG, checkpoint, vocabularies={"words": words})
    examples = [example(0), example(1)]
    for dtype in given.rows_dtypes:
        model = given.folder / "model"
        export_embeddings(checkpoint, model, rows_dtype=dtype)
        publish(model, given.folder / f"served_{dtype}", check=lambda _: {"identity": "one"}, clock=lambda: NUMBER)
        answers = tf.saved_model.load(str(model)).signatures["serving_default"](tf.constant(examples))
        expected |= {f"answers/{dtype}/{name}": value.numpy() for name, value in answers.items()}
        tf.io.gfile.rmtree(str(model))
    expected |= {f"examples/{number}": np.frombuffer(encoded, np.uint8) for number, encoded in enumerate(examples)}
    np.savez_compressed(given.folder / "expected.npz", **expected)


if __name__ == "__main__":
    main()
