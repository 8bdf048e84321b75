"""Tests that random configurations stay equal when they are written as JSON or YAML and read again."""

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipelines.config import config_from_mapping, load_config
from pipelines.config.loading import yaml_of

pytestmark = pytest.mark.light

NAMES = st.from_regex(r"[A-Za-z][A-Za-z0-9_]{0,6}", fullmatch=True)
TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), min_size=1, max_size=5)
NUMERALS = st.text("0123456789.eE+-_:xonNO", min_size=1, max_size=5)  # many look like numbers in YAML 1.1 or 1.2
TEXTS = st.one_of(TEXTS, NUMERALS)
SCALARS = st.one_of(TEXTS, st.integers(-5, 5), st.booleans(), st.floats(allow_nan=False, allow_infinity=False))
POSITIVE = st.integers(1, 1000)


def _mapping(**values):
    """Return a strategy for mappings with any subset of these keys."""
    return st.fixed_dictionaries({}, optional=values)


def _choice(*words):
    return st.sampled_from(words)


SPLITS = st.one_of(
    st.fixed_dictionaries({"eval_fraction": st.floats(0.01, 0.99)}, optional={"key": TEXTS}),
    st.fixed_dictionaries({"by": st.just("time"), "column": TEXTS, "before": st.dates().map(str)}),
    st.fixed_dictionaries({"by": st.just("column"), "column": TEXTS, "train": st.just([1, "a"]), "eval": st.just([2])}),
)
FILTERS = st.fixed_dictionaries(
    {"column": TEXTS, "in": st.lists(SCALARS, min_size=1, max_size=3), "not_equals": SCALARS}
)
TRAINING = _mapping(
    steps=POSITIVE,
    batch_size=POSITIVE,
    table_optimizer=_choice("adam", "ftrl", {"name": "sgd", "learning_rate": 0.5, "clipvalue": [-1, 2]}),
    dense_optimizer=_choice("sgd", {"learning_rate": 1}),
    nonfinite_rows=_choice("error", "keep"),
    early_stopping=_choice(None, "loss", {"patience": 2}),
    strategy=_choice("auto", "cpu", "gpu", "tpu", "simulated_tpu"),
)


@st.composite
def configs(draw):
    names = draw(st.lists(NAMES, min_size=1, max_size=5, unique_by=str.casefold))
    categorical = [
        draw(
            st.one_of(
                st.just(f"c_{name}"),
                _mapping(separator=TEXTS, private=st.booleans()).map(
                    lambda more, name=name: {"name": f"c_{name}", **more}
                ),
            )
        )
        for name in names
    ]
    mapping = {
        "data": "rows.csv",
        "label": "y_label",
        "features": {"categorical": categorical, "dense": [f"d_{name}" for name in names[1:]]},
        "vocabularies": {f"c_{names[0]}": draw(_mapping(min_count=POSITIVE, max_size=POSITIVE, oov_rows=POSITIVE))},
        "tables": {f"c_{names[0]}": draw(_mapping(dim=POSITIVE, initializer=_choice("uniform", {"scale": 0.5})))},
    }
    more = _mapping(
        seed=st.integers(0, 2**40),
        split=SPLITS,
        row_filters=st.lists(FILTERS, max_size=2),
        class_weights=_choice({0: 1, 1: 2.5}, {"1": 3}),
        training=TRAINING,
        sample_weight=st.just("w_weight"),
        evaluation=_mapping(slices=st.lists(st.lists(TEXTS, min_size=1, max_size=2), max_size=2)),
        vocabulary_evolution=_choice(None, "latest", {"base": "vocabularies", "mode": "append", "expire_after": 3}),
        warm_start=_choice(None, "latest", "ckpt", {"checkpoint": "gs://b/c", "new_rows": "oov"}),
        push=_choice(
            "out",
            {"keep_last": 3, "rows_dtype": "float16", "top_k": {"k": 5, "approximate": "large"}},
            {"rows_dtype": {f"c_{names[0]}": "int8"}},
        ),
    )
    return {**mapping, **draw(more)}


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(mapping=configs())
def test_config_survives_json_and_yaml(mapping, folder):
    config = config_from_mapping(mapping, folder)
    assert config_from_mapping(json.loads(config.to_json()), "/elsewhere") == config
    for text in (config.to_json(), yaml_of(config.to_mapping())):
        (folder / "again.yaml").write_text(text, encoding="utf-8")
        assert load_config(folder / "again.yaml") == config
