import json
import os

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from embedding_core import update_rules
from embedding_core.checkpoint import BundleReader, remap, table_shapes, verify, write_tables
from embedding_core.checkpoint.remap import token_rows
from embedding_core.checkpoint.row_sources import reordered, row_sources
from embedding_core.config import EmbeddingConfig, FeatureConfig, InitializerConfig, TableConfig
from embedding_core.errors import CheckpointError
from embedding_core.optimizers import FTRL, SGD, Adagrad, AdagradMomentum
from embedding_core.training_config import RemapPolicy
from embedding_core.vocabulary import Vocabulary
from tests.support.vocabularies import vocabulary_of

TOKENS = st.lists(st.binary(min_size=1, max_size=3).filter(lambda t: not set(t) & set(b"\n\r\0")), unique=True)


def vocabulary(*tokens: bytes, **facts) -> Vocabulary:
    return vocabulary_of(tokens, **facts)


def config(vocabulary: Vocabulary, oov_rows: int = 1, name: str = "t", **fields):
    fields = {"dim": 3, "optimizer": Adagrad(), "vocabulary": "v", "oov_rows": oov_rows, **fields}
    table = TableConfig(name=name, vocabulary_size=len(vocabulary) + oov_rows, **fields)
    return EmbeddingConfig(tables=(table,), features=(FeatureConfig(name="f", table=name),))


def tables_of(config: EmbeddingConfig, seed: int = 0) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    made = {key: random.normal(size=shape).astype(np.float32) for key, shape in table_shapes(config).items()}
    return {key: np.abs(rows) if key.endswith("accumulators") else rows for key, rows in made.items()}


def write(folder, config: EmbeddingConfig, vocabulary: Vocabulary) -> tuple[str, dict[str, np.ndarray]]:
    tables = tables_of(config)
    write_tables(folder, config, lambda key: [(0, tables[key])], step=9, vocabularies={"v": vocabulary})
    return str(folder), tables


def read(folder) -> dict[str, np.ndarray]:
    verify(folder)
    reader = BundleReader(os.path.join(folder, "tables"))
    return {key: np.concatenate([rows for _, rows in reader.slices(key)]) for key in reader.entries}


def oracle(old, new, tables, old_oov: int, new_oov: int, policy: str, made: TableConfig) -> dict[str, np.ndarray]:
    """Return the tables that `remap` must write, found with a dictionary, one row at a time."""
    rows = {token: row for row, token in enumerate(old)}
    expected = {"t": [], "t/accumulators": []}
    for row, token in enumerate([*new, *range(new_oov)]):
        source = rows.get(token)
        if row >= len(new):
            source = len(old) + token % old_oov if old_oov else None
        elif source is None and policy == "oov" and old_oov:
            source = len(old) + int(tf.strings.to_hash_bucket_fast([token], old_oov)[0])
        name = token if row < len(new) else b"\0%d" % token
        fresh = {"t": token_rows(made, [name], seed=3)[0], "t/accumulators": np.full(made.dim, 0.1, np.float32)}
        for key, values in expected.items():
            values.append(fresh[key] if source is None else tables[key][source])
    return {key: np.array(values) for key, values in expected.items()}


PAIRS = given(
    old=TOKENS,
    new=TOKENS,
    shared=TOKENS,
    order=st.randoms(use_true_random=False),
    oov=st.tuples(st.integers(0, 3), st.integers(0, 3)),
    policy=st.sampled_from(["initializer", "oov"]),
    slice_bytes=st.sampled_from([1, 30, 10**6]),
)


@pytest.mark.parametrize("trials", [15, pytest.param(1000, marks=pytest.mark.slow)])
def test_remap_agrees_with_a_dictionary(tmp_path_factory, trials):
    @settings(deadline=None, max_examples=trials, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @PAIRS
    def run(**pair):
        check_against_a_dictionary(tmp_path_factory, **pair)

    run()


def check_against_a_dictionary(tmp_path_factory, old, new, shared, order, oov, policy, slice_bytes):
    folder = tmp_path_factory.mktemp("remap")
    old, new = list(dict.fromkeys([*shared, *old])), list(dict.fromkeys([*new, *shared]))
    order.shuffle(new)
    old_oov, new_oov = max(oov[0], 0 if old else 1), max(oov[1], 0 if new else 1)
    source, tables = write(folder / "old", config(vocabulary(*old), old_oov), vocabulary(*old))
    made = config(vocabulary(*new), new_oov)
    _, report = remap(
        source,
        made,
        {"v": vocabulary(*new)},
        folder / "new",
        policy=RemapPolicy(new_rows=policy, seed=3),
        slice_bytes=slice_bytes,
    )
    expected = oracle(old, new, tables, old_oov, new_oov, policy, made.table("t"))
    found = read(folder / "new")
    assert found.keys() == expected.keys()
    for key, values in expected.items():
        np.testing.assert_array_equal(found[key], values.reshape(found[key].shape))
    told = report["tables"]["t"]
    assert (told["kept"], told["new"], told["dropped"]) == (
        len(set(old) & set(new)),
        len(set(new) - set(old)),
        len(set(old) - set(new)),
    )


def test_tables_of_one_vocabulary_and_shared_tables_move_alike(tmp_path):
    old, new = vocabulary(b"a", b"b"), vocabulary(b"b", b"c", b"a")
    made = [
        EmbeddingConfig(
            tables=(config(words).tables[0], config(words, oov_rows=2, name="u").tables[0]),
            features=tuple(FeatureConfig(name=f"f{n}", table=table) for n, table in enumerate("tut")),
        )
        for words in (old, new)
    ]
    source, tables = write(tmp_path / "old", made[0], old)
    remap(source, made[1], {"v": new}, tmp_path / "new")
    found = read(tmp_path / "new")
    for name, sources in {"t": [1, None, 0, 2], "u": [1, None, 0, 2, 3]}.items():
        for key in (name, f"{name}/accumulators"):
            kept = [row for row, source in enumerate(sources) if source is not None]
            np.testing.assert_array_equal(found[key][kept], tables[key][[sources[row] for row in kept]])


def test_report_in_checkpoint_tells_traffic_and_largest_changes(tmp_path):
    old, new = vocabulary(b"a", b"b", b"\xff"), vocabulary(b"x", b"a", b"y")  # counts 3, 2, 1
    source, _ = write(tmp_path / "old", config(old), old)
    manifest, report = remap(source, config(new), {"v": new}, tmp_path / "new")
    told = report["tables"]["t"]
    assert manifest.step == 9
    assert told["kept_traffic"] == pytest.approx(2 / 6)
    assert told["largest_new"] == [{"token": "x", "count": 3}, {"token": "y", "count": 1}]
    assert told["largest_dropped"] == [{"token": "b", "count": 2}, {"token": "\\xff", "count": 1}]
    assert [row["token"] for row in told["largest_gains"]] == ["x", "y"]
    assert [row["token"] for row in told["largest_losses"]] == ["b", "a", "\\xff"]
    assert (told["largest_losses"][1]["before"], told["largest_losses"][1]["now"]) == (3 / 6, 2 / 6)
    assert json.loads((tmp_path / "new" / "remap.json").read_text()) == report


def test_report_of_a_private_vocabulary_shows_digests(tmp_path):
    old, new = vocabulary(b"secret", private=True), vocabulary(b"other", private=True)
    source, _ = write(tmp_path / "old", config(old), old)
    remap(source, config(new), {"v": new}, tmp_path / "new")
    assert "secret" not in (tmp_path / "new" / "remap.json").read_text()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dim": 4}, "`dim` of 't' is 4, 3 in the checkpoint"),
        ({"optimizer": SGD()}, "slots of 't' are of Adagrad"),
        ({"name": "u"}, "'t' of the checkpoint belongs to no configured table; 'u' is not in the checkpoint"),
    ],
)
def test_remap_refuses_what_it_cannot_continue(tmp_path, change, message):
    words = vocabulary(b"a")
    source, _ = write(tmp_path / "old", config(words), words)
    with pytest.raises(CheckpointError, match=message):
        remap(source, config(words, **change), {"v": words}, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_remap_to_vocabularies_not_of_the_tables_is_refused(tmp_path):
    words = vocabulary(b"a")
    source, _ = write(tmp_path / "old", config(words), words)
    for wrong, message in (({}, "'v' of table 't' is not given"), ({"v": vocabulary(b"a", b"b")}, "has 2 tokens")):
        with pytest.raises(CheckpointError, match=message):
            remap(source, config(words), wrong, tmp_path / "new")


@pytest.mark.parametrize(("dim", "slice_bytes"), [(2, 1), (5, 10**6)])
def test_changed_dim_may_keep_the_columns_that_both_have(tmp_path, dim, slice_bytes):
    old, new = vocabulary(b"a", b"b", b"c"), vocabulary(b"c", b"x", b"a")
    source, tables = write(tmp_path / "old", config(old), old)
    made = config(new, dim=dim)
    policy = RemapPolicy(changed_dim="resize", seed=3)
    remap(source, made, {"v": new}, tmp_path / "new", policy=policy, slice_bytes=slice_bytes)
    expected = token_rows(made.table("t"), [b"c", b"x", b"a", b"\0" + b"0"], seed=3)
    slots = np.full((4, dim), 0.1, np.float32)
    for row, earlier in ((0, 2), (2, 0), (3, 3)):
        expected[row, :3] = tables["t"][earlier, :dim]
        slots[row, :3] = tables["t/accumulators"][earlier, :dim]
    np.testing.assert_array_equal(read(tmp_path / "new")["t"], expected)
    np.testing.assert_array_equal(read(tmp_path / "new")["t/accumulators"], slots)


@pytest.mark.parametrize(
    ("change", "policy", "dropped"),
    [({"dim": 4}, {"changed_dim": "reset"}, []), ({"name": "u"}, {"new_tables": "initialize"}, ["t"])],
)
def test_table_may_start_from_its_initializer(tmp_path, change, policy, dropped):
    words = vocabulary(b"a")
    source, _ = write(tmp_path / "old", config(words), words)
    made = config(words, **change)
    _, report = remap(source, made, {"v": words}, tmp_path / "new", policy=RemapPolicy(**policy))
    name = made.tables[0].name
    expected = token_rows(made.table(name), [b"a", b"\0" + b"0"], seed=0)
    np.testing.assert_array_equal(read(tmp_path / "new")[name], expected)
    assert (report["tables_new"], report["tables_dropped"]) == ([name], dropped)


@pytest.mark.parametrize(("policy", "multiply"), [("reset", False), ("convert", False), ("convert", True)])
def test_change_to_ftrl_does_not_lose_the_rows(tmp_path, policy, multiply):
    """FTRL computes a row from its slots at every update; an update with a zero gradient must not change the row."""
    words = vocabulary(b"a", b"b")
    source, tables = write(tmp_path / "old", config(words), words)
    optimizer = FTRL(
        l1_regularization_strength=0.01,
        l2_regularization_strength=0.02,
        beta=0.5,
        multiply_linear_by_learning_rate=multiply,
    )
    new = vocabulary(b"b", b"new", b"a")
    made = config(new, optimizer=optimizer)
    remap(source, made, {"v": new}, tmp_path / "new", policy=RemapPolicy(changed_optimizer=policy))
    found = read(tmp_path / "new")
    kept = [0, 2, 3]
    np.testing.assert_array_equal(found["t"][kept], tables["t"][[1, 0, 2]])
    sums = np.abs(tables["t/accumulators"][[1, 0, 2]]) if policy == "convert" else np.float32(0.1)
    np.testing.assert_array_equal(found["t/accumulators"][kept], np.broadcast_to(sums, (3, 3)))
    slots = (found["t/accumulators"], found["t/linears"])
    rate = optimizer.learning_rate
    rows, _ = update_rules.ftrl(optimizer, found["t"], slots, np.zeros((4, 3), np.float32), rate)
    np.testing.assert_allclose(rows[0], found["t"][0], rtol=1e-5)
    np.testing.assert_allclose(rows[2:], found["t"][2:], rtol=1e-5)
    assert not found["t/linears"][1].any()


@pytest.mark.parametrize("change", [{"learning_rate": 0.05}, {"multiply_linear_by_learning_rate": True}, {"beta": 1.0}])
def test_changed_hyperparameter_of_ftrl_does_not_rescale_rows(tmp_path, change):
    words = vocabulary(b"a", b"b")
    source, tables = write(tmp_path / "old", config(words, optimizer=FTRL(learning_rate=0.1)), words)
    optimizer = FTRL(**{"learning_rate": 0.1, **change})
    remap(source, config(words, optimizer=optimizer), {"v": words}, tmp_path / "new")
    found = read(tmp_path / "new")
    np.testing.assert_array_equal(found["t/accumulators"], tables["t/accumulators"])
    slots = (found["t/accumulators"], found["t/linears"])
    rows, _ = update_rules.ftrl(optimizer, found["t"], slots, np.zeros((3, 3), np.float32), optimizer.learning_rate)
    np.testing.assert_allclose(rows, tables["t"], rtol=1e-5)


def test_ftrl_keeps_its_linear_terms_bit_for_bit(tmp_path):
    words = vocabulary(b"a")
    source, tables = write(tmp_path / "old", config(words, optimizer=FTRL()), words)
    remap(source, config(words, optimizer=FTRL(clip_weight_max=9.0)), {"v": words}, tmp_path / "new")
    np.testing.assert_array_equal(read(tmp_path / "new")["t/linears"], tables["t/linears"])


def test_sums_do_not_become_means_of_squared_gradients(tmp_path):
    words = vocabulary(b"a")
    source, _ = write(tmp_path / "old", config(words, optimizer=AdagradMomentum()), words)
    made = config(words, optimizer=AdagradMomentum(beta2=0.9))
    with pytest.raises(CheckpointError, match="slots of 't' are of"):
        remap(source, made, {"v": words}, tmp_path / "new")
    remap(source, made, {"v": words}, tmp_path / "new", policy=RemapPolicy(changed_optimizer="reset"))
    assert not read(tmp_path / "new")["t/accumulators"].any()


def test_rows_of_raw_ids_continue_only_the_same_rows():
    raw = TableConfig(name="t", vocabulary_size=4, dim=2)
    np.testing.assert_array_equal(row_sources(raw, raw, {}, {}).rows, np.arange(4))
    with pytest.raises(CheckpointError, match="rows of raw ids"):
        row_sources(raw, TableConfig(name="t", vocabulary_size=5, dim=2), {}, {})


@settings(deadline=None)
@given(st.lists(st.integers(-1, 19), min_size=1, max_size=60), st.sampled_from([1, 16, 100, 10**6]))
def test_reordered_is_numpy_take(sources, slice_bytes):
    old = np.arange(40, dtype=np.float32).reshape(20, 2)
    wanted = np.array(sources, np.int64)
    slices = [(start, old[start : start + 7]) for start in range(0, 20, 7)]
    parts = list(reordered(slices, wanted, 2, lambda rows: np.stack([rows, -rows], 1), slice_bytes))
    fresh = np.stack([np.arange(len(wanted)), -np.arange(len(wanted))], 1)
    expected = np.where(wanted[:, None] < 0, fresh, old[wanted])
    np.testing.assert_array_equal(np.concatenate([rows for _, rows in parts]), expected)


def test_token_rows_depend_on_the_token_not_on_its_place():
    table = config(vocabulary(b"a", b"b"), dim=16).table("t")
    both, single = token_rows(table, [b"a", b"b"], seed=1), token_rows(table, [b"b"], seed=1)
    np.testing.assert_array_equal(both[1], single[0])
    assert not np.array_equal(token_rows(table, [b"b"], seed=2), single)


@pytest.mark.parametrize(("name", "stddev", "bound"), [("truncated_normal", 0.8796, 2.0), ("uniform", 0.5774, 1.0)])
def test_token_rows_have_the_initializer_s_distribution(name, stddev, bound):
    table = TableConfig(name="t", vocabulary_size=9, dim=64, initializer=InitializerConfig(name=name, scale=1.0))
    rows = token_rows(table, [b"%d" % token for token in range(4000)], seed=0)
    assert abs(rows.mean()) < 0.01
    assert rows.std() == pytest.approx(stddev, abs=0.005)
    assert np.abs(rows).max() <= bound
