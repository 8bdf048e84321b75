"""Kills a process that pushes: no incomplete version is ever seen, no files are left over, no record is wrong."""

import pytest

from tests.support.interposed import SHORT_AND_LONG, run_preloaded


@pytest.mark.parametrize("long", SHORT_AND_LONG)
def test_push_killed_at_every_call(tmp_path, long):
    figures = run_preloaded(tmp_path, "tests.faults.pushing", 10**6 if long else 20, 1, tmp_path)
    assert (figures["incomplete"], figures["wrong_records"]) == ([], [])
    assert (figures["leftovers"], figures["failed_pushes"]) == (0, 0)
    assert figures["killed"] == figures["trials"] <= figures["records"]
    assert figures["polls"] > 0 < figures["seen"]
    assert figures["died_with_leftovers"] > 0
    assert {"write", "rename", "fsync", "close", "mkdir"} <= set(figures["kinds"])
