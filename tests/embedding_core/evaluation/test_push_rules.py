"""Which results the push rules refuse, and which reasons they give."""

import pytest

from embedding_core.errors import ConfigError
from embedding_core.evaluation import LabelCounts, LabelScore, RetrievalFigures, Rules, SplitCounts, judge
from embedding_core.tasks import Task


def counts(rows=1000, positives=500):
    label = LabelCounts(rows=rows, positives=positives, negatives=rows - positives)
    return SplitCounts(rows=rows, labels={"label": label}, features={})


def figures(model=0.2, popularity=0.1, **counted):
    names = ("Recall@10", "Recall@50")
    return RetrievalFigures(
        metrics=dict.fromkeys(names, model), popularity=dict.fromkeys(names, popularity), queries=9, positive_rows=9,
        candidates=99, feature="item", **{"ranked": 9, "unknown": 0, **counted},
    )  # fmt: skip


NONE = "the model has no query and candidate towers."
EVENTS = (Task(name="watch", kind="positive"), Task(name="liked"))


def missed(*arguments, **rules):
    return [check.reason for check in judge(*arguments, Rules(**rules)) if not check.met]


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        ({"retrieval": {"recall@10": {"min": 0.1}}}, "'recall@10': it must be .* Did you mean 'Recall@10'"),
        ({"retrieval": {"Recall@10": {"minimum": 0.1}}}, "minimum` of rules is not a known key: did you mean 'min'"),
    ],
)
def test_rules_that_nothing_can_judge_are_refused(rules, words):
    with pytest.raises(ConfigError, match=words):
        Rules(**rules)


def test_six_rows_are_too_few_to_judge_by():
    (reason, _, _) = missed(counts(6, 3), NONE, min_rows=100, min_rows_per_class=10)
    assert reason.startswith("rows of the eval split: 6, but `evaluation.min_rows` is 100")
    assert not missed(counts(6, 3), NONE, min_rows=6, min_rows_per_class=3)


def test_class_without_rows_fails_unless_negatives_are_drawn():
    (reason,) = missed(counts(1000, 1000), NONE, min_rows_per_class=1)
    assert "label 0: 0" in reason
    assert not missed(counts(1000, 1000), NONE, min_rows_per_class=1, draws_negatives=True)
    assert missed(counts(1000, 995), NONE, min_rows_per_class=10, draws_negatives=True)
    assert missed(counts(9, 9), NONE, min_rows_per_class=10, draws_negatives=True)


def test_classes_of_labels_beside_a_retrieval_are_counted():
    def labels(negatives):
        of_events = counts(1000, 1000).labels["label"]
        liked = LabelCounts(rows=1000, positives=1000 - negatives, negatives=negatives)
        return SplitCounts(rows=1000, labels={"watch": of_events, "liked": liked}, features={})

    def refused(negatives):
        rules = Rules(min_rows_per_class=10, draws_negatives=True)
        return [check.reason for check in judge(labels(negatives), NONE, rules, (), EVENTS) if not check.met]

    for negatives in (0, 3):
        (reason,) = refused(negatives)
        assert f"label 0 of 'liked': {negatives}" in reason
    assert not refused(500)
    (reason,) = missed(labels(500), figures(0.085, 0.139), draws_negatives=True)
    assert "at least popularity's" in reason


def test_positives_alone_have_to_reach_popularity():
    (reason,) = missed(counts(1000, 1000), figures(0.085, 0.139), draws_negatives=True)
    assert "Recall@10 is 0.0850: it must be at least popularity's 0.1390" in reason
    assert not missed(counts(1000, 1000), figures(0.139, 0.139), draws_negatives=True)
    auc = LabelScore(label="label", metric="AUC", model=0.6, constant=0.5)
    reasons = [check.reason for check in judge(counts(), figures(0.085, 0.139), Rules(), [auc])]
    assert not any(reasons), "the AUC of both classes judges that one"


def test_label_of_a_softmax_has_to_reach_popularity():
    assert missed(counts(), figures(0.085, 0.139), draws_negatives=True)
    assert not missed(counts(), figures(0.085, 0.139), draws_negatives=True, bounded_metrics=["AUC"])
    rules = Rules(draws_negatives=True, bounded_metrics=["label/AUC"])
    tasks = (Task(), Task(name="stars", kind="regression"))  # which has no classes to count
    assert all(check.met for check in judge(counts(), figures(0.085, 0.139), rules, (), tasks))
    (reason,) = missed(counts(9, 9), "a row has 0 values in column 'user'", draws_negatives=True)
    assert reason == "Recall@10 could not be measured: a row has 0 values in column 'user'"


@pytest.mark.parametrize(
    ("bounds", "fails"),
    [
        ({"min": 0.1}, False),
        ({"min": 0.21}, True),
        ({"min_over_popularity": 0.05}, False),
        ({"min_over_popularity": 0.15}, True),
        ({"min_over_popularity": -1.0}, False),
        ({"min": 0.1, "min_over_popularity": 0.15}, True),
    ],
)
def test_bounds_that_are_given(bounds, fails):
    assert bool(missed(counts(), figures(), retrieval={"Recall@50": bounds})) == fails


@pytest.mark.parametrize(("over", "words"), [(0.5, "0.1000 + 0.5;"), (0, "0.1000;")])
def test_bound_is_said_in_words(over, words):
    (reason,) = missed(counts(), figures(0.05), retrieval={"Recall@10": {"min_over_popularity": over}})
    assert words in reason
    (check,) = judge(counts(), figures(), Rules(retrieval={"Recall@10": {"min_over_popularity": -1.0}}))[-1:]
    assert check.bound == "at least popularity's 0.1000 - 1"


def test_bound_turns_the_default_off():
    given = {"Recall@50": {"min_over_popularity": -1.0}}
    assert not missed(counts(9, 9), figures(0.0, 0.5), draws_negatives=True, retrieval=given)


def test_bound_that_cannot_be_measured_is_missed():
    (reason,) = missed(counts(), NONE, retrieval={"Recall@10": {"min": 0.1}})
    assert reason == f"Recall@10 could not be measured: {NONE}"


@pytest.mark.parametrize("rules", [{}, {"retrieval": {"Recall@10": {"min": 0.0, "min_over_popularity": 0.0}}}])
def test_split_without_a_ranked_candidate_is_refused(rules):
    nothing = figures(0.0, 0.0, ranked=0, seen_truths=7, unknown=2)
    (reason,) = missed(counts(9, 9), nothing, draws_negatives=True, **rules)
    assert reason.startswith(
        "Recall@10 could not be measured: no true candidate of the eval split was ranked, because 7"
    )
