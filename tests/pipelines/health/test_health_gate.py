"""Tests that pipelines whose tables are sick push nothing; tests/pipelines/test_trained_world.py has healthy ones."""

import pytest

from tests.support.two_days import write_day

pytestmark = [pytest.mark.tfx, pytest.mark.slow, pytest.mark.timeout(1500)]


def plant(uri, destination):
    """Write the checkpoint of a run again, with zeros in the rows of the tokens i0 to i9, which day 3 does not have."""
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


@pytest.fixture
def third_day(ranking_days, tmp_path):
    """Return a copy of the trained world, with data of a third day, and a function that runs it."""
    from pipelines.local.run_local import run

    pipeline = ranking_days.copy(tmp_path / "copy")
    write_day(pipeline.folder, 3, range(20, 50), priced=True)
    return pipeline, lambda *given: run(pipeline.config("data.spans={first: 3, last: 3}", *given))[1]


def test_planted_tables_are_not_pushed(third_day):
    pipeline, run = third_day
    planted = pipeline.folder / "planted"
    plant(str(pipeline.artifact("CheckpointRetriever", "embedding_checkpoint")), str(planted))
    report = run(f"warm_start={planted}")
    assert not report.push.pushed
    assert "share of rows that are all zeros of table 'item' is" in report.push.reason
    assert "`health.max_zero`" in report.push.reason
    assert {finding["table"] for finding in report.health["findings"]} == {"item"}


def test_tables_that_were_not_trained_are_not_pushed(third_day):
    _, run = third_day
    report = run("training.table_optimizer.learning_rate=0")
    assert not report.push.pushed
    assert {(finding["table"], finding["figure"], finding["value"]) for finding in report.health["findings"]} == {
        (table, figure, 1.0) for table in ("item", "shop") for figure in ("frozen", "frozen_rows")
    }
