"""Answers of top-k are compared by score: each mistake in tokens or scores is found, and ties are not mistakes."""

import numpy as np
import pytest

from embedding_core.proof.top_k import Answers, answers_with, best_of_all, compare_answers, filters_of

GENERATOR = np.random.default_rng(3)
CANDIDATES = GENERATOR.normal(size=(60, 5)).astype(np.float32)
QUERIES = GENERATOR.normal(size=(6, 5)).astype(np.float32)
NAMES = [b"t%d" % number for number in range(120)]
K = 8


def searched(candidates=CANDIDATES, k=K):
    """Return the answers of training, and the rows and outputs of a correct search."""
    scores, rows = best_of_all(QUERIES, candidates, k)
    return Answers(QUERIES, candidates, scores), rows.copy(), outputs(rows, scores)


def outputs(rows, scores):
    tokens = np.where(rows >= 0, np.asarray(NAMES, object)[np.maximum(rows, 0)], b"")
    return {"tokens": tokens, "scores": scores.copy()}


def compared(wanted, rows, served, *, exact=True):
    return compare_answers(wanted, served, rows, exact=exact, tolerance=1e-5, signature="top_k")


def filtered():
    """Return what `searched` returns, for a search with filters; compute it independently."""
    filters = filters_of(best_of_all(QUERIES, CANDIDATES, K)[1], len(CANDIDATES))
    rows, scores = np.full((6, K), -1), np.full((6, K), -np.inf, np.float32)
    for number, query in enumerate(QUERIES):
        allowed = set(filters.among[number] if filters.restricted[number] else range(60))
        left = sorted(allowed - {-1} - set(filters.exclude[number]), key=lambda row: -(CANDIDATES[row] @ query))[:K]
        rows[number, : len(left)], scores[number, : len(left)] = left, CANDIDATES[left] @ query
    return answers_with(filters, QUERIES, CANDIDATES, K), rows, outputs(rows, scores)


def of_few_candidates():
    return searched(CANDIDATES[:5])


@pytest.mark.parametrize("make", [searched, filtered, of_few_candidates])
def test_right_answers_pass(make):
    report, recall = compared(*make())
    assert report.passed
    assert recall == 1.0
    assert {item.name for item in report.differences} == {"top_k/tokens", "top_k/scores"}


def test_filters_change_every_answer():
    wanted, rows, _ = filtered()
    tokens = wanted.filters.tokens(NAMES)
    assert b"no such token 5b1f" in tokens["exclude"][0]
    assert set(tokens["among"][0]) == {b""}
    assert b"t0" in tokens["among"][1]
    best = best_of_all(QUERIES, CANDIDATES, K)[1]
    assert not (rows[:, 0] == best[:, 0]).any()


def test_candidates_of_equal_scores_may_change_places():
    same = np.concatenate([CANDIDATES, CANDIDATES])
    wanted, rows, served = searched(same)
    swapped = (rows + 60) % 120
    report, recall = compared(wanted, swapped, served)
    assert report.passed
    assert recall == 1.0


def change_score(rows, served):
    served["scores"][2, 3] += 0.01


def change_token(rows, served):
    rows[2, 3] = next(row for row in range(60) if row not in rows[2])


def repeat_token(rows, served):
    rows[2, 1], served["scores"][2, 1] = rows[2, 0], served["scores"][2, 0]


def leave_out_token(rows, served):
    rows[2, 7], served["tokens"][2, 7], served["scores"][2, 7] = -1, b"", -np.inf


def cut(rows, served):
    served["scores"] = served["scores"][:, :-1]


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("damage", [change_score, change_token, repeat_token, leave_out_token, cut])
@pytest.mark.parametrize("make", [searched, filtered])
def test_wrong_answers_do_not_pass(make, damage, exact):
    wanted, rows, served = make()
    damage(rows, served)
    assert not compared(wanted, rows, served, exact=exact)[0].passed


def use_excluded(wanted, rows):
    return wanted.filters.exclude[2, 0]


def use_what_is_not_among(wanted, rows):
    return next(row for row in range(60) if row not in wanted.filters.among[3])


@pytest.mark.parametrize(("number", "choose"), [(2, use_excluded), (3, use_what_is_not_among)])
def test_forbidden_candidates_do_not_pass(number, choose):
    wanted, rows, served = filtered()
    rows[number, 0] = choose(wanted, rows)
    served["scores"][number, 0] = CANDIDATES[rows[number, 0]] @ QUERIES[number]
    report, _ = compared(wanted, rows, served, exact=False)
    assert not report.passed
    assert report.max_abs == np.inf


def test_approximate_answer_passes_with_its_recall():
    wanted, rows, served = searched()
    for number, query in enumerate(QUERIES):  # the two worst of each row are replaced by the two next best
        order = np.argsort(-(CANDIDATES @ query))
        rows[number] = [*order[: K - 2], *order[K : K + 2]]
        served["scores"][number] = CANDIDATES[rows[number]] @ query
    report, recall = compared(wanted, rows, served, exact=False)
    assert report.passed
    assert recall == pytest.approx((K - 2) / K)
    assert not compared(wanted, rows, served, exact=True)[0].passed
