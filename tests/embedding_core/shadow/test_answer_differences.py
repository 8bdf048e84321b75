"""Compares answers row by row, and counts values in buckets."""

import numpy as np
import pytest
import tensorflow as tf

from embedding_core.config import ColumnConfig, EmbeddingConfig, FeatureConfig, TableConfig
from embedding_core.shadow.answer_differences import Distribution, OutputTally, compare_answers
from embedding_core.shadow.request_rows import RequestRows, Visibility

INF = float("inf")


def texts(*rows):
    return np.array([[token.encode() for token in row.split(",")] for row in rows], object)


def test_difference_of_a_row_is_its_largest():
    old = {"vector": np.array([[1.0, 2.0], [3.0, 4.0]])}
    change = compare_answers(old, {"vector": np.array([[1.0, 2.5], [2.0, 4.0]])})["vector"]
    assert change.difference.tolist() == [0.5, 1.0]


def test_new_nan_is_infinite_and_counted_and_old_nan_is_equal():
    old, new = np.array([[1.0], [np.nan]]), np.array([[np.nan], [np.nan]])
    change = compare_answers({"score": old}, {"score": new})["score"]
    assert change.difference.tolist() == [INF, 0.0]
    assert change.not_finite.tolist() == [True, False]


def test_other_shape_or_type_is_infinite():
    old = {"vector": np.ones([2, 3])}
    assert compare_answers(old, {"vector": np.ones([2, 4])})["vector"].difference.tolist() == [INF, INF]
    assert compare_answers(old, {"vector": texts("a,b,c", "a,b,c")})["vector"].difference.tolist() == [INF, INF]


def test_ranking_is_compared_by_overlap_and_rank():
    old, new = {"tokens": texts("a,b,c", "a,b,c")}, {"tokens": texts("b,a,c", "x,y,a")}
    change = compare_answers(old, new)["tokens"]
    assert {size: shares.tolist() for size, shares in change.overlap.items()} == {
        1: [0, 0],
        3: [1, pytest.approx(1 / 3)],
    }
    assert change.moved.tolist() == [pytest.approx(2 / 3), 2.0]
    assert change.difference.tolist() == [0.0, pytest.approx(2 / 3)]


def test_padding_is_not_a_token():
    change = compare_answers({"tokens": texts("a,,", ",,")}, {"tokens": texts("a,b,", ",,")})["tokens"]
    assert change.overlap[3].tolist() == [0.5, 1.0]


def test_shorter_ranking_is_compared_with_start_of_longer_one():
    change = compare_answers({"tokens": texts("a,b,c")}, {"tokens": texts("a,b")}, other_k=True)["tokens"]
    assert change.overlap[2].tolist() == [1.0]
    assert change.difference.tolist() == [0.0]


def test_places_that_the_new_ranking_lacks_are_lost_tokens():
    change = compare_answers({"tokens": texts("a,b,c")}, {"tokens": texts("a,b")})["tokens"]
    assert change.difference.tolist() == [pytest.approx(1 / 3)]
    assert compare_answers({"tokens": texts("a,b")}, {"tokens": texts("a,b,c")})["tokens"].difference.tolist() == [0.0]
    emptied = compare_answers({"tokens": texts("a,b")}, {"tokens": np.zeros([1, 0], object)})["tokens"]
    assert emptied.difference.tolist() == [1.0]


def test_score_of_a_new_token_that_is_not_a_number_is_counted():
    old = {"tokens": texts("a,b"), "scores": np.array([[2.0, 1.0]])}
    new = {"tokens": texts("a,x"), "scores": np.array([[2.0, np.nan]])}
    assert compare_answers(old, new)["scores"].not_finite.tolist() == [True]


def test_scores_of_padding_are_counted_if_they_become_nan():
    old = {"tokens": texts("a,", ","), "scores": np.array([[2.0, -INF], [np.nan, np.nan]])}
    new = {"tokens": texts(",", ","), "scores": np.array([[np.nan, np.nan], [np.nan, np.nan]])}
    assert compare_answers(old, new)["scores"].not_finite.tolist() == [True, False]
    assert compare_answers(old, old)["scores"].not_finite.tolist() == [False, False]


def test_answers_without_rows_have_no_differences():
    answer = {"vector": np.zeros([0, 2]), "tokens": np.zeros([0, 3], object), "scores": np.zeros([0, 3])}
    assert {name: len(change.difference) for name, change in compare_answers(answer, answer).items()} == {
        "vector": 0,
        "tokens": 0,
        "scores": 0,
    }


def test_nan_in_an_answer_of_another_shape_is_counted():
    old, new = np.ones([2, 3]), np.array([[1.0, 2.0], [np.nan, 1.0]])
    assert compare_answers({"vector": old}, {"vector": new})["vector"].not_finite.tolist() == [False, True]


def test_scores_of_ranked_tokens_are_compared_by_token():
    old = {"tokens": texts("a,b,c"), "scores": np.array([[3.0, 2.0, 1.0]])}
    new = {"tokens": texts("b,a,x"), "scores": np.array([[2.5, 2.25, 9.0]])}
    assert compare_answers(old, new)["scores"].difference.tolist() == [0.75]


@pytest.mark.parametrize("share", [0.01, 0.5, 0.9, 0.99])
def test_quantiles_are_within_one_percent(share):
    values = np.random.default_rng(7).lognormal(0, 6, 10_001)
    found = Distribution()
    for part in np.array_split(values, 13):
        found.add(part)
    assert found.quantile(share) == pytest.approx(np.quantile(values, share, method="inverted_cdf"), rel=0.0101)
    assert (found.count, found.largest) == (10_001, values.max())
    assert found.mean == pytest.approx(values.mean())


def test_quantiles_with_zeros_and_infinity():
    found = Distribution()
    found.add([0.0, 0.0, 0.0, 2.0, INF])
    assert [found.quantile(share) for share in (0.5, 0.8, 0.99)] == [0.0, pytest.approx(2.0, rel=0.0101), INF]
    assert found.mean == INF
    assert Distribution().quantile(0.5) == Distribution().mean == 0.0


def test_infinite_figures_are_texts_in_json():
    tally = OutputTally()
    tally.add(compare_answers({"x": np.ones([1, 2])}, {"x": np.ones([1, 3])})["x"])
    assert tally.to_json()["max"] == "inf"


CONFIG = EmbeddingConfig(
    tables=tuple(TableConfig(name=name, vocabulary=name, vocabulary_size=3, dim=2) for name in ("a", "b")),
    features=(
        FeatureConfig(name="city", table="a", column=ColumnConfig(name="the city")),
        FeatureConfig(name="user", table="b", column=ColumnConfig(name="user", private=True)),
        FeatureConfig(name="friend", table="b", column=ColumnConfig(name="friend")),
    ),
)


def test_column_is_public_unless_it_or_its_vocabulary_is_private():
    public = Visibility.of(CONFIG)
    assert public == Visibility(frozenset({"the city"}), answers=False)
    assert Visibility.from_json(public.to_json()) == public
    assert public.shown("the_city", b"x") == public.shown("the city", b"x") == "x"
    assert public.shown("friend", b"x").startswith("sha256:")
    assert public.shown("age", 3).startswith("sha256:")
    assert public.shown("age", 3.5) == "3.5"
    assert public.shown("age", 3.0) == public.shown("age", 3)
    assert public.both(Visibility()) == Visibility()
    assert public.with_columns(["age"]).shown("age", 3) == "3"


def test_values_that_mean_missing_are_left_out():
    rows = RequestRows(
        {"a": texts("x,", ",y"), "b": np.array([np.nan, 1.0]), "c": np.array([-(2**63), 7]), "d": np.array([[1], [2]])}
    )
    assert rows.count == 2
    assert rows.columns(0) == {"a": [b"x"], "b": [], "c": [], "d": [1]}
    assert rows.columns(1) == {"a": [b"y"], "b": [1.0], "c": [7], "d": [2]}


def test_inputs_of_different_lengths_have_no_rows():
    assert RequestRows({"a": np.ones(2), "b": np.ones(3)}).count is None
    assert RequestRows({"a": np.array(1.0)}).count is None
    assert RequestRows({}).count is None


def test_bytes_that_are_not_an_example_have_no_columns():
    assert RequestRows({"examples": np.array([b"\xff\xff"], object)}).columns(0) == {}


@pytest.mark.parametrize(
    ("examples", "columns"),
    [
        (np.array([[b"x"]], object), {"examples": [b"x"]}),
        (np.array([3]), {"examples": [3]}),
    ],
)
def test_examples_of_another_shape_or_dtype_are_one_column(examples, columns):
    assert RequestRows({"examples": examples}).columns(0) == columns


def test_missing_values_of_an_example_are_left_out():
    example = tf.train.Example()
    example.features.feature["a"].bytes_list.value.extend([b"", b"x"])
    assert RequestRows({"examples": np.array([example.SerializeToString()], object)}).columns(0) == {"a": [b"x"]}
