import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from embedding_core.config import ColumnConfig, EmbeddingConfig, TableSettings
from embedding_core.errors import ConfigError
from embedding_core.optimizers import Adagrad, Adam
from embedding_core.planning.planner import default_dim, plan_from_vocabularies, plan_report, plan_tables
from embedding_core.planning.topology import named_topology
from embedding_core.vocabulary import FeatureSummary, Vocabulary
from tests.support.vocabularies import vocabulary_of

pytestmark = pytest.mark.light

USER = {"name": "user", "vocabulary": "customer", "column": {"name": "CustomerID", "private": True}}
BASKET = {"name": "basket", "vocabulary": "item", "column": {"name": "basket", "multivalent": True}}
ITEM = {"name": "item", "vocabulary": "item"}
SIZES = {"customer": np.int64(4000), "item": np.int32(99)}


def plan(*features, overrides=None, **kwargs) -> EmbeddingConfig:
    settings = {name: TableSettings(**override) for name, override in (overrides or {}).items()}
    return plan_tables(features or (USER, BASKET, ITEM), SIZES, overrides=settings, **kwargs)


def refusal(*features, **kwargs) -> str:
    with pytest.raises(ConfigError) as caught:
        plan(*features, **kwargs)
    return str(caught.value)


def test_plan_gives_one_table_per_vocabulary_in_order_of_use():
    config = plan()
    assert [(table.name, table.vocabulary_size, table.vocabulary) for table in config.tables] == [
        ("customer", 4001, "customer"),
        ("item", 100, "item"),
    ]
    assert config.table_of("basket") == config.table_of("item")


def test_plan_from_numpy_sizes_is_plain_json():
    config = plan(overrides={"item": {"dim": np.int64(12), "oov_rows": np.int64(2)}})
    assert config.table("item").vocabulary_size == 101
    assert EmbeddingConfig.from_json(config.to_json()) == config
    json.dumps(plan_report(config, named_topology("v3-8")))


@given(st.integers(1, 10**9), st.floats(0, 10**6))
def test_default_dim_is_at_most_what_the_data_can_train(rows, columns):
    dim = default_dim(rows, columns)
    assert 8 <= dim <= default_dim(rows)
    assert dim < columns + 8 or dim == 8
    assert dim == default_dim(rows) or dim >= columns


@pytest.mark.parametrize(("occurrences", "dim"), [(100_025, 32), (64_016, 16), (32_008, 8), (0, 8)])
def test_rows_that_are_seen_rarely_get_few_columns(occurrences, dim):
    overrides = {"*": TableSettings(occurrences_per_column=1)}
    config = plan_tables([USER], {"customer": 4000}, overrides=overrides, occurrences={"customer": occurrences})
    assert config.table("customer").dim == dim
    given = {**overrides, "customer": TableSettings(dim=40)}
    config = plan_tables([USER], {"customer": 4000}, overrides=given, occurrences={"customer": occurrences})
    assert config.table("customer").dim == 40


def test_overrides_of_one_table_win_over_those_of_all():
    overrides = {"*": {"optimizer": "adam", "dim": 4}, "item": {"optimizer": {"name": "adagrad", "learning_rate": 1.0}}}
    config = plan(overrides=overrides)
    assert config.table("customer").optimizer == Adam()
    assert config.table("item").optimizer == Adagrad(learning_rate=1.0)
    assert config.table("item").dim == 4


def test_sequence_length_auto_is_the_95th_percentile():
    lengths = {"basket": {"p95": np.float64(6.2), "p99": 11}}
    assert plan({**BASKET, "max_sequence_length": "auto"}, lengths=lengths).feature("basket").max_sequence_length == 7
    assert plan({**BASKET, "max_sequence_length": "p99"}, lengths=lengths).feature("basket").max_sequence_length == 11
    assert plan({**BASKET, "max_sequence_length": np.int64(3)}).feature("basket").max_sequence_length == 3
    assert "no lengths were measured" in refusal({**BASKET, "max_sequence_length": "auto"})


def counted(name: str, size: int, *columns: ColumnConfig) -> Vocabulary:
    summary = {"rows": 9, "missing": 0, "token_count": 9, "lengths": {"p95": 4}}
    features = {column.name: FeatureSummary(column=column, **summary) for column in columns}
    return vocabulary_of([b"%d" % i for i in range(size)], name, np.ones(size), features=features)


def test_plan_from_vocabularies_takes_what_counting_found():
    vocabulary = counted("item", 9, ColumnConfig(name="item", dtype="int64", multivalent=True))
    config = plan_from_vocabularies([{**ITEM, "max_sequence_length": "auto"}], {"item": vocabulary})
    assert config.table("item").vocabulary_size == 10
    assert config.feature("item").max_sequence_length == 4
    assert config.feature("item").column == ColumnConfig(name="item", dtype="int64", multivalent=True)


def test_plan_from_vocabularies_takes_the_counts():
    vocabulary = counted("item", 900, ColumnConfig(name="item"))
    overrides = {"*": TableSettings(occurrences_per_column=1)}
    assert plan_from_vocabularies([ITEM], {"item": vocabulary}, overrides=overrides).table("item").dim == 8
    assert plan_from_vocabularies([ITEM], {"item": vocabulary}).table("item").dim == default_dim(901)


def test_plan_from_vocabularies_counted_otherwise_is_refused():
    vocabularies = {"item": counted("item", 9, ColumnConfig(name="item", separator=","))}
    with pytest.raises(ConfigError, match="`separator` of feature 'item'"):
        plan_from_vocabularies([ITEM], vocabularies)
    with pytest.raises(ConfigError, match="did you mean 'item'"):
        plan_from_vocabularies([{**ITEM, "name": "itm"}], vocabularies)


def test_feature_with_its_own_table_shares_only_the_vocabulary():
    config = plan(BASKET, {**ITEM, "table": "item_own"})
    assert [(table.name, table.vocabulary) for table in config.tables] == [("item", "item"), ("item_own", "item")]


@pytest.mark.parametrize(
    ("features", "overrides", "message"),
    [
        ((USER,), {"custmer": {}}, "did you mean 'customer'?"),
        ((USER,), {"customer": {"dims": 3}}, "did you mean 'dim'?"),
        ((USER,), {"customer": {"dim": 0}}, "`dim` of table settings is 0"),
        ((USER,), {"customer": {"oov_rows": -1}}, "`oov_rows` of table settings is -1"),
        ((USER,), {"customer": {"optimizer": "rmsprop"}}, "must be one of sgd"),
        ((USER,), {"customer": {"initializer": {"width": 1}}}, "`initializer.width` of table settings"),
        (({**USER, "vocabulary": "custmer"},), {}, "did you mean 'customer'?"),
        (({**USER, "max_length": 3},), {}, "did you mean 'max_sequence_length'?"),
        (({**USER, "column": {"nme": 3}},), {}, "`nme` of column 'user'"),
        (({**USER, "max_sequence_length": "p80"},), {}, "or one of the percentiles; did you mean 'p90'?"),
        ((USER, {**ITEM, "table": "customer"}), {}, "rows of a table belong to one vocabulary"),
    ],
)
def test_mistakes_are_named_with_the_remedy(features, overrides, message):
    assert message in refusal(*features, overrides=overrides)


def test_empty_vocabulary_needs_an_out_of_vocabulary_row():
    assert plan_tables([ITEM], {"item": 0}).table("item").vocabulary_size == 1
    with pytest.raises(ConfigError, match="would have no rows"):
        plan_tables([ITEM], {"item": 0}, overrides={"item": TableSettings(oov_rows=0)})


def test_report_counts_a_slot_as_a_table():
    config = plan(ITEM, overrides={"item": {"dim": 4, "optimizer": "adam"}})
    report = plan_report(config)
    assert report["tables"]["item"]["table_bytes"] == 100 * 4 * 4
    assert report["total"] == {"rows": 100, "table_bytes": 1600, "slot_bytes": 3200}
    assert report["topology"] is None
