"""Tests the health gate in pipelines that run: sick tables are not pushed, healthy ones are, and reports show why."""

import json

import numpy as np
import pytest

from support.two_days import CONFIG, DAY, write_day

pytestmark = [pytest.mark.tfx, pytest.mark.timeout(1500)]


def planted(uri, destination):
    """Write the checkpoint of a run again, with zeros in the rows of the tokens i0 to i9, which day 2 does not have."""
    from embedding_core.checkpoint import read_manifest, write_tables
    from embedding_core.checkpoint.table_health import CheckpointTables
    from tests.pipelines.health.planted_sicknesses import read_arrays

    tables = CheckpointTables(uri)
    arrays, tokens = read_arrays(tables), tables.vocabularies["item"].tokens.to_pylist()
    arrays["item"][[row for row, token in enumerate(tokens) if len(token) == 2]] = 0
    manifest = read_manifest(uri)
    write_tables(
        destination, manifest.config, lambda key: [(0, arrays[key])], step=manifest.step,
        vocabularies=tables.vocabularies, dense=f"{uri}/dense",
    )  # fmt: skip


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Day 1; day 2 from planted tables; day 2 with a learning rate of 0; day 2."""
    from pipelines.config import load_config
    from pipelines.local.run_local import run

    folder = tmp_path_factory.mktemp("health")
    (folder / "my.yaml").write_text(CONFIG)
    for day, items in ((1, range(30)), (2, range(10, 40))):
        write_day(folder, day, items)
    reports = [run(load_config(folder / "my.yaml", DAY[1]))[1]]
    (made,) = folder.glob("runs/my/artifacts/CheckpointRetriever/embedding_checkpoint/*/manifest.json")
    planted(str(made.parent), str(folder / "planted"))
    for more in ([f"warm_start={folder}/planted"], ["training.table_optimizer.learning_rate=0"], []):
        reports.append(run(load_config(folder / "my.yaml", [*DAY[2], *more]))[1])
    return folder, reports


def test_first_run_is_measured_alone_and_pushed(runs):
    report = runs[1][0]
    assert report.push.pushed
    assert report.health["findings"] == []
    assert [table["has_base"] for table in report.health["tables"].values()] == [False, False]


def test_planted_tables_are_not_pushed(runs):
    report = runs[1][1]
    assert not report.push.pushed
    assert "share of rows that are all zeros of table 'item' is" in report.push.reason
    assert "`health.max_zero`" in report.push.reason
    assert {finding["table"] for finding in report.health["findings"]} == {"item"}


def test_tables_that_were_not_trained_are_not_pushed(runs):
    report = runs[1][2]
    assert not report.push.pushed
    assert {(one["table"], one["figure"], one["value"]) for one in report.health["findings"]} == {
        (table, figure, 1.0) for table in ("item", "shop") for figure in ("frozen", "frozen_rows")
    }


def test_healthy_second_run_is_pushed_and_compared_with_first(runs):
    folder, reports = runs
    assert reports[3].push.pushed
    assert len(list(folder.glob("runs/my/serving/[0-9]*"))) == 2
    assert reports[3].health["findings"] == []
    item = reports[3].health["tables"]["item"]
    assert item["has_base"]
    assert item["values"]["frozen"] == item["values"]["strayed"] == 0.0
    assert np.all(np.diff(item["curves"]["norms"]) >= 0)


def test_report_and_lineage_show_the_figures(runs):
    folder, _ = runs
    html = (folder / "runs/my/report/report.html").read_text()
    assert "Health of the tables" in html
    assert "item: norm of the rows" in html
    assert json.loads((folder / "runs/my/report/report.json").read_text())["health"]["tables"]["item"]["rows"] == 41
    from pipelines.commands import lineage_command

    lineage_command.show(str(folder / "my.yaml"), DAY[2], html=str(folder / "lineage.html"))
    page = (folder / "lineage.html").read_text()
    assert "median norm of the rows, by table" in page
