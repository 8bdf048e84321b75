"""Saves tables with k hosts or cores and loads them with j, for k and j from 1 to 8; the row counts are primes."""

import json
import sys

import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf

from embedding_core.checkpoint import BundleWriter, load_checkpoint_into, retrieve, table_shapes, training_key
from embedding_core.config import EmbeddingConfig, FeatureConfig, TableConfig
from embedding_core.engines import TPUEmbedding, simulated_tpu
from embedding_core.optimizers import SGD, Adam
from embedding_core.planning.topology import row_blocks
from embedding_core.vocabulary import Vocabulary

CONFIG = EmbeddingConfig(
    tables=(
        TableConfig(name="item", vocabulary_size=101, dim=6, optimizer=Adam(), vocabulary="item", oov_rows=2),
        TableConfig(name="few", vocabulary_size=3, dim=5, optimizer=Adam()),  # fewer rows than shards
        TableConfig(name="plain", vocabulary_size=37, dim=3, optimizer=SGD()),
    ),
    features=tuple(FeatureConfig(name=name, table=name) for name in ("item", "few", "plain")),
)
ITEMS = Vocabulary(
    name="item",
    tokens=pa.array([b"%d" % row for row in range(99)], pa.large_binary()),
    counts=np.ones(99, np.int64),
    total_count=99,
    distinct=99,
)
DIGESTS = {"item": ITEMS.digest}
CORES = {1: (1, 1), 2: (2, 1), 3: (1, 3), 4: (2, 2), 5: (1, 5), 6: (2, 3), 7: (1, 7), 8: (2, 4)}


def truth(seed: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    return {key: random.normal(size=shape).astype(np.float32) for key, shape in table_shapes(CONFIG).items()}


def blocks(rows: np.ndarray, count: int) -> list[tuple[int, np.ndarray]]:
    """Return (number of the first row, rows) of each shard; the first shards hold one more row, as on a TPU."""
    sizes = [size for size in row_blocks(len(rows), count) if size]
    starts = np.cumsum([0, *sizes[:-1]])
    return [(int(start), rows[start : start + size]) for start, size in zip(starts, sizes, strict=True)]


def differing_rows(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> int:
    assert found.keys() == expected.keys()
    return sum(int((found[key] != expected[key]).any(axis=1).sum()) for key in expected)


def report(campaign: str, pairs: int, differing: int) -> None:
    sys.stdout.write(json.dumps({"campaign": campaign, "pairs": pairs, "rows_and_slots_that_differ": differing}) + "\n")
    assert (pairs, differing) == (64, 0)


def test_shards_are_written_and_read_in_any_number(tmp_path):
    """Load tensors that were saved in k slices, as hosts save them, into j variables with a block of rows each."""
    pairs = differing = 0
    for k in range(1, 9):
        tables = truth(k)
        (tmp_path / f"{k}").mkdir()
        writer = BundleWriter(str(tmp_path / f"{k}/ckpt"), slice_bytes=1)
        for key, rows in tables.items():
            for start, block in reversed(blocks(rows, k)):
                writer.add(training_key(key), rows.shape, start, block)
        writer.close()
        retrieve(tmp_path / f"{k}/ckpt", CONFIG, tmp_path / f"{k}/out", vocabularies={"item": ITEMS}, slice_bytes=300)
        for j in range(1, 9):
            shards = {
                key: [tf.Variable(tf.zeros_like(block)) for _, block in blocks(rows, j)] for key, rows in tables.items()
            }
            load_checkpoint_into(tmp_path / f"{k}/out", shards, CONFIG, vocabulary_digests=DIGESTS, slice_bytes=100 * j)
            found = {key: np.concatenate([shard.numpy() for shard in own]) for key, own in shards.items()}
            pairs, differing = pairs + 1, differing + differing_rows(found, tables)
    report("reshard k slices to j variables", pairs, differing)


def engine_on(cores: int) -> tuple[TPUEmbedding, dict[str, tf.Variable]]:
    """A TPUEmbedding on a simulated TPU, and its variables by key."""
    hosts, cores_per_host = CORES[cores]
    with simulated_tpu(hosts=hosts, cores_per_host=cores_per_host).scope():
        engine = TPUEmbedding(CONFIG, None)
        engine.build(4)
    holder = tf.train.Checkpoint(engine=engine)
    return engine, {key: _tracked(holder.engine, key) for key in table_shapes(CONFIG)}


def _tracked(engine: TPUEmbedding, key: str) -> tf.Variable:
    table, _, slot = key.partition("/")
    return engine._engine.variables[table][slot or "parameters"]


def test_simulated_tpus_of_any_number_of_cores_exchange_tables(tmp_path):
    pairs = differing = 0
    for k in range(1, 9):
        tables = truth(k)
        engine, variables = engine_on(k)
        for key, rows in tables.items():
            variables[key].assign(rows)
        prefix = tf.train.Checkpoint(embedding=engine).write(str(tmp_path / f"{k}/ckpt"))
        retrieve(prefix, CONFIG, tmp_path / f"{k}/out", vocabularies={"item": ITEMS})
    for j in range(1, 9):
        _, variables = engine_on(j)
        for k in range(1, 9):
            load_checkpoint_into(tmp_path / f"{k}/out", variables, CONFIG, vocabulary_digests=DIGESTS)
            found = {key: variable.numpy() for key, variable in variables.items()}
            pairs, differing = pairs + 1, differing + differing_rows(found, truth(k))
    report("reshard k simulated cores to j", pairs, differing)


@pytest.mark.parametrize("rows", [101, 99])
def test_shards_that_do_not_make_up_the_table_are_refused(tmp_path, rows):
    writer = BundleWriter(str(tmp_path / "ckpt"))
    for key, table in truth(0).items():
        writer.add(training_key(key), table.shape, 0, table)
    writer.close()
    retrieve(tmp_path / "ckpt", CONFIG, tmp_path / "out", vocabularies={"item": ITEMS})
    shards = {key: [tf.Variable(tf.zeros(shape))] for key, shape in table_shapes(CONFIG).items()}
    shards["item"] = [tf.Variable(tf.zeros([50, 6])), tf.Variable(tf.zeros([rows - 51 + 1, 6]))]
    if rows == 101:
        shards["item"][1] = tf.Variable(tf.zeros([51, 5]))
    with pytest.raises(RuntimeError, match="blocks of 'item' have the shapes"):
        load_checkpoint_into(tmp_path / "out", shards, CONFIG, vocabulary_digests=DIGESTS)
