"""Tests which reports of old runs are removed."""

import json
import os
from types import SimpleNamespace

from pipelines.local.following import remove_old_reports


def test_the_newest_reports_and_those_of_the_newest_version_stay(tmp_path):
    names = ["7", "7-delta-1", "8", "8-delta-1", "refused-20261101T101500", "refused-20261101T101600"]
    for number, name in enumerate(names):
        write_report(tmp_path / name, [None, 10 * number + 1, 10 * number])
        os.utime(tmp_path / name / "report.json", (100 - number, 100 - number))  # copied back in another order
    write_report(tmp_path / "6", [5000])  # of a store that was lost
    (tmp_path / "9").mkdir()  # a killed process removed its files
    (tmp_path / "notes of the user").mkdir()
    store = SimpleNamespace(get_executions=lambda list_options: [SimpleNamespace(id=51)])  # the newest alone
    remove_old_reports(store, str(tmp_path), 1, 8)
    assert sorted(os.listdir(tmp_path)) == ["8", "8-delta-1", "notes of the user", "refused-20261101T101600"]
    remove_old_reports(store, str(tmp_path / "none"), 1, None)


def write_report(folder, executions):
    folder.mkdir()
    text = json.dumps({"nodes": [{"node": "Node", "execution": number} for number in executions]})
    (folder / "report.json").write_text(text)
