"""For any features and rows, the exported signatures give the vectors that each engine trains on."""

import os

os.environ["TF_USE_LEGACY_KERAS"] = "1"

import uuid

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from embedding_core import SGD
from embedding_core.columns import MISSING_INT
from embedding_core.config import ColumnConfig, EmbeddingConfig, FeatureConfig, TableConfig
from embedding_core.engines import HostEngine, TPUEmbedding, TPUEmbeddingV0, simulated_tpu
from embedding_core.serving.export import embeddings_signature, raw_embeddings_signature
from embedding_core.serving.lookups import rounded
from embedding_core.serving.requests import named_inputs
from embedding_core.serving.serving_module import ServingModule
from embedding_core.serving_config import ROWS_DTYPES
from embedding_core.tasks import POSITIVE
from embedding_core.training import Inputs
from embedding_core.training.training_inputs import RowParser
from tests.support.tf_examples import example
from tests.support.vocabularies import write_tokens

CORES, ROWS = 2, 6
TOKENS = {"string": [b"a", b"b c", "ž".encode(), b"a|b"], "int64": [b"0", b"-7", b"12"], "float32": [b"0.1", b"3"]}
VALUES = {
    "string": st.sampled_from([b"", b"a", b"b c", b"unknown", "ž".encode(), b"a|b||unknown|a", b"|", b"\xff", b"x\ny"]),
    "int64": st.sampled_from([0, -7, 12, 99, MISSING_INT, 2**62]),
    "float32": st.sampled_from([0.1, 3.0, -0.0, float("nan"), 1e30, float("inf")]),
}
RAW = 5  # rows of a table of raw ids


@st.composite
def features(draw, number):
    """A table with one feature."""
    dtype = draw(st.sampled_from([*TOKENS, "raw"]))
    raw, name = dtype == "raw", f"f{number}"
    dtype = "int64" if raw else dtype
    column = ColumnConfig(
        name=name,
        dtype=dtype,
        multivalent=draw(st.booleans()) and dtype != "float32",
        separator=draw(st.sampled_from([None, "|"])) if dtype == "string" else None,
    )
    policy = draw(st.sampled_from(["error", "drop", "row"])) if raw else "error"
    oov_rows = 0 if raw else draw(st.integers(0, 3))
    table = TableConfig(
        name=f"t{number}",
        vocabulary=None if raw else dtype,
        vocabulary_size=RAW if raw else len(TOKENS[dtype]) + oov_rows,
        dim=draw(st.integers(1, 4)),
        oov_rows=oov_rows,
        combiner=draw(st.sampled_from(["sum", "mean", "sqrtn"])),
    )
    length = draw(st.sampled_from([0, 0, 2]))
    return table, FeatureConfig(
        name=name, table=table.name, column=column, max_sequence_length=length, invalid_id=policy
    )


def values_of(feature, table):
    """The values that a row may hold for a feature; ids outside its table only if `invalid_id` is not "error"."""
    kind = VALUES[feature.column.dtype]
    if table.vocabulary is None:
        outside = [] if feature.invalid_id == "error" else [-1, RAW, 2**40, -(2**62)]
        kind = st.sampled_from([*range(RAW), MISSING_INT, *outside])
    return st.lists(kind, max_size=5 if feature.column.multivalent else 1)


@st.composite
def cases(draw):
    """A configuration, some rows, and the types of served rows by table."""
    pairs = [draw(features(number)) for number in range(draw(st.integers(1, 4)))]
    config = EmbeddingConfig(tables=tuple(pair[0] for pair in pairs), features=tuple(pair[1] for pair in pairs))
    row = st.fixed_dictionaries({feature.name: values_of(feature, table) for table, feature in pairs})
    dtypes = {table.name: draw(st.sampled_from(ROWS_DTYPES)) for table, _ in pairs}
    return config, draw(st.lists(row, min_size=ROWS, max_size=ROWS)), dtypes


def looked_up_on_cores(config, parts, tables):
    """Yield name and vectors of both simulated engines with given tables; each core looks up its part of the rows."""
    strategy = simulated_tpu(hosts=1, cores_per_host=CORES)
    with strategy.scope():
        embedding = TPUEmbedding(config, SGD(learning_rate=0.1), seed=3)
    embedding.build(ROWS // CORES)
    assign(embedding._engine.table_variables, tables)

    @tf.function
    def dequeue():
        for part, device in zip(parts, strategy.extended.worker_devices, strict=True):
            embedding.enqueue(part, training=False, device=device)
        return strategy.run(embedding.dequeue)

    yield "V1", joined(strategy, dequeue())
    strategy = simulated_tpu(hosts=1, cores_per_host=CORES, embedding_feature="V0")
    with strategy.scope():
        replicated = TPUEmbeddingV0(config, None, seed=3)
    replicated.build()
    assign({table.name: variable for table, variable in replicated.embedding_tables.items()}, tables)

    def look_up():
        core = tf.get_static_value(tf.distribute.get_replica_context().replica_id_in_sync_group)
        return replicated(parts[core])

    yield "V0", joined(strategy, tf.function(lambda: strategy.run(look_up))())


def assign(variables, tables):
    for name, rows in tables.items():
        variables[name].assign(rows)


def joined(strategy, found):
    return {name: np.concatenate(strategy.experimental_local_results(value)) for name, value in found.items()}


def check(folder, config, rows, dtypes):
    """Compare both exported signatures, with rows of types by table, and all engines with the rounded rows."""
    examples = [example(row) for row in rows]
    place = folder / uuid.uuid4().hex  # TensorFlow shares vocabularies of the same path within a process
    place.mkdir()
    paths = write_tokens(place, {f"{place.name}-{name}": tokens for name, tokens in TOKENS.items()})
    files = dict(zip(TOKENS, paths.values(), strict=True))
    engine = HostEngine(config, seed=3, with_slots=False)
    parser = RowParser(Inputs(config=config, vocabularies=files, tasks=(POSITIVE,)))
    module = ServingModule(config, engine.embedding_tables, files, None, dtypes)
    tables = {name: rounded(table.numpy(), dtypes[name]) for name, table in engine.embedding_tables.items()}
    assign(engine.table_variables, tables)
    names = [feature.name for feature in config.features]
    columns = module.columns(names)
    named, kept = named_inputs(columns, examples)
    signatures = {"embeddings": embeddings_signature(module), "raw": raw_embeddings_signature(module)}
    tf.saved_model.save(module, str(place / "model"), signatures=signatures)
    served = tf.saved_model.load(str(place / "model")).signatures
    found = {name: value.numpy() for name, value in served["embeddings"](tf.constant(examples)).items()}
    assert kept == list(range(ROWS))
    by_name = served["raw"](**{name: tf.constant(value) for name, value in named.items()})
    sides = {"host": engine.lookup(parser(tf.constant(examples))["ids"]), "raw": by_name}
    size = ROWS // CORES
    parts = [parser(tf.constant(examples[start : start + size]))["ids"] for start in range(0, ROWS, size)]
    sides.update(looked_up_on_cores(config, parts, tables))
    for side, vectors in sides.items():
        for feature in config.features:
            wanted, given_ = np.asarray(vectors[feature.name]), found[feature.name]
            np.testing.assert_allclose(given_, wanted, rtol=1e-6, atol=1e-7, err_msg=f"{side} {feature}")


@pytest.mark.parametrize(("multivalent", "dtype"), [(True, "float32"), (False, "int8")])
def test_missing_raw_ids_of_a_sequence_are_no_ids(tmp_path, multivalent, dtype):
    column = ColumnConfig(name="f", dtype="int64", multivalent=multivalent)
    table = TableConfig(name="t", vocabulary_size=RAW, dim=2)
    feature = FeatureConfig(name="f", table="t", column=column, max_sequence_length=2, invalid_id="row")
    config = EmbeddingConfig(tables=(table,), features=(feature,))
    rows = [{"f": ids[: 5 if multivalent else 1]} for ids in [[], [MISSING_INT, 3], [9], [1], [-1], []]]
    check(tmp_path, config, rows, {"t": dtype})


@pytest.mark.parametrize("trials", [2, pytest.param(300, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])])
def test_served_vectors_are_those_of_every_engine(tmp_path, trials):
    @settings(
        max_examples=trials,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.explicit, Phase.generate],  # no shrinking, which takes many minutes
    )
    @given(cases())
    def run(case):
        check(tmp_path, *case)

    run()
