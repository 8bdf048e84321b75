"""Tests `follow`: spans as they arrive, a refused run, and the files of old runs."""

import json
import re

import pytest

from components.pusher.rollback import roll_back
from pipelines.commands import cli
from pipelines.commands.exit_codes import NOTHING_PUSHED
from pipelines.config import load_config
from tests.pipelines.two_days import CONFIG, chain_of, write_day

pytestmark = pytest.mark.tfx


def followed(folder, *overrides):
    """Follow until no span is left; return for each run whether it pushed."""
    from pipelines.local.following import follow

    config = load_config(folder / "my.yaml", overrides)
    return [report.push["pushed"] for report in follow(config, until_idle=True)]


def digests(folder):
    """Return the content of each TransformGraph that is left, by the number of its execution."""
    from embedding_core.storage import folder_digests

    graphs = (folder / "runs/my/artifacts/Transform/transform_graph").glob("*[0-9]")
    return {int(one.name): json.dumps(folder_digests(one), sort_keys=True) for one in graphs}


def test_each_run_goes_on_from_the_pushed_one_and_reads_again_what_was_refused(tmp_path, capsys):
    (tmp_path / "my.yaml").write_text(CONFIG)
    write_day(tmp_path, 2, range(30))
    assert followed(tmp_path) == [True]
    assert followed(tmp_path) == []

    write_day(tmp_path, 3, range(40))
    settings = ["evaluation.min_rows=10000", "follow.keep_runs=1"]
    with pytest.raises(SystemExit) as ended:
        cli.main(["follow", str(tmp_path / "my.yaml"), "--until-idle", *(f"--set={one}" for one in settings)])
    assert ended.value.code == NOTHING_PUSHED
    assert chain_of(tmp_path)["spans"] == [[2]]
    first, second = (content for _, content in sorted(digests(tmp_path).items()))
    assert first == second

    for day in (1, 4):
        write_day(tmp_path, day, range(10, 40))
    settings = ["evaluation.baseline=pushed", "follow.full_run_every=1", "follow.keep_runs=1"]
    assert followed(tmp_path, *settings) == [True]  # the baseline is a file of the pushed run, which is kept
    assert "1 spans arrived after a later one was trained on (1 to 1)" in capsys.readouterr().err
    chain = chain_of(tmp_path)
    assert chain["spans"] == [[3, 4], [2]]
    assert (chain["trainings"], chain["versions"]) == (3, 2)
    assert len(digests(tmp_path)) == 1
    assert followed(tmp_path) == []


def test_spans_of_a_version_that_was_rolled_back_while_follow_waits_are_trained_on_again(tmp_path):
    """No row of the second span has a shop."""
    from pipelines.local.following import follow

    (tmp_path / "my.yaml").write_text(CONFIG)
    write_day(tmp_path, 1, range(30))
    config = load_config(tmp_path / "my.yaml", ["follow.poll_seconds=0.1", "data.empty_columns=allow"])
    reports = follow(config)
    assert next(reports).push["pushed"]
    write_day(tmp_path, 2, range(30))
    second = tmp_path / "days/2/rows.csv"
    second.write_text(re.sub(",s[0-9],", ",,", second.read_text()))
    assert next(reports).push["pushed"]
    roll_back(config.push_destination)
    write_day(tmp_path, 3, range(30))
    assert next(reports).push["pushed"]
    assert chain_of(tmp_path)["spans"] == [[2, 3], [1]]
