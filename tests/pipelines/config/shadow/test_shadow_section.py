"""The section `shadow`: paths, bounds and mistakes."""

import os

import pytest

pytestmark = pytest.mark.light


def test_paths_start_at_the_file_and_words_stay(load, minimal, folder):
    (folder / "log-1").touch()
    section = load(minimal + "shadow: log-*\n").shadow
    assert (section.requests, section.against) == (os.path.join(folder, "log-*"), "pushed")
    section = load(minimal + "shadow: {requests: log-1, against: versions/7}\n").shadow
    assert section.against == os.path.join(folder, "versions/7")


def test_pipeline_has_no_shadow_by_default(load, minimal):
    assert load(minimal).shadow is None


def test_bounds_are_read(load, minimal, folder):
    (folder / "log").touch()
    text = "shadow: {requests: log, outputs: {raw/logit: {p99: 0.1}}, latency: {p95: 2}, slices: [country]}\n"
    section = load(minimal + text, "shadow.outputs.logit.max=1").shadow
    assert section.outputs["raw/logit"].p99 == 0.1
    assert section.outputs["logit"].max == 1
    assert section.latency.p95 == 2
    assert section.rules().slices == ("country",)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("shadow: {requests: none}", "none': give a request log"),
        ("shadow: {requests: log, outputs: {logit: {}}}", "has no bound: give it one of mean, p50, p90, p99, max"),
        ("shadow: {requests: log, outputs: {logit: {p95: 1}}}", "did you mean"),
        ("shadow: {requests: log, max_refused: 2}", "must be a number from 0 to 1"),
        ("shadow: {requests: log, latency: {p50: 0}}", "must be a number above 0"),
        ("shadow: {requests: log, min_rows: 0}", "must be a whole number of at least 1"),
        ("shadow: {outputs: {}}", "`shadow.requests` is missing"),
        ("shadow: {requests: log, against: 'versions/*'}", "give a folder without any of"),
    ],
)
def test_mistake_is_one_line(mistake, minimal, folder, text, words):
    (folder / "log").touch()
    assert words in mistake(minimal + text + "\n")
