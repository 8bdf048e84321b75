"""Kills a process that saves, or fills its disk: no saved state is lost, no restart fails, no files are left over."""

import pytest

from tests.support.interposed import SHORT_AND_LONG, run_preloaded


@pytest.mark.parametrize("long", SHORT_AND_LONG)
def test_faults_in_a_save_lose_no_state(tmp_path, long):
    kills, full = (10**6, 10**6) if long else (16, 8)
    found = run_preloaded(tmp_path, "tests.faults.saving", kills, full, 1, tmp_path)
    for figures in (found["killed"], found["full"]):
        assert (figures["lost"], figures["errors"], figures["orphan_bytes"]) == (0, [], 0), figures
    assert {"fwrite", "rename", "fsync", "close", "fclose"} <= set(found["kinds"])
    assert found["killed"]["killed"] == min(kills, found["calls"])
    assert found["killed"]["swept_bytes"] > 0
    assert found["full"]["unnoticed"] == []
    assert found["full"]["trials"] == min(full, found["writes"]) + 1
