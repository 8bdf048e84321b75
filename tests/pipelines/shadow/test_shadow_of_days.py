"""Daily runs that replay recorded requests: the first push, a second day, its repetition, and a day that is refused."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from pipelines.commands.shared_options import NOTHING_PUSHED
from tests.components.shadow.logs import predict_log
from tests.support.tf_examples import write_rows
from tests.support.two_days import CONFIG, DAY, write_day

pytestmark = [pytest.mark.slow, pytest.mark.tfx, pytest.mark.timeout(1500)]

ROOT = Path(__file__).parents[3]
SHADOW = "shadow: {requests: requests.log, slices: [item], outputs: {probability: {max: 1}}}\n"


def run(folder, *changes):
    """Run the pipeline; return its exit code and its report."""
    command = [sys.executable, "-m", "pipelines.commands.cli", "run", str(folder / "my.yaml")]
    command += [part for change in changes for part in ("--set", change)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=700, check=False)
    assert done.returncode in (0, NOTHING_PUSHED), done.stdout + done.stderr
    return done.returncode, json.loads((folder / "runs/my/report/report.json").read_text())


def states(report):
    return {node["node"]: node["state"] for node in report["nodes"]}


def test_requests_are_replayed_before_each_push(tmp_path):
    (tmp_path / "my.yaml").write_text(CONFIG + SHADOW)
    for day in (1, 2, 3):
        write_day(tmp_path, day, range(10 * day, 10 * day + 30))
    items = [b"i%d" % number for number in range(40)]
    write_rows(tmp_path / "requests.log", [predict_log("raw", item=items, shop=[b"s1"] * 40)])

    code, report = run(tmp_path, *DAY[1])
    assert (code, report["gates"]["Shadow"]["note"]) == (
        0,
        "no version was pushed yet, so the model was not compared.",
    )
    first = report["push"]["version"]

    code, report = run(tmp_path, *DAY[2])
    assert code == 0
    assert report["gates"]["Shadow"]["requests"]["rows"] == 40
    assert report["gates"]["Shadow"]["outputs"]["raw/probability"]["max"] > 0
    checked = [
        check for check in report["evaluation"] if check["metric"].startswith("max difference of raw/probability")
    ]
    assert [check["outcome"] for check in checked] == ["met"]
    assert (tmp_path / "runs/my/report/shadow.html").is_file()
    second = report["push"]["version"]
    assert int(second) > int(first)

    code, report = run(tmp_path, *DAY[2])  # compares with the first version, as before, and not with itself
    assert code == 0
    assert set(states(report).values()) == {"cached"}
    assert report["push"]["version"] == second

    code, report = run(tmp_path, *DAY[3], "shadow.outputs.probability.max=1e-9")
    assert code == NOTHING_PUSHED
    assert "max difference of raw/probability" in report["push"]["reason"]
    assert report["gates"]["Shadow"]["old"]["path"].endswith(pushed_of(tmp_path, second))


def pushed_of(folder, version):
    """Return the number of the PushedModel with that version, from the lineage records."""
    for path in folder.glob("runs/my/artifacts/EmbeddingPusher/pushed_model/*.lineage.json"):
        record = json.loads(path.read_text())
        if record["facts"].get("pushed_version") == version:
            return f"/pushed_model/{Path(record['uri']).name}"
    raise AssertionError(version)
