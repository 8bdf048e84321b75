"""Features with one token per row are looked up together, and get the same ids as each one separately."""

import numpy as np
import pytest
import tensorflow as tf

from embedding_core.columns import MISSING_INT, Columns, TokenTable, tokens_of
from embedding_core.config import ColumnConfig, EmbeddingConfig, FeatureConfig, TableConfig
from embedding_core.tasks import POSITIVE
from embedding_core.training import Inputs
from embedding_core.training.training_inputs import RowParser
from tests.support.tf_examples import example
from tests.support.vocabularies import write_tokens

WORDS = {"string": ["a", "b", "caf\u00e9", "-7"], "int64": ["-7", "0", "12"], "float32": ["0.1", "1e+20", "0"]}
VALUES = {
    "string": [b"a", b"", b"zzz", "caf\u00e9".encode(), b"a\nb", b"\xff", b"-7"],
    "int64": [-7, 0, 12, 2**40, MISSING_INT],
    "float32": [0.1, 1e20, -0.0, 3.5, float("nan"), float("inf")],
}


def _rows(columns, count, seed):
    """Serialized rows; a column has no value in some of them."""
    random = np.random.default_rng(seed)
    for _ in range(count):
        given = {name: VALUES[kind][random.integers(len(VALUES[kind]))] for name, kind in columns.items()}
        yield example({name: value for name, value in given.items() if random.random() < 0.8})


@pytest.mark.parametrize(("oov_rows", "rows"), [([0, 2, 1], 64), ([3, 0, 5], 1), ([0, 0, 0], 64), ([1, 1, 1], 0)])
def test_ids_of_single_token_features_are_those_of_each_alone(tmp_path, oov_rows, rows):
    kinds = dict(zip(("text", "whole", "number"), VALUES, strict=True))
    tables, features, files = [], [], {}
    for (name, kind), oov in zip(kinds.items(), oov_rows, strict=True):
        files |= write_tokens(tmp_path, {name: [word.encode() for word in WORDS[kind]]})
        size = len(WORDS[kind]) + oov
        tables.append(TableConfig(name=name, vocabulary_size=size, dim=2, vocabulary=name, oov_rows=oov))
        features.append(FeatureConfig(name=name, table=name, column=ColumnConfig(name=name, dtype=kind)))
    config = EmbeddingConfig(tables=tuple(tables), features=tuple(features))
    examples = tf.constant(list(_rows(kinds, rows, seed=rows)), tf.string, [rows])
    found = RowParser(Inputs(config=config, vocabularies=files, tasks=(POSITIVE,))).traced()(examples)["ids"]
    raw = Columns([feature.column for feature in features], {}).parse(examples).categorical
    for feature, table in zip(features, tables, strict=True):
        tokens = tokens_of(feature.column, raw[feature.name])
        expected = TokenTable.of(table, files[feature.name]).lookup(tokens)
        assert found[feature.name].to_list() == expected.to_list()
        assert found[feature.name].row_splits.dtype == expected.row_splits.dtype
        assert found[feature.name].values.dtype == expected.values.dtype
