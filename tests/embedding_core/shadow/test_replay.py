"""Replays requests on two real SavedModels, each in its process; each signature of the new one differs in one way."""

import dataclasses

import numpy as np
import pytest

from embedding_core.errors import CheckpointError, DataError
from embedding_core.shadow.replay import VersionProcess, replay
from embedding_core.shadow.request_rows import Visibility
from embedding_core.shadow.shadow_rules import ShadowRules
from tests.embedding_core.shadow.small_versions import floats, request, save_version


def asked(signature="serving_default", count=10):
    return [request(number, signature, price=floats(number, number + 1)) for number in range(1, count + 1)]


COUNTRIES = np.array([b"fr", b"", b"fr"], object)
PRICED = [request(1, "priced", price=floats(1, 2, 3), country=COUNTRIES)]


@pytest.fixture(scope="module")
def versions(tmp_path_factory):
    folder = tmp_path_factory.mktemp("versions")
    old = save_version(folder / "old")
    new = save_version(folder / "new", added=1.0, least=2.0, output="stars", most=1, by_row=False, above=2.5)
    with VersionProcess(old) as first, VersionProcess(new) as second:
        yield first, second


def replayed(versions, requests, public=None, **rules):
    return replay(versions, requests, ShadowRules.from_mapping(rules), public or Visibility())


def names_of_missed(report):
    return [check.name for check in report.checks if not check.met]


def test_equal_answers_keep_to_a_bound_of_zero(versions):
    report = replayed(versions, asked(), outputs={"score": {"max": 0}})
    assert report.passed
    assert report.reason == ""
    assert report.requests == {"replayed": 10, "rows": 20, "other_models": {}, "not_replayed": {}}
    figures = report.to_json()
    assert figures["outputs"]["serving_default/score"]["rows"] == 20
    assert figures["worst"] == {"serving_default/score": []}


def test_first_request_of_a_kind_is_not_timed(versions):
    assert replayed(versions, asked("fresh", 3)).old.latency.count == 2


def test_difference_over_its_bound_is_a_missed_rule(versions):
    wanted = {"priced/score": {"p99": 0.1, "mean": 1.0}, "score": {"p50": 1.1}}
    report = replayed(versions, PRICED, outputs=wanted)
    assert names_of_missed(report) == ["p99 difference of priced/score"]
    assert "which must be at most 0.1" in report.reason
    assert report.to_json()["outputs"]["priced/score"]["mean"] == pytest.approx(1.0)


def test_new_nan_is_refused_without_any_bound(versions):
    report = replayed(versions, asked("root"))
    (missed,) = [check for check in report.checks if not check.met]
    assert missed.value == 3 / 20
    assert missed.name == "share of rows with NaN or infinity where the old version answers a number"
    assert "at most 0 (most in root/score: 3 rows)" in report.reason
    assert replayed(versions, asked("root"), max_not_finite=0.2).passed
    assert replayed(versions[::-1], asked("root")).passed  # the old version answers NaN


def test_digest_of_the_state_that_answered_is_not_an_output(versions):
    report = replayed(versions, asked("digested"), outputs={"score": {"max": 0}})
    assert report.passed
    assert set(report.outputs) == {"digested/score"}


def test_bound_of_an_output_that_no_request_has_is_missed(versions):
    report = replayed(versions, asked(), outputs={"scores": {"max": 1}})
    assert not report.passed
    assert "no replayed request has the output 'scores'" in report.reason


def test_rows_only_the_new_version_refuses_are_found_one_by_one(versions):
    report = replayed(versions, asked("strict"), Visibility(answers=True))
    assert report.refused == {"old": 0, "new": 1, "both": 0}
    assert report.requests["rows"] == 19
    assert report.refusals[0]["place"] == "log, record 1, row 1"
    assert "too small a value" in report.refusals[0]["error"]
    assert names_of_missed(report) == ["share of rows that only the new version refuses"]
    assert replayed(versions, asked("strict"), max_refused=0.05).passed


def test_graph_message_is_hidden_if_the_request_may_be_private(versions):
    (refusal,) = replayed(versions, asked("strict", 1)).refusals
    assert refusal["error"] == "InvalidArgumentError (its message may quote the request, so it is not shown)"


def test_rows_only_the_old_version_refuses_do_not_fail_the_new(versions):
    report = replayed(versions[::-1], asked("strict"))
    assert report.passed
    assert report.refused == {"old": 1, "new": 0, "both": 0}


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        (request(1, cost=floats(1)), "the inputs are ['cost']: signature 'serving_default' takes ['price']"),
        (request(1, price=np.array([1.0])), "input 'price' is float64: signature 'serving_default' takes float32"),
        (request(1, "raw", price=floats(1)), "no signature 'raw': the version has digested, fresh, named"),
        (dataclasses.replace(asked()[0], inputs={"price": b"\xff\xff"}), "DecodeError"),
        (dataclasses.replace(asked()[0], outputs=("stars",)), "no output 'stars': signature 'serving_default' has"),
    ],
    ids=["input", "type", "signature", "bytes", "output"],
)
def test_request_no_version_can_answer_is_refused_by_both(versions, wrong, error):
    report = replayed(versions, [wrong, *asked()])
    assert report.refused["both"] >= 1
    assert report.refused["old"] == report.refused["new"] == 0
    assert error in report.refusals[0]["error"]
    assert report.passed


def test_lost_output_is_a_refusal(versions):
    report = replayed(versions, asked("named", 2))
    assert report.refused["new"] == 4
    assert "there is no output 'rating': the new version has stars" in report.reason


def test_request_refused_only_as_a_whole_counts_as_refused(versions):
    report = replayed(versions, asked("small", 2), Visibility(answers=True))
    assert report.refused == {"old": 0, "new": 4, "both": 0}
    assert report.requests["rows"] == 0
    assert [refusal["place"] for refusal in report.refusals] == ["log, record 1", "log, record 2"]
    assert "too many rows" in report.refusals[0]["error"]


def test_new_answer_without_a_row_for_each_row_is_a_refusal(versions):
    report = replayed(versions, [*asked(count=2), *asked("summed", 1)])
    assert report.refused == {"old": 0, "new": 2, "both": 0}
    assert "output 'score' has the shape []" in report.reason


def test_old_answer_without_a_row_for_each_row_is_not_compared(versions):
    report = replayed(versions[::-1], [*asked(count=2), *asked("summed", 1)])
    assert report.passed
    assert report.requests["not_replayed"] == {"answers without a row for each row of the request": 1}


def reading(version, monkeypatch, **figures):
    """Give each answer of a version these figures in place of what its process read."""
    received = version._received

    def changed(what):
        facts, parts = received(what)
        return {**facts, **figures}, parts

    monkeypatch.setattr(version, "_received", changed)


def test_slow_version_misses_a_bound_of_the_latency(versions, monkeypatch):
    bound = {"p50": 3.0}
    for version, seconds in zip(versions, (0.001, 0.004), strict=True):
        reading(version, monkeypatch, seconds=seconds)
    assert names_of_missed(replayed(versions, asked(), latency=bound)) == ["p50 of the latency, new to old"]
    assert replayed(versions[::-1], asked(), latency=bound).passed


def test_bound_of_a_latency_that_was_not_measured_is_missed(versions):
    wrong = [request(1, cost=floats(1))]
    assert "was not measured" in replayed(versions, wrong, latency={"p99": 2.0}).reason


def test_large_version_misses_a_bound_of_the_memory(versions, monkeypatch):
    for version, peak in zip(versions, (4 * 10**9, 6 * 10**9), strict=True):
        monkeypatch.setattr(version, "peak_bytes", peak)
    report = replayed(versions, asked(), max_memory=1.3)
    assert names_of_missed(report) == ["peak of memory, new to old"]
    assert replayed(versions, asked(), max_memory=1.5).passed


def test_peak_of_memory_never_falls(versions, monkeypatch):
    """The kernel's counters are approximate: the peak that it gives may be below the one that it gave before."""
    reading(versions[0], monkeypatch, peak_bytes=1)
    old = replayed(versions, asked()).old
    assert 0 < old.loaded_bytes <= old.peak_bytes


def test_slices_and_worst_rows_show_public_values(versions):
    public = Visibility(frozenset({"country"}), answers=True)
    report = replayed(versions, PRICED, public, slices=["country"], worst_rows=2).to_json()
    assert {(part["value"], part["rows"]) for part in report["slices"]} == {("fr", 2), ("(missing)", 1)}
    worst = report["worst"]["priced/score"]
    assert len(worst) == 2
    assert worst[0] == {
        "difference": 1.0,
        "place": "log, record 1, row 1",
        "request": {"country": "fr", "price": "1"},
        "old": "1",
        "new": "2",
    }


def test_slices_and_worst_rows_show_other_values_as_digests(versions):
    report = replayed(versions, PRICED, slices=["country"]).to_json()
    assert sorted(part["value"][:7] for part in report["slices"]) == ["(missin", "sha256:"]
    assert report["worst"]["priced/score"][0]["request"]["country"].startswith("sha256:")
    assert "fr" not in str(report["slices"])


def test_log_of_several_models_needs_a_name(versions):
    requests = asked(count=4)
    requests[2] = dataclasses.replace(requests[2], model="other")
    with pytest.raises(DataError, match="record 3 is for the model 'other', and log, record 1 for 'm': name"):
        replayed(versions, requests)
    report = replayed(versions, requests, model="m")
    assert report.requests["other_models"] == {"other": 1}
    assert report.requests["replayed"] == 3
    with pytest.raises(DataError, match="has no request for it: did you mean 'other'"):
        replayed(versions, requests[2:3], model="others")


def test_kinds_that_are_not_replayed_are_counted(versions):
    regress = dataclasses.replace(asked()[0], kind="regress_log", inputs=None)
    report = replayed(versions, [regress, *asked()])
    assert report.requests["not_replayed"] == {"regress_log": 1}
    with pytest.raises(DataError, match=r"no request that can be replayed \(1 regress_log\)"):
        replayed(versions, [regress])


def test_empty_log_is_an_error(versions):
    with pytest.raises(DataError, match="it is empty"):
        replayed(versions, [])


def test_a_log_is_streamed_and_the_values_of_a_slice_are_bounded(versions):
    alive = []

    def stream():
        for number in range(300):
            assert not alive  # the request before was answered before this one was read
            alive.append(number)
            yield request(number, price=floats(number))
            alive.clear()

    report = replayed(versions, stream(), slices=["price"]).to_json()
    assert len({part["value"] for part in report["slices"]}) == 101  # a hundred values and the others
    assert sum(part["rows"] for part in report["slices"]) == 300


def test_version_that_does_not_load_is_one_error(tmp_path):
    (tmp_path / "saved_model.pb").write_bytes(b"not a model")
    with pytest.raises(CheckpointError, match=r"ended \(exit code 1, loading\): .*Give the folder of a SavedModel"):
        VersionProcess(tmp_path).__enter__()
