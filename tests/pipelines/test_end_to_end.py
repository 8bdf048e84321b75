"""Tests the demo's pipeline end to end.

Most tests examine the same first run. Further runs in its work_dir show what the cache does. The second day of the
trained world is tested in `test_trained_world.py`, that of the demo in the campaign `tasks`.
"""

import csv
import dataclasses
import gzip
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from embedding_core.errors import EmbeddingError
from pipelines.config import data_files, load_config
from tests.support.metadata import newest_artifact

pytestmark = [pytest.mark.tfx, pytest.mark.grappler]

PAGE = Path(__file__).parents[2] / "docs" / "data.md"
TAXI = Path(__file__).parents[2] / "pipelines" / "examples" / "taxi.yaml"
PRIVATE = "features.categorical.1={name: company, private: true}"
WARM = [
    "warm_start=pushed", "vocabulary_evolution={base: pushed, mode: append}", "vocabularies.company.min_count=1",
    "training.epochs=1", "evaluation.thresholds={}",
]  # fmt: skip


def states(report):
    return {node["node"]: node["state"] for node in report.nodes}


def executed(report):
    return {node for node, state in states(report).items() if state == "executed"}


@pytest.fixture(scope="session")
def work_dir(tmp_path_factory):
    return tmp_path_factory.mktemp("taxi")


@pytest.fixture(scope="session")
def run_demo(work_dir):
    """Return a function that runs the demo in the work_dir, and returns the report."""
    from pipelines.local.run_local import run

    return lambda *given, **options: run(load_config(TAXI, [f"work_dir={work_dir}", PRIVATE, *given]), **options)[1]


@pytest.fixture(scope="session")
def temporary_folder(tmp_path_factory):
    """Return the folder for the temporary files of the runs."""
    return tmp_path_factory.mktemp("temporary")


@pytest.fixture(scope="session")
def runs(run_demo, temporary_folder):
    """Three runs in one work_dir: the first, one with nothing changed, one that asks for more rows than there are."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(temporary_folder))
        patch.setenv("TMPDIR", str(temporary_folder))
        return [run_demo(), run_demo(), run_demo("evaluation.min_rows=1000000")]


@pytest.fixture(scope="session")
def store(runs, work_dir):
    from pipelines.lineage.graph import open_store

    return open_store(work_dir / "metadata.sqlite")


def test_first_run_executes_every_node_and_pushes(runs):
    assert set(states(runs[0]).values()) == {"executed"}
    assert runs[0].push.pushed


def test_model_is_at_or_above_the_logistic_regression(runs):
    model, mean, regression = (row["metrics"]["AUC"] for row in runs[0].quality)
    assert mean == 0.5
    assert model >= regression > 0.9


def test_pushed_version_equals_training(runs):
    compared = {row["name"].split("/")[0] for row in runs[0].parity}
    assert compared == {"training", "raw"}
    assert all(row["difference"] <= row["tolerance"] for row in runs[0].parity)


def test_unchanged_run_comes_from_the_cache_and_pushes_nothing(runs):
    assert set(states(runs[1]).values()) == {"cached"}
    assert runs[1].push == dataclasses.replace(runs[0].push, from_cache=True)


def test_report_on_disk_holds_the_same_figures(runs, work_dir):
    folder = work_dir / "reports" / runs[0].push.version
    saved = json.loads((folder / "report.json").read_text())
    assert saved["nodes"][0]["state"] == "executed", "the report of the run that pushed it"
    assert saved["quality"] == [dict(row) for row in runs[0].quality]
    html = (folder / "report.html").read_text()
    assert saved["push"]["version"] in html
    assert not re.search(r"""(src|href)=["']?http|@import|url\(http""", html)  # self-contained


def test_request_of_the_report_runs_without_this_project(runs, tmp_path):
    program = "import os; os.environ['TF_CPP_MIN_LOG_LEVEL']='3'\n" + runs[0].query
    done = subprocess.run(
        [sys.executable, "-I", "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    probabilities = [float(value) for value in re.findall(r"[0-9.e-]+", done.stdout)]
    assert len(probabilities) == 2
    assert all(0 < value < 1 for value in probabilities)


def test_readme_shows_the_figures_of_the_demo(runs):
    page = (TAXI.parents[2] / "README.md").read_text()
    shown = re.findall(r"(?m)^    (\S.*?)  +(0\.\d{4})  +(0\.\d{4})$", page)
    figures = {row["scorer"]: (row["metrics"]["AUC"], row["metrics"]["log loss"]) for row in runs[0].quality}
    assert [scorer for scorer, *_ in shown] == list(figures)
    for scorer, auc, loss in shown:
        assert (float(auc), float(loss)) == pytest.approx(figures[scorer], abs=2e-4)


def test_report_says_how_the_model_was_judged(runs):
    report = runs[0]
    judged = {row["metric"]: row for row in report.evaluation}
    assert judged["AUC"]["outcome"] == "met"
    assert judged["AUC"]["bound"] == "at least 0.9"
    assert judged["AUC"]["value"] == pytest.approx(report.quality[0]["metrics"]["AUC"], abs=2e-3)
    assert judged["BinaryCrossEntropy"]["outcome"] == "no bound"
    assert judged["rows of the eval split"] == {
        "metric": "rows of the eval split", "value": report.eval_rows, "bound": "at least 100", "outcome": "met",
    }  # fmt: skip
    assert judged["ExampleCount"]["value"] == report.eval_rows
    slices = {row["slice"]: row["metrics"]["ExampleCount"] for row in report.slices}
    assert slices["payment_type = Cash"] == max(slices.values())
    assert sum(slices.values()) == report.eval_rows
    assert report.retrieval is None
    assert "no query and candidate towers" in report.retrieval_note


def test_report_says_what_the_columns_lack(runs):
    report = runs[0]
    assert report.labels[0]["positives"] + report.labels[0]["negatives"] == report.eval_rows
    missing = {row["column"]: row["missing"]["train"] for row in report.columns}
    assert missing["fare"] == 0.0
    assert missing["dropoff_census_tract"] > 0.1
    features = {row["feature"]: row for row in report.features}
    assert features["dropoff_census_tract"]["empty_eval"] == pytest.approx(
        next(row["missing"]["eval"] for row in report.columns if row["column"] == "dropoff_census_tract")
    )
    assert any(row["unknown_eval"] > 0 for row in report.features)
    assert features["trip_start_hour"]["unknown_eval"] == 0.0


def test_report_of_a_run_from_the_cache_says_what_it_once_took(runs, store):
    first = {node["node"]: node["execution"] for node in runs[0].nodes}
    cached = [node for node in runs[1].nodes if node["state"] == "cached"]
    for node in cached:
        (made,) = store.get_executions_by_id([first[node["node"]]])
        assert node["made_in"] == (made.last_update_time_since_epoch - made.create_time_since_epoch) / 1000
    assert len(cached) == runs[1].cached > 0
    assert runs[1].seconds_with_cache == sum(node["made_in"] for node in runs[1].nodes)
    assert "from the cache" in runs[1].took


def test_too_few_rows_are_refused_and_only_what_they_change_runs(runs, work_dir):
    report = runs[2]
    assert not report.push.pushed
    assert "`evaluation.min_rows` is 1,000,000" in report.push.reason
    assert executed(report) == {"QualityGate", "EmbeddingPusher"}
    (kept,) = (work_dir / "reports").glob("refused-*/report.json")
    assert json.loads(kept.read_text())["push"]["reason"] == report.push.reason


def files_with(folder, tokens):
    """Yield the files below a folder that contain one of the tokens, also if they are compressed with gzip."""
    for path in (path for path in folder.rglob("*") if path.is_file()):
        data = path.read_bytes()
        data = gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data
        if any(token in data for token in tokens):
            yield path


def test_private_tokens_are_only_in_the_artifacts_the_docs_list(store, work_dir):
    (source,) = data_files(load_config(TAXI).data)
    with open(source, newline="", encoding="utf-8") as file:
        companies = {row["company"] for row in csv.DictReader(file)}
    tokens = [company.encode() for company in companies if len(company) > 10]
    assert len(tokens) > 5
    types = {artifact_type.id: artifact_type.name for artifact_type in store.get_artifact_types()}
    folders = {
        Path(artifact.uri): types[artifact.type_id].removeprefix("components.") for artifact in store.get_artifacts()
    }
    served = work_dir / "serving"
    found = {
        next((name for folder, name in folders.items() if folder in path.parents), None)
        or ("PushedModel" if served in path.parents else str(path.relative_to(work_dir)))
        for path in files_with(work_dir, tokens)
    }
    (listed,) = re.findall(
        r"Private tokens are in (.*?)\. Apart from these artifacts", PAGE.read_text(), flags=re.DOTALL
    )
    assert found == set(re.findall(r"`(\w+)`", listed))


def test_files_of_a_run_are_its_owners_alone(runs, work_dir):
    assert [path for path in work_dir.rglob("*") if not path.is_symlink() and path.stat().st_mode & 0o077] == []


def test_runs_leave_no_temporary_files(runs, temporary_folder):
    assert list(temporary_folder.iterdir()) == []


def test_lineage_reaches_back_to_the_examples(runs, store):
    from embedding_core.checkpoint import verify
    from pipelines.lineage.graph import trace

    pushes = {
        push.custom_properties["pushed_version"].string_value: push.id
        for push in store.get_artifacts_by_type("PushedModel")
    }
    nodes = trace(store, pushes[runs[0].push.version]).values()
    types = {node.type for node in nodes}
    assert {"Model", "ModelRun", "components.Vocabularies", "components.TableConfigs", "Examples", "Schema"} <= types
    assert all(Path(node.uri).exists() for node in nodes)
    digests = {node.type: node.facts["vocabularies"] for node in nodes if node.type in {"PushedModel", "ModelRun"}}
    assert digests["PushedModel"].items() <= digests["ModelRun"].items()
    checkpoint = newest_artifact(store, "components.EmbeddingCheckpoint")
    assert verify(trace(store, checkpoint)[checkpoint].uri).step > 0


def test_early_stopping_and_report_use_rows_of_their_own(runs):
    report = runs[0]
    assert len(report.curves["auc"]["validation"]) == len(report.curves["auc"]["eval"]) > 1
    assert (
        "rows of the train split that were held back. The chosen state was then trained on them, too"
        in report.training_note
    )
    assert "Early stopping" not in report.quality_note
    assert "chosen among 0.01 to 3" in report.quality_note


def test_cache_keys_are_the_same_with_each_protobuf(store):
    """A name that starts with another one has its place before or after it, depending on the version of protobuf."""
    for artifact in store.get_artifacts():
        names = sorted(name for name in artifact.custom_properties if not name.startswith("current_model"))  # of TFX
        pairs = [pair for pair in itertools.pairwise(names) if pair[1].startswith(pair[0])]
        assert artifact.type == "PushedModel" or not pairs  # no node reads a PushedModel


def test_only_deleted_or_damaged_outputs_are_made_again(runs, run_demo, store):
    """TFX's own cache would reuse both outputs."""
    from pipelines.lineage.graph import outputs_of, trace
    from pipelines.local.metadata_repair import read_content

    def output_of(report, node):
        (execution,) = [row["execution"] for row in report.nodes if row["node"] == node]
        (made,) = outputs_of(store, execution)
        return made, Path(trace(store, made)[made].uri)

    nodes = ("CheckpointRetriever", "ExampleValidator")
    before = {node: output_of(runs[1], node) for node in nodes}
    digests = {node: read_content(folder).digest for node, (_, folder) in before.items()}
    shutil.rmtree(before["CheckpointRetriever"][1])
    files = [path for path in before["ExampleValidator"][1].rglob("*") if path.is_file()]
    file = max(files, key=lambda path: path.stat().st_size)
    data = file.read_bytes()
    file.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    report = run_demo()
    # TableHealth reads the new checkpoint, and the pusher what it says.
    assert executed(report) - {"TableHealth", "EmbeddingPusher"} == set(nodes)
    for node in nodes:
        again, folder = output_of(report, node)
        assert read_content(folder).digest == digests[node]
        assert again != before[node][0]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("features.dense=[fair]", ["fair", "sha256:"]),  # another column may be a private token
        ("evaluation.thresholds.AUC.min=ten", ["evaluation.thresholds.AUC.min", "ten"]),
    ],
)
def test_configuration_mistake_is_one_error_and_loses_nothing(runs, run_demo, work_dir, change, words):
    before = sorted(os.listdir(work_dir / "serving"))
    with pytest.raises(EmbeddingError) as error:
        run_demo(change)
    assert all(word in str(error.value) for word in words)
    assert sorted(os.listdir(work_dir / "serving")) == before


@pytest.mark.slow
def test_second_day_goes_on_with_rows_dense_part_and_ranges(runs, run_demo):
    report = run_demo(*WARM, again=True)
    assert report.push.pushed
    assert report.warm_start["tables"]["company"]["kept_traffic"] > 0.5
    (before,) = [row for row in runs[0].vocabularies if row["name"] == "company"]
    (company,) = [row for row in report.vocabularies if row["name"] == "company"]
    assert company["evolution"]["base"] == before["digest"]
    assert company["evolution"]["kept"] == before["size"]
    assert company["size"] == before["size"] + company["evolution"]["new"] > before["size"]
    dense = report.warm_start["dense"]
    assert (dense["dense"], dense["optimizer"]) == ("restored", "restored")
    assert dense["ranges"] == {"fare": "kept", "trip_miles": "kept", "trip_seconds": "kept"}
    step, begun = report.curves["auc"]["eval"][0]
    assert step == 0
    assert begun > max(value for _, value in runs[0].curves["auc"]["eval"]) - 0.01
    retry = run_demo(*WARM)
    assert set(states(retry).values()) == {"cached"}
    version = report.push.version
    words = f"version {version} was trained on it; nothing was left to do; version {version} is served."
    assert retry.notes[-1].endswith(words)
