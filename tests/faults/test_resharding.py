"""Saves tables with k hosts or cores and loads them with j, for k and j from 1 to 8; the row counts are primes."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from embedding_core.checkpoint import BundleWriter, load_checkpoint_into, retrieve, table_shapes, training_key
from embedding_core.config import EmbeddingConfig, FeatureConfig, TableConfig
from embedding_core.engines import TPUEmbedding, simulated_tpu
from embedding_core.optimizers import SGD, Adam
from embedding_core.planning.topology import row_blocks
from tests.support.vocabularies import vocabulary_of

CONFIG = EmbeddingConfig(
    tables=(
        TableConfig(name="item", vocabulary_size=101, dim=6, optimizer=Adam(), vocabulary="item", oov_rows=2),
        TableConfig(name="few", vocabulary_size=3, dim=5, optimizer=Adam()),  # fewer rows than shards
        TableConfig(name="plain", vocabulary_size=37, dim=3, optimizer=SGD()),
    ),
    features=tuple(FeatureConfig(name=name, table=name) for name in ("item", "few", "plain")),
)
ITEMS = vocabulary_of([b"%d" % row for row in range(99)], "item")
DIGESTS = {"item": ITEMS.digest}
COUNTS = [
    pytest.param((1, 3, 8), id="short"),
    pytest.param(tuple(range(1, 9)), id="long", marks=pytest.mark.slow),
]
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


@pytest.mark.parametrize("counts", COUNTS)
def test_shards_are_written_and_read_in_any_number(tmp_path, counts):
    """Load tensors that were saved in k slices, as hosts save them, into j variables with a block of rows each."""
    differing = {}
    for k in counts:
        tables = truth(k)
        (tmp_path / f"{k}").mkdir()
        writer = BundleWriter(str(tmp_path / f"{k}/ckpt"), slice_bytes=1)
        for key, rows in tables.items():
            for start, block in reversed(blocks(rows, k)):
                writer.add(training_key(key), rows.shape, start, block)
        writer.close()
        retrieve(tmp_path / f"{k}/ckpt", CONFIG, tmp_path / f"{k}/out", vocabularies={"item": ITEMS}, slice_bytes=300)
        for j in counts:
            shards = {
                key: [tf.Variable(tf.zeros_like(block)) for _, block in blocks(rows, j)] for key, rows in tables.items()
            }
            load_checkpoint_into(tmp_path / f"{k}/out", shards, CONFIG, vocabulary_digests=DIGESTS, slice_bytes=100 * j)
            found = {key: np.concatenate([shard.numpy() for shard in own]) for key, own in shards.items()}
            differing[k, j] = differing_rows(found, tables)
    assert differing == dict.fromkeys(itertools.product(counts, counts), 0)


def engine_on(cores: int) -> tuple[TPUEmbedding, dict[str, tf.Variable]]:
    """A TPUEmbedding on a simulated TPU, and its variables by key."""
    hosts, cores_per_host = CORES[cores]
    with simulated_tpu(hosts=hosts, cores_per_host=cores_per_host).scope():
        engine = TPUEmbedding(CONFIG, None)
        engine.build(4)
    keys = {key: key.partition("/") for key in table_shapes(CONFIG)}
    return engine, {
        key: engine._engine.variables[table][slot or "parameters"] for key, (table, _, slot) in keys.items()
    }


@pytest.mark.parametrize("counts", COUNTS)
def test_simulated_tpus_of_any_number_of_cores_exchange_tables(tmp_path, counts):
    differing = {}
    for k in counts:
        tables = truth(k)
        engine, variables = engine_on(k)
        for key, rows in tables.items():
            variables[key].assign(rows)
        prefix = tf.train.Checkpoint(embedding=engine).write(str(tmp_path / f"{k}/ckpt"))
        retrieve(prefix, CONFIG, tmp_path / f"{k}/out", vocabularies={"item": ITEMS})
    for j in counts:
        _, variables = engine_on(j)
        for k in counts:
            load_checkpoint_into(tmp_path / f"{k}/out", variables, CONFIG, vocabulary_digests=DIGESTS)
            found = {key: variable.numpy() for key, variable in variables.items()}
            differing[k, j] = differing_rows(found, truth(k))
    assert differing == dict.fromkeys(itertools.product(counts, counts), 0)


@pytest.mark.parametrize("second", [(49, 6), (51, 5)], ids=["a row is missing", "a column is missing"])
def test_shards_that_do_not_make_up_the_table_are_refused(tmp_path, second):
    writer = BundleWriter(str(tmp_path / "ckpt"))
    for key, table in truth(0).items():
        writer.add(training_key(key), table.shape, 0, table)
    writer.close()
    retrieve(tmp_path / "ckpt", CONFIG, tmp_path / "out", vocabularies={"item": ITEMS})
    shards = {key: [tf.Variable(tf.zeros(shape))] for key, shape in table_shapes(CONFIG).items()}
    shards["item"] = [tf.Variable(tf.zeros([50, 6])), tf.Variable(tf.zeros(second))]
    with pytest.raises(RuntimeError, match="blocks of 'item' have the shapes"):
        load_checkpoint_into(tmp_path / "out", shards, CONFIG, vocabulary_digests=DIGESTS)
