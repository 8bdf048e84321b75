"""Tests the demo's pipeline end to end.

Most tests examine the same first run. Further runs in its work_dir show what the cache does, and push versions again.
The campaign `tasks` adds a second day; `test_trained_world.py` has that of a smaller model.
"""

import csv
import dataclasses
import gzip
import io
import itertools
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from rich.console import Console

from embedding_core.errors import EmbeddingError
from pipelines.config import data_files, load_config

pytestmark = [pytest.mark.tfx, pytest.mark.grappler]

PAGE = Path(__file__).parents[2] / "docs" / "data.md"
TAXI = Path(__file__).parents[2] / "pipelines" / "examples" / "taxi.yaml"
PRIVATE = "features.categorical.1={name: company, private: true}"
NODES_AFTER_VOCABULARIES = {
    "VocabularyGen", "TableConfigGen", "EmbeddingTrainer", "CheckpointRetriever", "TableHealth", "QualityGate",
    "Evaluator", "EmbeddingPusher",
}  # fmt: skip


WARM = [
    "warm_start=pushed", "vocabulary_evolution={base: pushed, mode: append}", "vocabularies.company.min_count=1",
    "training.epochs=1", "evaluation.thresholds={}",
]  # fmt: skip


def states(report):
    return {node["node"]: node["state"] for node in report.nodes}


@pytest.fixture(scope="session")
def temporary_folder(tmp_path_factory):
    """Return the folder for the temporary files of the runs."""
    return tmp_path_factory.mktemp("temporary")


@pytest.fixture(scope="session")
def runs(tmp_path_factory, temporary_folder):
    """Three runs in one work_dir: the first, one with nothing changed, one with a changed vocabulary threshold."""
    from pipelines.local.run_local import run

    given = [f"work_dir={tmp_path_factory.mktemp('taxi')}", PRIVATE]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(temporary_folder))
        patch.setenv("TMPDIR", str(temporary_folder))
        return [run(load_config(TAXI, [*given, *more]))[1] for more in ([], [], ["vocabularies.company.min_count=5"])]


@pytest.fixture(scope="session")
def store(runs):
    from pipelines.lineage.graph import open_store

    return open_store(Path(runs[0].push.destination).parents[1] / "metadata.sqlite")


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


def test_changed_threshold_runs_only_what_depends_on_it(runs):
    executed = {node for node, state in states(runs[2]).items() if state == "executed"}
    assert executed == NODES_AFTER_VOCABULARIES
    assert int(runs[2].push.version) > int(runs[0].push.version)


def test_report_on_disk_holds_the_same_figures(runs):
    folder = Path(runs[0].push.destination).parents[1] / "report"
    saved = json.loads((folder / "report.json").read_text())
    assert saved["quality"] == [dict(row) for row in runs[2].quality]
    html = (folder / "report.html").read_text()
    assert saved["push"]["version"] in html
    assert not re.search(r"""(src|href)=["']?http|@import|url\(http""", html)  # self-contained


def answers(program, folder):
    """Run a program in a process without this project on its path, and return the numbers that it prints."""
    quiet = "import os; os.environ['TF_CPP_MIN_LOG_LEVEL']='3'\n"
    done = subprocess.run(
        [sys.executable, "-I", "-c", quiet + program], cwd=folder, capture_output=True, text=True, check=True
    )
    return [float(value) for value in re.findall(r"[0-9.e-]+", done.stdout)]


def test_request_of_the_report_runs_as_it_stands(runs, tmp_path):
    probabilities = answers(runs[0].query, tmp_path)
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


def test_report_holds_every_setting(runs):
    assert runs[0].configuration["training"]["batch_size"] == 256
    assert runs[0].configuration["model"]["name"] == "ranking"


def test_report_of_a_run_from_the_cache_says_what_it_once_took(runs, store):
    first = {node["node"]: node["execution"] for node in runs[0].nodes}
    cached = [node for node in runs[1].nodes if node["state"] == "cached"]
    for node in cached:
        (made,) = store.get_executions_by_id([first[node["node"]]])
        assert node["made_in"] == (made.last_update_time_since_epoch - made.create_time_since_epoch) / 1000
    assert len(cached) == runs[1].cached > 0
    assert runs[1].seconds_with_cache == sum(node["made_in"] for node in runs[1].nodes)
    assert "from the cache" in runs[1].took


def test_every_version_keeps_its_report_and_two_are_compared(runs, capsys):
    from pipelines.commands import cli

    work_dir = Path(runs[0].push.destination).parents[1]
    kept = {run.push.version: json.loads((work_dir / "reports" / run.push.version / "report.json").read_text())
            for run in (runs[0], runs[2])}  # fmt: skip
    assert kept[runs[0].push.version]["nodes"][0]["state"] == "executed", "the report of the run that pushed it"
    with pytest.raises(SystemExit) as ended:
        cli.main(["compare", str(work_dir), *kept])
    assert ended.value.code == 0
    assert ["vocabularies.company.min_count", "2", "5"] in [
        line.split() for line in capsys.readouterr().out.splitlines()
    ]


def test_too_few_rows_are_refused_and_the_run_keeps_its_report(runs):
    from pipelines.local.run_local import run

    work_dir = Path(runs[0].push.destination).parents[1]
    _, report = run(load_config(TAXI, [PRIVATE, f"work_dir={work_dir}", "evaluation.min_rows=1000000"]))
    assert not report.push.pushed
    assert "`evaluation.min_rows` is 1,000,000" in report.push.reason
    assert {node for node, state in states(report).items() if state == "executed"} == {"QualityGate", "EmbeddingPusher"}
    (kept,) = (work_dir / "reports").glob("refused-*/report.json")
    assert json.loads(kept.read_text())["push"]["reason"] == report.push.reason


def files_with(folder, tokens):
    """Yield the files below a folder that contain one of the tokens, also if they are compressed with gzip."""
    for path in (path for path in folder.rglob("*") if path.is_file()):
        data = path.read_bytes()
        data = gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data
        if any(token in data for token in tokens):
            yield path


def test_private_tokens_are_only_in_the_artifacts_the_docs_list(runs, store):
    work_dir = Path(runs[0].push.destination).parents[1]
    (source,) = data_files(load_config(TAXI).data)
    with open(source, newline="", encoding="utf-8") as file:
        companies = {row["company"] for row in csv.DictReader(file)}
    tokens = [company.encode() for company in companies if len(company) > 10]
    assert len(tokens) > 5
    types = {one.id: one.name for one in store.get_artifact_types()}
    folders = {Path(one.uri): types[one.type_id].removeprefix("components.") for one in store.get_artifacts()}
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


def test_files_of_a_run_are_its_owners_alone(runs):
    work_dir = Path(runs[0].push.destination).parents[1]
    assert [path for path in work_dir.rglob("*") if not path.is_symlink() and path.stat().st_mode & 0o077] == []


def test_runs_leave_no_temporary_files(runs, temporary_folder):
    assert list(temporary_folder.iterdir()) == []


def test_lineage_reaches_back_to_the_examples(runs, store):
    from pipelines.lineage.graph import newest_artifact, trace

    pushed = newest_artifact(store, "PushedModel", having={"pushed_version": int(runs[0].push.version)})
    nodes = trace(store, pushed).values()
    types = {node.type for node in nodes}
    assert {"Model", "ModelRun", "components.Vocabularies", "components.TableConfigs", "Examples", "Schema"} <= types
    assert all(Path(node.uri).exists() for node in nodes)
    digests = {node.type: node.facts["vocabularies"] for node in nodes if node.type in {"PushedModel", "ModelRun"}}
    assert digests["PushedModel"].items() <= digests["ModelRun"].items()


def test_checkpoint_of_the_run_verifies(store):
    from embedding_core.checkpoint import verify
    from pipelines.lineage.graph import newest_artifact, trace

    found = newest_artifact(store, "components.EmbeddingCheckpoint")
    assert verify(trace(store, found)[found].uri).step > 0


@pytest.fixture(scope="session")
def warm_run(runs):
    """Run with a warm start from the version that was pushed last, and append new tokens to its vocabularies."""
    from pipelines.local.run_local import run

    work_dir = Path(runs[0].push.destination).parents[1]
    return run(load_config(TAXI, [PRIVATE, f"work_dir={work_dir}", *WARM]), again=True)[1]


@pytest.mark.slow
def test_warm_start_without_thresholds_takes_over_rows_by_token(runs, warm_run):
    report = warm_run
    assert states(report)["CheckpointLoader"] == "executed"
    assert report.warm_start["tables"]["company"]["kept_traffic"] > 0.5
    assert report.push.pushed
    (before,) = [row for row in runs[2].vocabularies if row["name"] == "company"]
    (company,) = [row for row in report.vocabularies if row["name"] == "company"]
    assert company["evolution"]["base"] == before["digest"]
    assert company["evolution"]["kept"] == before["size"]
    assert company["size"] == before["size"] + company["evolution"]["new"] > before["size"]
    assert {row["feature"]: row["new_rows"] > 0 for row in report.drift}["company"]


@pytest.mark.slow
def test_warm_start_goes_on_with_dense_part_and_ranges(runs, warm_run):
    dense = warm_run.warm_start["dense"]
    assert (dense["dense"], dense["optimizer"]) == ("restored", "restored")
    assert dense["ranges"] == {"fare": "kept", "trip_miles": "kept", "trip_seconds": "kept"}
    step, begun = warm_run.curves["auc"]["eval"][0]
    before = max(value for _, value in runs[2].curves["auc"]["eval"])
    assert step == 0
    assert begun > before - 0.01


def test_early_stopping_and_report_use_rows_of_their_own(runs):
    report = runs[0]
    assert len(report.curves["auc"]["validation"]) == len(report.curves["auc"]["eval"]) > 1
    assert (
        "rows of the train split that were held back. The chosen state was then trained on them, too"
        in report.training_note
    )
    assert "Early stopping" not in report.quality_note
    assert "chosen among 0.01 to 3" in report.quality_note


@pytest.mark.slow
def test_same_data_comes_from_the_cache_and_is_noted_as_trained(runs, warm_run):
    from pipelines.local.run_local import run

    work_dir = Path(runs[0].push.destination).parents[1]
    _, retry = run(load_config(TAXI, [PRIVATE, f"work_dir={work_dir}", *WARM]))
    assert set(states(retry).values()) == {"cached"}
    assert retry.push == dataclasses.replace(warm_run.push, from_cache=True)
    version = warm_run.push.version
    words = f"version {version} was trained on it; nothing was left to do; version {version} is served."
    assert retry.notes[-1].endswith(words)


def test_cache_keys_are_the_same_with_each_protobuf(store):
    """A name that starts with another one has its place before or after it, depending on the version of protobuf."""
    for artifact in store.get_artifacts():
        names = sorted(name for name in artifact.custom_properties if not name.startswith("current_model"))  # of TFX
        pairs = [pair for pair in itertools.pairwise(names) if pair[1].startswith(pair[0])]
        assert artifact.type == "PushedModel" or not pairs  # no node reads a PushedModel


@pytest.fixture(scope="session")
def served_again(runs):
    """Run the first configuration twice, after another configuration pushed a version."""
    from pipelines.local.run_local import run

    work_dir = Path(runs[0].push.destination).parents[1]
    return [run(load_config(TAXI, [PRIVATE, f"work_dir={work_dir}"]))[1] for _ in range(2)]


def test_model_that_is_no_longer_served_is_pushed_again_once(runs, served_again):
    """The push is in the cache, but the version of a later run is served."""
    again, after = served_again
    executed = {node for node, state in states(again).items() if state == "executed"}
    assert executed == {"EmbeddingPusher"}
    assert int(again.push.version) > int(runs[2].push.version)
    assert set(states(after).values()) == {"cached"}
    assert after.push == dataclasses.replace(again.push, from_cache=True)


def test_version_that_is_served_and_damaged_is_pushed_again(runs, served_again):
    from components.pusher.served import verify_version
    from pipelines.local.run_local import run

    work_dir = Path(runs[0].push.destination).parents[1]
    before = served_again[1].push
    (Path(before.destination) / "saved_model.pb").unlink()
    said = io.StringIO()
    _, again = run(load_config(TAXI, [PRIVATE, f"work_dir={work_dir}"]), console=Console(file=said))
    assert {node for node, state in states(again).items() if state == "executed"} == {"EmbeddingPusher"}
    assert int(again.push.version) > int(before.version)
    verify_version(again.push.destination)
    assert not Path(before.destination).exists()
    assert "It is pushed again." in said.getvalue()
    assert f".damaged-{before.version}" in said.getvalue()


def test_only_deleted_or_damaged_outputs_are_made_again(runs, store):
    """TFX's own cache would reuse both outputs."""
    import shutil

    from pipelines.lineage.graph import outputs_of, trace
    from pipelines.local.content import read_content
    from pipelines.local.run_local import run

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
    _, report = run(load_config(TAXI, [PRIVATE, f"work_dir={Path(runs[0].push.destination).parents[1]}"]))
    executed = {node["node"]: node["execution"] for node in report.nodes if node["state"] == "executed"}
    # TableHealth reads the new checkpoint, and the pusher what it says.
    assert executed.keys() - {"TableHealth", "EmbeddingPusher"} == ids.keys()
    for node, digest in before.items():
        (again,) = outputs_of(store, executed[node])
        assert read_content(trace(store, again)[again].uri).digest == digest
        assert again != ids[node]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("label.key=no_such", ["no_such"]),
        ("data.path=absent.csv", ["absent.csv", "no file has this name"]),
        ("features.dense=[fair]", ["fair", "sha256:"]),  # another column may be a private token
        ("evaluation.thresholds.AUC.min=ten", ["evaluation.thresholds.AUC.min", "ten"]),
    ],
)
def test_configuration_mistake_is_one_error_and_loses_nothing(runs, change, words):
    from pipelines.local.run_local import run

    serving = Path(runs[0].push.destination).parent
    before = sorted(path.name for path in serving.iterdir())
    with pytest.raises(EmbeddingError) as error:
        run(load_config(TAXI, [PRIVATE, f"work_dir={serving.parent}", change]))
    assert all(word in str(error.value) for word in words)
    assert sorted(path.name for path in serving.iterdir()) == before
