"""Tests what the pipelines of the trained world did: two days of a ranking model, and a two-tower model."""

import csv
import re
from pathlib import Path

import numpy as np
import pictures
import pytest
import tensorflow as tf

from tests.pipelines.lineage_check import check_page
from tests.support.metadata import newest_artifact

pytestmark = pytest.mark.tfx

PICTURE = Path(__file__).parents[2] / "docs" / "pictures" / "lineage_run.svg"


def states(report):
    return {node["node"]: node["state"] for node in report.nodes}


def train_items(pipeline, day):
    with open(pipeline.folder / "days" / str(day) / "rows.csv", newline="") as file:
        return [row["item"] for row in csv.DictReader(file) if row["part"] == "a"]


def table_of(pipeline, component, run=-1):
    """Return the rows and slots of `item` in a checkpoint, and the tokens of its vocabulary."""
    folder = pipeline.artifact(component, "embedding_checkpoint", run)
    reader = tf.train.load_checkpoint(str(folder / "tables"))
    tokens = (folder / "vocabularies" / "item.txt").read_text().split()
    return {key: reader.get_tensor(key) for key in ("item", "item/accumulators")}, tokens


def test_both_days_execute_every_node_and_push(ranking_days):
    first, second = ranking_days.reports
    assert set(states(first).values()) == {"executed"}
    not_executed = {node: state for node, state in states(second).items() if state != "executed"}
    assert not_executed == {"BaseVocabularies": "cached", "WarmStart": "cached"}
    for report in ranking_days.reports:
        assert report.push.pushed
        assert max(row["difference"] for row in report.parity) <= 1e-5
    assert int(second.push.version) > int(first.push.version)


def test_second_day_starts_from_the_rows_of_each_token(ranking_days):
    trained, tokens = table_of(ranking_days, "CheckpointRetriever", run=0)
    started, new_tokens = table_of(ranking_days, "CheckpointLoader")
    assert len(tokens) < len(new_tokens)
    for key, rows in started.items():
        for row, token in enumerate(new_tokens):
            if token in tokens:
                np.testing.assert_array_equal(rows[row], trained[key][tokens.index(token)])
    finished, _ = table_of(ranking_days, "CheckpointRetriever")
    assert not np.array_equal(finished["item"], started["item"])


def test_second_day_says_what_it_took_over(ranking_days):
    first, report = ranking_days.reports
    before, items = set(train_items(ranking_days, 1)), train_items(ranking_days, 2)
    told = report.warm_start["tables"]["item"]
    assert told["new"] == len(set(items) - before)
    assert told["kept_traffic"] == pytest.approx(np.mean([item in before for item in items]), abs=1e-12)
    dense = report.warm_start["dense"]
    assert (dense["dense"], dense["optimizer"], dense["ranges"]) == ("restored", "restored", {"price": "kept"})
    (old,) = [row for row in first.vocabularies if row["name"] == "item"]
    (new,) = [row for row in report.vocabularies if row["name"] == "item"]
    assert (new["evolution"]["base"], new["evolution"]["kept"]) == (old["digest"], old["size"])
    assert new["size"] == old["size"] + new["evolution"]["new"] > old["size"]
    assert {row["feature"]: row["new_rows"] > 0 for row in report.drift}["item"]


def test_every_link_and_figure_of_the_lineage_page_is_the_stores(ranking_days, tmp_path):
    """The page of the second day also contains the run that the day started from."""
    from pipelines.commands import lineage_command
    from pipelines.lineage.graph import open_store

    page = tmp_path / "page.html"
    lineage_command.show(str(ranking_days.folder / "my.yaml"), html=str(page))
    store = open_store(ranking_days.work_dir / "metadata.sqlite")
    read = check_page(page.read_text(), store, newest_artifact(store, "PushedModel"))
    assert len(read.tables["From run to run"]) == 4 * (1 + 2)  # tables with a row for each run
    missing = components_in(pictures.drawing(page.read_text())) - components_in(PICTURE.read_text())
    assert missing == set(), "run `tfx-embeddings lineage CONFIG --html PAGE` and `python docs/pictures.py PAGE`"
    charts = pictures.charts(page.read_text())
    assert "AUC on the eval split" in charts
    assert "median norm of the rows, by table" in charts


def components_in(drawing):
    """Return the names of the components whose artifacts a drawing shows."""
    return set(re.findall(r"#\d+ · (\w+)<", drawing))


def test_health_compares_the_second_day_with_the_first(ranking_days):
    first, second = (report.health for report in ranking_days.reports)
    assert first["findings"] == second["findings"] == []
    assert [table["has_base"] for table in first["tables"].values()] == [False, False]
    item = second["tables"]["item"]
    assert item["has_base"]
    assert item["values"]["frozen"] == item["values"]["strayed"] == 0.0
    assert np.all(np.diff(item["curves"]["norms"]) >= 0)
    html = (ranking_days.work_dir / "report" / "report.html").read_text()
    assert "item: norm of the rows" in html


def test_two_tower_model_is_trained_judged_and_pushed(two_tower):
    (report,) = two_tower.reports
    assert report.push.pushed, report.push.reason
    assert max(row["difference"] for row in report.parity) <= 1e-5
    version = tf.saved_model.load(str(two_tower.version()))
    assert set(version.signatures["serving_default"].structured_outputs) == {"logit", "probability"}
    assert {"top_k", "query", "candidate"} <= set(version.signatures)
    assert [row["scorer"] for row in report.quality] == ["this model", "popularity of item"]


def test_evaluator_and_quality_gate_measure_the_same_rankings(two_tower):
    """Evaluator uses the exported model's signatures, QualityGate the restored run."""
    (report,) = two_tower.reports
    found = {(row["metric"], row["bound"]): row["value"] for row in report.evaluation}
    figures = report.retrieval["metrics"]
    assert found["Recall@10", ""] == pytest.approx(figures["Recall@10"], abs=1e-6)
    popularity = report.retrieval["popularity"]["NDCG@20"]
    assert found["NDCG@20", "at least 0.01"] == pytest.approx(figures["NDCG@20"], abs=1e-6)
    assert ("NDCG@20", f"at least popularity's {popularity:.4f} - 1") in found
    assert "those seen before, which are left out" in report.retrieval_note
    assert "values of user" in report.retrieval_note


def test_copy_of_a_pipeline_names_its_own_files(ranking_days, tmp_path):
    from pipelines.lineage.graph import open_store, trace

    copy = ranking_days.copy(tmp_path / "copy")
    store = open_store(copy.work_dir / "metadata.sqlite")
    nodes = trace(store, newest_artifact(store, "PushedModel")).values()
    assert all(Path(node.uri).is_relative_to(copy.folder) and Path(node.uri).exists() for node in nodes)
    assert copy.version().is_relative_to(copy.folder)
