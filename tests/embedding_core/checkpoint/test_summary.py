import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from embedding_core.checkpoint import remap, table_shapes, write_tables
from embedding_core.checkpoint.summary import (
    compare_checkpoints,
    extract_to_parquet,
    extract_to_projector,
    summarize_checkpoint,
)
from embedding_core.config import EmbeddingConfig, FeatureConfig, TableConfig
from embedding_core.errors import CheckpointError, ConfigError
from embedding_core.optimizers import SGD, Adagrad
from embedding_core.vocabulary import Vocabulary, evolved_vocabulary
from tests.support.vocabularies import vocabulary_of


def words(*tokens: bytes, **facts) -> Vocabulary:
    return vocabulary_of(tokens, total_count=99, **facts)


def config(vocabulary: Vocabulary, dim: int = 2) -> EmbeddingConfig:
    rows = len(vocabulary) + 1
    item = TableConfig(name="item", vocabulary_size=rows, dim=dim, optimizer=Adagrad(), vocabulary="v", oov_rows=1)
    raw = TableConfig(name="raw", vocabulary_size=4, dim=2, optimizer=SGD())
    features = (FeatureConfig(name="f", table="item"), FeatureConfig(name="g", table="raw"))
    return EmbeddingConfig(tables=(item, raw), features=features)


def write(folder, vocabulary: Vocabulary, dim: int = 2, **tables) -> str:
    made = config(vocabulary, dim)
    values = {key: np.full(shape, 0.1, np.float32) for key, shape in table_shapes(made).items()}
    values |= {key.replace("__", "/"): np.array(rows, np.float32) for key, rows in tables.items()}
    write_tables(folder, made, lambda key: [(0, values[key])], step=7, vocabularies={"v": vocabulary}, nonfinite="keep")
    return str(folder)


@pytest.mark.parametrize("slice_bytes", [1, 10**6])
def test_summary_counts_norms_dead_rows_and_non_finite_rows(tmp_path, slice_bytes):
    slots = [[0.1, 0.1], [0.1, 0.2], [0.3, 0.1], [0.1, 0.1]]
    rows = [[3, 4], [0, 0], [0, 1], [np.inf, 0]]
    folder = write(tmp_path / "c", words(b"a", b"b", b"c"), item=rows, item__accumulators=slots)
    summary = summarize_checkpoint(folder, slice_bytes)
    item, raw = summary["tables"]["item"], summary["tables"]["raw"]
    assert (item["rows"], item["dim"], item["bytes"], item["slots"]) == (4, 2, 64, ["accumulators"])
    assert (item["dead_rows"], item["nonfinite_rows"]) == (2, 1)
    assert (item["norm"]["least"], item["digest"]) == (0.0, words(b"a", b"b", b"c").digest)
    assert raw["norm"] == pytest.approx({"least": 0.1414, "mean": 0.1414, "greatest": 0.1414}, abs=1e-4)
    assert raw["dead_rows"] is None
    assert item["norm"]["greatest"] == 5.0  # of the finite rows
    json.dumps(summary, allow_nan=False)


@pytest.mark.parametrize("slice_bytes", [1, 10**6])
def test_difference_is_by_token(tmp_path, slice_bytes):
    old = write(tmp_path / "old", words(b"a", b"b", b"c"), item=[[1, 0], [2, 0], [3, 0], [9, 9]])
    new = write(tmp_path / "new", words(b"c", b"x", b"a"), item=[[3, 4], [8, 8], [1, 0], [9, 9]])
    found = compare_checkpoints(old, new, slice_bytes)["tables"]
    item = found["item"]
    counts = ("rows", "rows_only_in_earlier", "rows_only_in_later", "changed_rows")
    assert [item[key] for key in counts] == [3, 1, 1, 1]
    assert (item["largest_difference"], item["mean_distance"]) == (4.0, pytest.approx(4 / 3))
    assert (item["moved_most"], item["same_vocabulary"]) == ([{"row": "c", "distance": 4.0}], False)
    assert (found["raw"]["changed_rows"], found["raw"]["same_vocabulary"]) == (0, True)


def test_changed_non_finite_rows_are_counted_without_a_distance(tmp_path):
    old = write(tmp_path / "old", words(b"a", b"b"), item=[[np.nan, 0], [np.inf, 0], [1, 1]])
    new = write(tmp_path / "new", words(b"a", b"b"), item=[[np.nan, 0], [2, 0], [1, 4]])
    found = compare_checkpoints(old, new)
    item = found["tables"]["item"]
    assert (item["changed_rows"], item["largest_difference"]) == (2, 3.0)
    json.dumps(found, allow_nan=False)


def test_empty_vocabularies_are_the_same(tmp_path):
    old, new = (write(tmp_path / name, words()) for name in ("old", "new"))
    assert compare_checkpoints(old, new)["tables"]["item"]["same_vocabulary"] is True


def test_tables_of_other_dims_are_incomparable(tmp_path):
    old, new = write(tmp_path / "old", words(b"a")), write(tmp_path / "new", words(b"a"), dim=3)
    assert compare_checkpoints(old, new)["tables"]["item"] == {"incomparable": "`dim` is 2 and 3"}


@pytest.mark.parametrize("slice_bytes", [1, 10**6])
def test_parquet_holds_tokens_counts_and_vectors(tmp_path, slice_bytes):
    folder = write(tmp_path / "c", words(b"a", "ß".encode()), item=[[1, 2], [3, 4], [5, 6]])
    assert extract_to_parquet(folder, "item", tmp_path / "t.parquet", slice_bytes=slice_bytes) == 3
    assert pq.read_table(tmp_path / "t.parquet").to_pylist() == [
        {"row": 0, "token": "a", "count": 2, "vector": [1, 2]},
        {"row": 1, "token": "ß", "count": 1, "vector": [3, 4]},
        {"row": 2, "token": None, "count": None, "vector": [5, 6]},
    ]


def test_parquet_of_non_text_tokens_private_tokens_and_raw_ids(tmp_path):
    def tokens_of(folder, table):
        extract_to_parquet(folder, table, tmp_path / "table")
        return pq.read_table(tmp_path / "table")["token"].to_pylist()

    folder = write(tmp_path / "c", words(b"a", b"\xff"))
    assert tokens_of(folder, "item") == [b"a", b"\xff", None]
    assert tokens_of(folder, "raw") == [None] * 4
    digest, none = tokens_of(write(tmp_path / "p", words(b"secret", private=True)), "item")
    assert (len(digest), none) == (64, None)


def test_projector_gets_the_most_frequent_rows(tmp_path):
    folder = write(tmp_path / "c", words(b"a", b"b\tb", b"c"), item=[[1, 2], [3, 4], [5, 6], [7, 8]])
    assert extract_to_projector(folder, "item", tmp_path / "logs", limit=2, slice_bytes=1) == 2
    assert (tmp_path / "logs/vectors.tsv").read_text() == "1\t2\n3\t4\n"
    assert (tmp_path / "logs/metadata.tsv").read_text() == "token\tcount\na\t3\nb\\tb\t2\n"
    assert 'tensor_path: "vectors.tsv"' in (tmp_path / "logs/projector_config.pbtxt").read_text()


def test_after_append_the_most_frequent_rows_are_not_the_first(tmp_path):
    base = words(b"a", b"b", b"c")
    tokens, counts = pa.array([b"c", b"d"], pa.large_binary()), np.array([9, 5], np.int64)
    grown = evolved_vocabulary(base, tokens, counts, mode="append")
    folder = write(tmp_path / "c", grown, item=[[row, row] for row in range(5)])
    assert extract_to_projector(folder, "item", tmp_path / "logs", limit=2) == 2
    assert (tmp_path / "logs/metadata.tsv").read_text() == "token\tcount\nc\t9\nd\t5\n"
    _, report = remap(write(tmp_path / "old", base), config(grown), {"v": grown}, tmp_path / "new")
    assert report["tables"]["item"]["largest_new"] == [{"token": "d", "count": 5}]
    _, report = remap(folder, config(base), {"v": base}, tmp_path / "back")
    assert report["tables"]["item"]["largest_losses"][0] == {"token": "c", "before": 9 / 14, "now": 1 / 99}
    assert report["tables"]["item"]["largest_dropped"] == [{"token": "d", "count": 5}]


def test_extract_to_an_unwritable_path_fails_and_leaves_nothing(tmp_path):
    folder = write(tmp_path / "c", words(b"a"))
    (tmp_path / "taken").mkdir()
    for path in (tmp_path / "taken", tmp_path / "no" / "such.parquet"):
        with pytest.raises(CheckpointError, match="cannot be written"):
            extract_to_parquet(folder, "item", path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c", "taken"]


def test_unknown_table_is_named(tmp_path):
    folder = write(tmp_path / "c", words(b"a"))
    with pytest.raises(ConfigError, match=r"'other' is not a table .* its tables are \['item', 'raw'\]"):
        extract_to_parquet(folder, "other", tmp_path / "t")
