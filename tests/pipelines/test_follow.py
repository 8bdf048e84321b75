"""Tests `follow`: spans as they arrive, a refused run, and the files of old runs."""

import json

import pytest

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
    assert followed(tmp_path, "evaluation.min_rows=10000") == [False]
    assert chain_of(tmp_path)["spans"] == [[2]]
    first, second = (content for _, content in sorted(digests(tmp_path).items()))
    assert first == second

    for day in (1, 4):
        write_day(tmp_path, day, range(10, 40))
    assert followed(tmp_path, "follow.full_run_every=1", "follow.keep_runs=1") == [True]
    assert "1 spans arrived after a later one was trained on (1 to 1)" in capsys.readouterr().err
    chain = chain_of(tmp_path)
    assert chain["spans"] == [[3, 4], [2]]
    assert (chain["trainings"], chain["versions"]) == (3, 2)
    assert len(digests(tmp_path)) == 1
    assert followed(tmp_path) == []
