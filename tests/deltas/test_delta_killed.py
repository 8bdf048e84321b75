"""Kills what writes deltas, and what copies them: no reader ever sees a part of them."""

import pytest

from tests.support.interposed import run_preloaded


@pytest.mark.parametrize("campaign", ["deltas", "rollback"])
def test_killed_at_every_call_that_changes_files(tmp_path, campaign):
    """A delta that is written, and a version that is copied with its deltas, are seen whole or not at all."""
    figures = run_preloaded(tmp_path, "tests.deltas.killing", campaign, 10**6, 1, tmp_path)
    assert figures["killed"] == figures["trials"] > figures["visible"] > 0
    assert [figures[name] for name in ("half", "lost", "leftovers", "failed")] == [0, 0, 0, 0]
    assert {"write", "rename", "fsync", "mkdir"} <= set(figures["kinds"])
