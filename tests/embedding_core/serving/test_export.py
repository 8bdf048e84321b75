"""An exported model, loaded in a process that uses only TensorFlow, computes what training computes."""

import os

os.environ["TF_USE_LEGACY_KERAS"] = "1"

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from embedding_core.columns import MISSING_INT, DenseInputs, TokenTable, parse_spec, tokens_of
from embedding_core.config import ColumnConfig, EmbeddingConfig, FeatureConfig, TableConfig
from embedding_core.engines.host import HostEngine
from embedding_core.errors import CheckpointError, ConfigError, ParityError, VocabularyError
from embedding_core.model_inputs import call_model, model_inputs
from embedding_core.proof.parity import compare, score_signatures
from embedding_core.serving import columns_of, export_model, named_inputs, table_blocks
from embedding_core.serving.lookups import rounded
from tests.support.tf_examples import example
from tests.support.vocabularies import write_tokens

TOKENS = {
    "words": [b"a", b"b", "žluť".encode(), b"a b"],
    "numbers": [b"7", b"-1", b"40"],
    "floats": [b"0.1", b"2"],
}


def feature(key, table, length=0, **column):
    column = ColumnConfig(**{"name": key, **column})
    return FeatureConfig(name=key, table=table, max_sequence_length=length, column=column)


def table(name, vocabulary, rows, dim, oov_rows, **fields):
    return TableConfig(name=name, vocabulary=vocabulary, vocabulary_size=rows, dim=dim, oov_rows=oov_rows, **fields)


CONFIG = EmbeddingConfig(
    tables=(
        table("words", "words", 7, 4, 3),
        table("strict", "words", 4, 3, 0, combiner="sum"),
        table("numbers", "numbers", 4, 2, 1, combiner="sqrtn"),
        table("floats", "floats", 3, 2, 1),
        TableConfig(name="ids", vocabulary_size=5, dim=2),
    ),
    features=(
        feature("word", "words"),
        feature("pieces", "words", name="pieces col", separator="|"),
        feature("list", "strict", multivalent=True),
        feature("path", "words", length=3, multivalent=True, name="list"),
        feature("number", "numbers", dtype="int64"),
        feature("several", "numbers", dtype="int64", multivalent=True),
        feature("float", "floats", dtype="float32"),
        FeatureConfig(name="raw_ids", table="ids"),
    ),
)

ROWS = [
    {
        "word": [b"a"],
        "pieces col": [b"a|nope||b"],
        "list": [b"b", b"a", b"b", b"x"],
        "number": [7],
        "several": [-1, 40, 7],
        "float": [0.1],
        "raw_ids": [0, 4],
        "price": [3.0],
        "count": [5],
    },
    {},
    {"word": [b""], "pieces col": [b"|"], "list": [b"", b""], "price": [1.0], "count": [1]},
    {"word": [b"unknown"], "number": [99], "several": [99, 99], "float": [5.5], "price": [2.0], "count": [2]},
    {"word": ["žluť".encode()], "list": ["žluť".encode()] * 2, "price": [-2.0], "count": [0]},
    {"word": [b"\xff\xfe"], "pieces col": [b"x" * 5000], "raw_ids": [-1, 5, 3], "price": [0.5], "count": [3]},
    {"word": [b"line\nfeed"], "float": [float("nan")], "price": [float("inf")], "count": [3]},
]
FINITE = [0, 2, 3, 4, 5]


EXAMPLES = [example(row) for row in ROWS]
DENSE = DenseInputs(
    names=("price", "log_count"),
    spec={"price": tf.io.VarLenFeature(tf.float32), "count": tf.io.FixedLenFeature([1], tf.int64)},
    transform=lambda raw: {
        "price": tf.sparse.to_dense(raw["price"], default_value=0.25),
        "log_count": tf.math.log1p(tf.cast(raw["count"], tf.float32)),
    },
)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return write_tokens(tmp_path_factory.mktemp("vocabularies"), TOKENS)


@pytest.fixture(scope="module")
def engine():
    return HostEngine(CONFIG, seed=3, with_slots=False)


@pytest.fixture(scope="module")
def model():
    tf_keras.utils.set_random_seed(5)
    embeddings, dense = model_inputs(CONFIG, DENSE.names)
    flat = [tf_keras.layers.Flatten()(value) for value in embeddings.values()]
    logit = tf_keras.layers.Dense(1)(tf_keras.layers.Concatenate()([*flat, *dense.values()]))
    return tf_keras.Model([embeddings, dense], logit)


@pytest.fixture(scope="module")
def exported(tmp_path_factory, files, engine, model):
    path = tmp_path_factory.mktemp("export") / "model"
    labels = DenseInputs(names=("count",), spec={"count": tf.io.FixedLenFeature([], tf.int64, 0)})
    arguments = {"tables": engine.embedding_tables, "vocabularies": files, "model": model}
    export_model(path, config=CONFIG, dense=DENSE, labels=labels, **arguments)
    return path


def named_rows():
    """ROWS as the named tensors of the signature `raw`."""

    def single(name, missing):
        return np.array([row.get(name, [missing])[0] for row in ROWS])

    def padded(name, missing, width=4):
        rows = [list(row.get(name, [])) for row in ROWS]
        return np.array([row + [missing] * (width - len(row)) for row in rows], object if missing == b"" else np.int64)

    return {
        "word": single("word", b"").astype(object),
        "pieces_col": single("pieces col", b"").astype(object),
        "list": padded("list", b""),
        "number": single("number", MISSING_INT),
        "several": padded("several", MISSING_INT),
        "float": single("float", np.nan).astype(np.float32),
        "raw_ids": padded("raw_ids", MISSING_INT),
        "price": single("price", np.nan).astype(np.float32),
        "count": single("count", MISSING_INT).reshape(-1, 1),
    }


@pytest.fixture(scope="module")
def served(exported):
    serialized = ("serving_default", "embeddings", "transform_features", "transform_labels")
    return score_signatures(exported, {**dict.fromkeys(serialized, EXAMPLES), "raw": named_rows()})


@pytest.fixture(scope="module")
def trained(files, engine, model):
    """Compute activations and logits with the functions that training uses."""
    parsed = tf.io.parse_example(EXAMPLES, {**parse_spec(f.column for f in CONFIG.features if f.column)})
    ids = {}
    for item in CONFIG.features:
        if item.column:
            lookup = TokenTable.of(CONFIG.table(item.table), files[CONFIG.table(item.table).vocabulary]).lookup
            ids[item.name] = lookup(tokens_of(item.column, parsed[item.column.name]))
    ids["raw_ids"] = tf.ragged.constant([[0, 4], [], [], [], [], [3], []], tf.int64)
    embeddings = engine.lookup(ids)
    dense = {
        "price": tf.constant([[row.get("price", [0.25])[0]] for row in ROWS]),
        "log_count": tf.math.log1p(tf.constant([[float(row.get("count", [0])[0])] for row in ROWS])),
    }
    return {name: value.numpy() for name, value in embeddings.items()}, call_model(model, embeddings, dense)[
        "label"
    ].numpy()


def test_embeddings_equal_training(served, trained):
    report = compare(trained[0], served["embeddings"], tolerance=0.0, signature="embeddings")
    assert report.passed, report.reason
    assert len(report.differences) == len(CONFIG.features)


@pytest.mark.parametrize("signature", ["serving_default", "raw"])
def test_logits_equal_training(served, trained, signature):
    logit, probability = served[signature]["logit"], served[signature]["probability"]
    report = compare({"logit": trained[1][FINITE]}, {"logit": logit[FINITE]}, tolerance=1e-6, signature=signature)
    assert report.passed, report.reason
    np.testing.assert_allclose(probability[FINITE], 1 / (1 + np.exp(-logit[FINITE])), rtol=1e-5)


@pytest.mark.parametrize("signature", ["serving_default", "raw"])
def test_row_without_a_required_value_is_nan_alone(served, signature):
    assert np.isnan(served[signature]["logit"][1, 0])
    assert np.isfinite(served[signature]["logit"][FINITE]).all()


def test_transforms_are_columns_for_the_evaluator(served):
    assert {name: value.shape for name, value in served["transform_features"].items()} == {
        "price": (7, 1),
        "log_count": (7, 1),
    }
    assert served["transform_labels"]["count"][:, 0].tolist() == [5, 0, 1, 2, 0, 3, 3]


def test_named_inputs_are_the_rows():
    named, kept = named_inputs(columns_of(CONFIG, DENSE), EXAMPLES)
    assert kept == list(range(len(ROWS)))
    for name, expected in named_rows().items():
        np.testing.assert_array_equal(
            named[name], expected[:, : named[name].shape[1]] if expected.ndim > 1 else expected
        )


def test_named_inputs_leave_out_rows_that_fit_no_tensor():
    two_words = example({**ROWS[0], "word": [b"a", b"b"]})
    named, kept = named_inputs(columns_of(CONFIG, DENSE), [EXAMPLES[0], two_words, EXAMPLES[2]])
    assert kept == [0, 2]
    assert named["word"].tolist() == [b"a", b""]


def test_export_takes_any_batch(exported, served):
    """The batches include a row without values, and an empty batch."""
    signature = tf.saved_model.load(str(exported)).signatures["serving_default"]
    alone = [signature(examples=tf.constant([row]))["logit"][0] for row in EXAMPLES]
    np.testing.assert_allclose(alone, served["serving_default"]["logit"], rtol=1e-5)
    assert signature(examples=tf.constant([], tf.string))["logit"].shape == (0, 1)


def test_export_holds_tables_and_vocabularies_and_no_slot(exported):
    shapes = dict(tf.train.list_variables(str(exported / "variables" / "variables")))
    names = list(shapes)
    held = {name.split("/")[1]: shapes[name] for name in names if name.startswith("tables")}
    assert held == {"dim_4": [8, 4], "dim_3": [5, 3], "dim_2": [13, 2]}  # all rows of that dim, and a row of zeros
    assert not [name for name in names if "accumulator" in name or "optimizer" in name.lower()]
    assert sorted(os.listdir(exported / "assets")) == ["floats.txt", "numbers.txt", "words.txt"]


def test_scoring_says_what_is_wrong(exported):
    with pytest.raises(ParityError, match=r"failed in a fresh process .* no signature 'nope'"):
        score_signatures(exported, {"nope": EXAMPLES})
    with pytest.raises(ParityError, match="no rows"):
        score_signatures(exported, {"serving_default": []})


def test_lookups_read_tables_and_never_gather_from_variables(exported):
    """If an operation gathers from a variable even once, every later read copies the whole variable (copy-on-read)."""
    signatures = tf.saved_model.load(str(exported)).signatures
    for name in ("serving_default", "raw", "embeddings"):
        functions = signatures[name].graph.as_graph_def().library.function
        kinds = {node.op for function in functions for node in function.node_def}
        assert "ReadVariableOp" in kinds
        assert "ResourceGather" not in kinds


def refused(tmp_path, files, engine, model, **changes):
    arguments = {"config": CONFIG, "tables": engine.embedding_tables, "vocabularies": files, "dense": DENSE}
    export_model(tmp_path / "model", **{**arguments, "model": model, **changes})


def test_export_refuses_other_tables(tmp_path, files, engine, model):
    tables = {name: value.numpy() for name, value in engine.embedding_tables.items()}
    bad = np.array(tables["words"])
    bad[[5, 6], 1] = np.nan, np.inf
    cases = [
        ({"extra": bad, **tables}, "'extra'"),
        ({**tables, "words": bad[:3]}, "shape"),
        ({**tables, "words": bad}, r"2 of table 'words' \(the first is row 5\)"),
    ]
    for wrong, message in cases:
        with pytest.raises(CheckpointError, match=message):
            refused(tmp_path, files, engine, model, tables=wrong)


def test_export_refuses_what_does_not_fit(tmp_path, files, engine, model):
    with pytest.raises(VocabularyError):
        refused(tmp_path, {**files, "words": files["floats"]}, engine, model)
    with pytest.raises(ConfigError, match="dense_"):
        refused(tmp_path, files, engine, model, dense=None)
    with pytest.raises(ConfigError, match="'top_k'"):
        refused(tmp_path, files, engine, model, signatures=["top_k"])
    assert not (tmp_path / "model").exists()


def small(tmp_path, rows=None, layer=None, **options):
    """Export and load a model whose four features share a table of raw ids; return its signatures."""
    config = EmbeddingConfig(
        tables=(TableConfig(name="ids", vocabulary_size=5, dim=2, combiner="sum"),),
        features=(
            FeatureConfig(name="one", table="ids", column=ColumnConfig(name="one", dtype="int64")),
            FeatureConfig(name="lasts", table="ids", max_sequence_length=2),
            FeatureConfig(name="many", table="ids"),
            FeatureConfig(name="near", table="ids", column=ColumnConfig(name="one", dtype="int64"), invalid_id="row"),
        ),
    )
    embeddings, _ = model_inputs(config, ())
    total = tf_keras.layers.Concatenate()([tf_keras.layers.Flatten()(value) for value in embeddings.values()])
    model = tf_keras.Model([embeddings, {}], tf_keras.layers.Dense(1)(total if layer is None else layer(total)))
    tables = {"ids": np.arange(10, dtype=np.float32).reshape(5, 2) + 1 if rows is None else rows}
    export_model(tmp_path / "model", config=config, tables=tables, vocabularies={}, model=model, **options)
    return tf.saved_model.load(str(tmp_path / "model")).signatures


BAD_IDS = [{"one": 4, "lasts": [9, 1], "many": [1, -1, 5]}, {"one": 2**40}, {"one": -1, "many": 0}, {}]


def check_bad_ids(signatures, rows):
    """Look up `BAD_IDS` in a table of these rows."""
    found = signatures["embeddings"](tf.constant([example(row) for row in BAD_IDS]))
    none = np.zeros(2)
    expected = {
        "one": [rows[4], none, none, none],
        "near": [rows[4], rows[4], rows[4], none],
        "many": [rows[1], none, rows[0], none],
    }
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-6)
    np.testing.assert_allclose(found["lasts"][0], [none, rows[1]], rtol=1e-6)


def test_invalid_ids_are_dropped_and_counted_alone(tmp_path):
    signatures = small(tmp_path)
    check_bad_ids(signatures, np.arange(1, 11).reshape(5, 2))
    counted = signatures["counters"]()
    assert counted["features"].numpy().tolist() == [b"one", b"lasts", b"many"]
    assert counted["dropped_ids"].numpy().tolist() == [2, 1, 2]


def test_large_table_is_held_itself_and_looked_up_alike(tmp_path, monkeypatch):
    rows, held, save = tf.Variable(np.arange(10, dtype=np.float32).reshape(5, 2) + 1), [], tf.saved_model.save

    def saved(module, *arguments, **more):
        held.extend(module.tables.values())
        save(module, *arguments, **more)

    monkeypatch.setattr(table_blocks, "_LARGE", 1)
    monkeypatch.setattr(tf.saved_model, "save", saved)
    check_bad_ids(small(tmp_path, rows=rows), rows.numpy())
    assert held == [rows]


def test_tables_in_blocks_are_tables(tmp_path):
    whole = np.arange(10, dtype=np.float32).reshape(5, 2)

    class Sharded:
        variables = (tf.Variable(whole[:3]), tf.Variable(whole[3:]))

    examples = tf.constant([example({"one": [3]})])
    found = small(tmp_path, rows=Sharded())["embeddings"](examples)["one"]
    assert found.numpy().tolist() == whole[3:4].tolist()


def test_export_refuses_stored_code(tmp_path):
    with pytest.raises(ConfigError, match="Lambda"):
        small(tmp_path, layer=tf_keras.layers.Lambda(lambda value: value * 2))


def test_export_refuses_unknown_types_and_tables_of_rows(tmp_path):
    with pytest.raises(ConfigError, match="`rows_dtype` of table 'ids' is 'int4': it must be one of"):
        small(tmp_path, rows_dtype="int4")
    with pytest.raises(ConfigError, match="names table 'idss', which does not exist: did you mean 'ids'"):
        small(tmp_path, rows_dtype={"idss": "int8"})
    assert not (tmp_path / "model").exists()


def test_int8_rows_of_a_large_table_are_looked_up_rounded(tmp_path, monkeypatch):
    monkeypatch.setattr(table_blocks, "_LARGE", 1)
    rows = np.random.default_rng(0).normal(size=(5, 2)).astype(np.float32)
    check_bad_ids(small(tmp_path, rows=rows, rows_dtype="int8"), rounded(rows, "int8"))
    assert [(value.dtype, value.shape) for _, value in stored_tables(tmp_path / "model")] == [(np.int8, (5, 10))]


def test_tables_of_one_dim_have_types_of_their_own(tmp_path, files, engine, model):
    path, dtypes = tmp_path / "model", {"numbers": "int8", "floats": "float16"}
    given = {"config": CONFIG, "tables": engine.embedding_tables, "vocabularies": files, "model": model}
    export_model(path, **given, dense=DENSE, rows_dtype=dtypes)
    found = tf.saved_model.load(str(path)).signatures["embeddings"](tf.constant(EXAMPLES))
    rows = {name: table.numpy() for name, table in engine.embedding_tables.items()}
    assert {value.dtype.name for _, value in stored_tables(path)} == {"float32", "float16", "int8"}
    for name, table in (("number", "numbers"), ("float", "floats"), ("word", "words")):
        expected = rounded(rows[table][:1], dtypes.get(table, "float32"))[0]
        np.testing.assert_allclose(found[name][0], expected, rtol=1e-6)


def stored_tables(folder):
    """The blocks of tables in a SavedModel, by key."""
    reader = tf.train.load_checkpoint(str(folder / "variables" / "variables"))
    return [(key, reader.get_tensor(key)) for key in reader.get_variable_to_shape_map() if key.startswith("tables/")]


@pytest.mark.parametrize(("dtype", "value", "remedy"), [("float16", 1e6, "as float32"), ("int8", np.inf, "clip")])
def test_rows_that_a_type_cannot_hold_are_refused(tmp_path, dtype, value, remedy):
    rows = np.arange(10, dtype=np.float32).reshape(5, 2)
    rows[3, 1] = value
    with pytest.raises(CheckpointError, match=rf"as {dtype}, 1 of table 'ids' \(the first is row 3\).* {remedy}"):
        small(tmp_path, rows=rows, rows_dtype=dtype)
