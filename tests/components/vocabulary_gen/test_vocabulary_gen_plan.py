from __future__ import annotations

import pytest

from components.vocabulary_gen.counting_plan import VocabularyRule, plan_counting
from embedding_core.errors import ConfigError

USER = {"name": "user", "column": {"name": "user_id"}}


def plan(features, rules=None, **more):
    return plan_counting(features, rules or {}, **more)


def test_defaults_are_a_vocabulary_per_feature_and_no_thresholds():
    made = plan([USER])
    assert (made.features[0].vocabulary, made.features[0].multivalent) == ("user", None)
    assert made.rules == {"user": VocabularyRule(min_count=1, max_size=None)}


def test_shared_vocabularies_are_private_when_one_column_is():
    seen = {"name": "seen", "column": {"name": "s", "private": True}, "vocabulary": "user"}
    made = plan([USER, seen])
    assert [feature.name for feature in made.feeding("user")] == ["user", "seen"]
    assert made.is_private("user")


def test_keys_of_table_config_gen_are_left_alone():
    assert plan([{**USER, "table": "t", "max_sequence_length": "auto"}]).features[0].name == "user"


@pytest.mark.parametrize(
    ("features", "rules", "message"),
    [
        ([], {}, "at least one feature"),
        ([{"name": "user"}], {}, '"name" and "column"'),
        ([USER, USER], {}, "duplicate feature 'user'"),
        ([{"name": "user", "column": {"name": "u", "seperator": ","}}], {}, "did you mean 'separator'"),
        ([{"name": "user", "column": {"name": "u", "multivalent": "false"}}], {}, "multivalent"),
        ([{"name": "../user", "column": {"name": "u"}}], {}, "name of a feature"),
        ([{**USER, "vocabulary": "a/b"}], {}, "name of a vocabulary"),
        ([{"name": "user", "column": {"name": "u", "after_transform": True}}], {}, "`transform_graph` is missing"),
        ([USER], {"item": {}}, "'item' has no feature"),
        ([USER], {"user": {"top": 3}}, "`user.top` of vocabularies is not a known key"),
    ],
)
def test_mistakes_are_named(features, rules, message):
    with pytest.raises(ConfigError, match=message):
        plan(features, rules)
