"""Tests which reports of old runs are removed."""

import os

from pipelines.local.old_runs import remove_old_reports


def test_the_newest_reports_and_those_of_the_newest_version_stay(tmp_path):
    names = ["7", "7-delta-1", "8", "8-delta-1", "refused-20261101T101500", "refused-20261101T101600"]
    for second, name in enumerate(names):
        (tmp_path / name).mkdir()
        (tmp_path / name / "report.json").write_text("{}")
        os.utime(tmp_path / name / "report.json", (second, second))
    (tmp_path / "9").mkdir()  # a killed process removed its files
    (tmp_path / "notes of the user").mkdir()
    assert remove_old_reports(str(tmp_path), 1, 8) == 4
    assert sorted(os.listdir(tmp_path)) == ["8", "8-delta-1", "notes of the user", "refused-20261101T101600"]
    assert remove_old_reports(str(tmp_path / "none"), 1, None) == 0
