"""One run of the demo's pipeline carries all end-to-end asserts; two more runs show what the cache does."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from embedding_core.errors import EmbeddingError
from pipelines.config import load_config

pytestmark = pytest.mark.tfx

TAXI = Path(__file__).parents[2] / "pipelines" / "examples" / "taxi.yaml"
NODES_AFTER_VOCABULARIES = {
    "VocabularyGen", "TableConfigGen", "EmbeddingTrainer", "CheckpointRetriever", "Evaluator", "EmbeddingPusher",
}  # fmt: skip


def states(report):
    return {node["node"]: node["state"] for node in report.nodes}


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    """Three runs in one work_dir: the first, one with nothing changed, one with a changed vocabulary threshold."""
    from pipelines.run_local import run

    place = f"work_dir={tmp_path_factory.mktemp('taxi')}"
    return [run(load_config(TAXI, [place, *more])) for more in ([], [], ["vocabularies.company.min_count=5"])]


@pytest.fixture(scope="session")
def store(runs):
    from pipelines.lineage import open_store

    return open_store(Path(runs[0].push["destination"]).parents[1] / "metadata.sqlite")


def test_first_run_executes_every_node_and_pushes(runs):
    assert set(states(runs[0]).values()) == {"executed"}
    assert runs[0].push["pushed"]


def test_model_is_at_or_above_the_logistic_regression(runs):
    model, mean, regression = (row["metrics"]["AUC"] for row in runs[0].quality)
    assert mean == 0.5
    assert model >= regression > 0.9


def test_pushed_version_equals_training_and_the_evaluated_model(runs):
    compared = {row["name"].split("/")[0] for row in runs[0].parity}
    assert compared >= {"training", "evaluated", "raw"}
    assert all(row["difference"] <= row["tolerance"] for row in runs[0].parity)


def test_unchanged_run_comes_from_the_cache_and_pushes_nothing_new(runs):
    assert set(states(runs[1]).values()) == {"cached"}
    assert runs[1].push == runs[0].push


def test_changed_threshold_runs_only_what_depends_on_it(runs):
    executed = {node for node, state in states(runs[2]).items() if state == "executed"}
    assert executed == NODES_AFTER_VOCABULARIES
    assert int(runs[2].push["version"]) > int(runs[0].push["version"])


def test_report_on_disk_holds_the_same_figures(runs):
    folder = Path(runs[0].push["destination"]).parents[1] / "report"
    saved = json.loads((folder / "report.json").read_text())
    assert saved["quality"] == [dict(row) for row in runs[2].quality]
    html = (folder / "report.html").read_text()
    assert saved["push"]["version"] in html
    assert not re.search(r"""(src|href)=["']?http|@import|url\(http""", html)  # self-contained


def test_pushed_version_answers_in_plain_tensorflow(runs, tmp_path):
    """The two lines of the report, in a process without this project on its path."""
    program = (
        "import os; os.environ['TF_CPP_MIN_LOG_LEVEL']='3'\n"
        + runs[0].push["query"].replace("serialized_example", "b''").replace("model.sig", "answer = model.sig")
        + "\nprint(float(answer[0, 0]))"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert 0 < float(done.stdout) < 1


def test_lineage_reaches_back_to_the_examples(runs, store):
    from pipelines.lineage import newest_artifact, trace

    pushed = newest_artifact(store, "PushedModel", having={"pushed_version": int(runs[0].push["version"])})
    nodes = trace(store, pushed).values()
    types = {node.type for node in nodes}
    assert {"Model", "ModelRun", "components.Vocabularies", "components.TableConfigs", "Examples", "Schema"} <= types
    assert all(Path(node.uri).exists() for node in nodes)
    digests = {node.type: node.facts["vocabularies"] for node in nodes if node.type in {"PushedModel", "ModelRun"}}
    assert digests["PushedModel"].items() <= digests["ModelRun"].items()


def test_checkpoint_of_the_run_verifies(store):
    from embedding_core.checkpoint import verify
    from pipelines.lineage import newest_artifact, trace

    found = newest_artifact(store, "components.EmbeddingCheckpoint")
    assert verify(trace(store, found)[found].uri).step > 0


@pytest.fixture(scope="session")
def warm_run(runs):
    """A run that starts from the one before, with vocabularies that grow out of its own."""
    from pipelines.run_local import run

    work_dir = Path(runs[0].push["destination"]).parents[1]
    grown = ["vocabulary_evolution={base: latest, mode: append}", "vocabularies.company.min_count=1"]
    changes = ["warm_start=latest", "training.epochs=1", "evaluation.thresholds={}", *grown]
    return run(load_config(TAXI, [f"work_dir={work_dir}", *changes]))


def test_warm_start_takes_over_rows_by_token_and_without_thresholds_every_model_is_blessed(runs, warm_run):
    report = warm_run
    assert states(report)["CheckpointLoader"] == "executed"
    assert report.warm_start["tables"]["company"]["kept_traffic"] > 0.5
    assert report.push["pushed"]
    (before,) = [row for row in runs[2].vocabularies if row["name"] == "company"]
    (company,) = [row for row in report.vocabularies if row["name"] == "company"]
    assert company["evolution"]["base"] == before["digest"]
    assert company["evolution"]["kept"] == before["size"]
    assert company["size"] == before["size"] + company["evolution"]["new"] > before["size"]
    assert {row["feature"]: row["new_rows"] > 0 for row in report.drift}["company"]


def test_every_link_and_figure_of_the_lineage_page_is_the_stores(runs, warm_run, store, tmp_path):
    """Of a run that started from an earlier one: both stand in the page."""
    from pipelines.lineage import newest_artifact
    from pipelines.lineage_command import main
    from tests.pipelines.lineage_check import check_page

    page, version = tmp_path / "page.html", warm_run.push["version"]
    place = f"--set=work_dir={Path(runs[0].push['destination']).parents[1]}"
    assert main([str(TAXI), place, f"--version={version}", f"--html={page}"]) == 0
    pushed = newest_artifact(store, "PushedModel", having={"pushed_version": int(version)})
    read = check_page(page.read_text(), store, pushed)
    assert len(read.tables["From run to run"]) == 2 + 2


def test_model_that_is_no_longer_served_is_pushed_again_once(runs):
    """Its push is in the cache, but a later run's version is served, or its version was deleted."""
    from pipelines.run_local import run

    work_dir = Path(runs[0].push["destination"]).parents[1]
    again, after = (run(load_config(TAXI, [f"work_dir={work_dir}"])) for _ in range(2))
    executed = {node for node, state in states(again).items() if state == "executed"}
    assert executed == {"EmbeddingPusher"}
    assert int(again.push["version"]) > int(runs[2].push["version"])
    assert set(states(after).values()) == {"cached"}
    assert after.push == again.push


def test_output_that_was_deleted_or_damaged_is_made_again_and_nothing_else(runs, store):
    """TFX's own cache would serve both."""
    import shutil

    from pipelines.lineage import outputs_of, trace
    from pipelines.run_local import run
    from pipelines.upkeep import read_content

    made = {node["node"]: node["execution"] for node in runs[1].nodes}
    ids = {node: outputs_of(store, made[node])[0] for node in ("CheckpointRetriever", "ExampleValidator")}
    folders = {node: Path(trace(store, one)[one].uri) for node, one in ids.items()}
    before = {node: read_content(folder).digest for node, folder in folders.items()}
    shutil.rmtree(folders["CheckpointRetriever"])
    file = max(
        (one for one in folders["ExampleValidator"].rglob("*") if one.is_file()), key=lambda one: one.stat().st_size
    )
    data = file.read_bytes()
    file.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    report = run(load_config(TAXI, [f"work_dir={Path(runs[0].push['destination']).parents[1]}"]))
    executed = {node["node"]: node["execution"] for node in report.nodes if node["state"] == "executed"}
    assert executed.keys() - {"EmbeddingPusher"} == ids.keys()
    for node, digest in before.items():
        (again,) = outputs_of(store, executed[node])
        assert read_content(trace(store, again)[again].uri).digest == digest
        assert again != ids[node]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("label.key=no_such", ["no_such"]),
        ("data.path=absent.csv", ["absent.csv", "no such file"]),
        ("features.dense=[fair]", ["fair", "fare"]),
        ("evaluation.thresholds.AUC.min=ten", ["evaluation.thresholds.AUC.min", "ten"]),
    ],
)
def test_mistake_of_the_configuration_is_one_error_and_loses_nothing(runs, change, words):
    from pipelines.run_local import run

    serving = Path(runs[0].push["destination"]).parent
    before = sorted(path.name for path in serving.iterdir())
    with pytest.raises(EmbeddingError) as error:
        run(load_config(TAXI, [f"work_dir={serving.parent}", change]))
    assert all(word in str(error.value) for word in words)
    assert sorted(path.name for path in serving.iterdir()) == before
