"""Tests that the copy which a rollback makes is recorded in ML Metadata, and what lineage and commands show of it."""

import contextlib
import json
from types import SimpleNamespace

import ml_metadata
import pytest
from ml_metadata.proto import metadata_store_pb2 as mlmd

from components.pusher.publish import publish, roll_back
from embedding_core.errors import ConfigError
from pipelines.commands import cli, lineage_command
from pipelines.lineage.ancestors import is_rolled_back, newest_first, pushes_of, record_rollbacks, with_rollbacks
from pipelines.lineage.graph import open_store, read_graph, trace
from tests.support.metadata import newest_artifact, put_artifact, sqlite_store

CONFIG = "data: rows.csv\nlabel: label\nfeatures: {categorical: [item]}\n"


@pytest.fixture
def pipeline(tmp_path):
    """Make a folder with a configuration and its work_dir, where two versions from two trainings were pushed."""
    (tmp_path / "rows.csv").write_text("item,label\n")
    (tmp_path / "my.yaml").write_text(CONFIG)
    work = tmp_path / "runs" / "my"
    (work / "model").mkdir(parents=True)
    connection = mlmd.ConnectionConfig()
    connection.sqlite.filename_uri = str(work / "metadata.sqlite")
    store = ml_metadata.MetadataStore(connection)
    kinds = {
        name: store.put_artifact_type(mlmd.ArtifactType(name=name)) for name in ("PushedModel", "ModelRun", "Model")
    }
    place = store.put_context_type(mlmd.ContextType(name="pipeline"))
    node = store.put_execution_type(mlmd.ExecutionType(name="EmbeddingPusher"))
    store.put_contexts([mlmd.Context(type_id=place, name="my")])
    context = store.get_context_by_type_and_name("pipeline", "my")
    for second in (100, 200):
        run = str(work / f"artifacts/EmbeddingTrainer/model_run/{second}")
        (work / "model" / "saved_model.pb").write_text(str(second))
        facts = {"sources": {"model_run": run}}
        done = publish(work / "model", work / "serving", check=lambda _, facts=facts: facts, clock=lambda at=second: at)
        sources = [
            mlmd.Artifact(type_id=kinds[kind], uri=run, state=mlmd.Artifact.LIVE) for kind in ("ModelRun", "Model")
        ]
        push = mlmd.Artifact(type_id=kinds["PushedModel"], uri=f"{run}-pushed", state=mlmd.Artifact.LIVE)
        push.custom_properties["pushed"].int_value = 1
        push.custom_properties["pushed_version"].string_value = str(second)
        push.custom_properties["pushed_destination"].string_value = done.path
        push.custom_properties["parity"].string_value = json.dumps({"tolerance": 1e-5})
        events = [(source, mlmd.Event(type=mlmd.Event.INPUT)) for source in sources]
        execution = mlmd.Execution(type_id=node, last_known_state=mlmd.Execution.COMPLETE)
        store.put_execution(execution, [*events, (push, mlmd.Event(type=mlmd.Event.OUTPUT))], [context])
    return tmp_path


def graph_of(pipeline):
    return read_graph(open_store(pipeline / "runs/my/metadata.sqlite"), "my")


def serving(pipeline):
    return str(pipeline / "runs/my/serving")


def test_command_records_the_copy_as_what_it_is(pipeline, capsys):
    with pytest.raises(SystemExit):
        cli.main(["rollback", serving(pipeline)])
    assert f"; recorded in {pipeline}/runs/my/metadata.sqlite" in capsys.readouterr().out
    store = open_store(pipeline / "runs/my/metadata.sqlite")
    copy, pushed, *made_of = trace(store, newest_artifact(store, "PushedModel")).values()
    assert (copy.facts["rollback"]["of"], copy.facts["rollback"]["from"]) == (100, 200)
    assert copy.producer.node == "Rollback"
    assert pushed.facts["pushed_version"] == 100
    assert copy.facts["parity"] == pushed.facts["parity"]
    assert {node.type for node in made_of} == {"ModelRun", "Model"}


def test_copy_is_recorded_once_and_seen_before_it_is(pipeline):
    roll_back(serving(pipeline))
    before, seen = graph_of(pipeline), with_rollbacks(graph_of(pipeline))
    (number,) = seen.keys() - before.keys()
    connection = mlmd.ConnectionConfig()
    connection.sqlite.filename_uri = str(pipeline / "runs/my/metadata.sqlite")
    store = ml_metadata.MetadataStore(connection)
    assert [str(version) for version in record_rollbacks(store, serving(pipeline))] == [
        seen[number].facts["pushed_version"]
    ]
    assert record_rollbacks(store, serving(pipeline)) == []
    recorded = graph_of(pipeline)
    assert with_rollbacks(recorded) == recorded
    copies = [max(pushes_of(graph).items())[1] for graph in (seen, recorded)]
    assert copies[0].inputs == copies[1].inputs
    assert copies[0].facts["rollback"] == copies[1].facts["rollback"]


def test_what_was_pushed_between_the_two_is_rolled_back(pipeline):
    pushes = pushes_of(graph_of(pipeline))
    assert [version for version, _ in newest_first(pushes)] == [200, 100]
    copy = roll_back(serving(pipeline)).version
    graph = with_rollbacks(graph_of(pipeline))
    assert list(newest_first(pushes_of(graph))) == [(copy, pushes[100])]
    assert is_rolled_back(graph, pushes[200].id, serving(pipeline))
    assert not is_rolled_back(graph, pushes[100].id, serving(pipeline))


def test_lineage_starts_where_the_configuration_pushes_to(pipeline, capsys):
    """The newest version of the first folder has the higher number."""
    store = sqlite_store(pipeline / "runs/my/metadata.sqlite")
    push = put_artifact(store, "PushedModel", pipeline / "elsewhere", "my")
    push.custom_properties["pushed"].int_value = 1
    push.custom_properties["pushed_version"].string_value = "150"
    push.custom_properties["pushed_destination"].string_value = str(pipeline / "other/150")
    store.put_artifacts([push])
    for destination, version in (("runs/my/serving", 200), ("other", 150), ("nothing", 150)):
        lineage_command.show(str(pipeline / "my.yaml"), [f"push.destination={destination}"])
        assert f"pushed_version: {version}" in capsys.readouterr().out


@pytest.mark.parametrize(
    "options",
    [
        {"forward": "a.csv", "token": "a=b"},
        {"forward": "a.csv", "version": 0},
        {"checkpoint": "c", "version": 1},
        {"recorded": "folder", "overrides": ["seed=1"]},
    ],
)
def test_lineage_refuses_options_that_it_would_ignore(options):
    with pytest.raises(ConfigError, match="leave out one of them"):
        lineage_command.show("my.yaml", **options)


def test_lineage_names_the_copy_as_what_is_served(pipeline, capsys):
    copy = roll_back(serving(pipeline)).version
    for version in (None, copy):
        lineage_command.show(str(pipeline / "my.yaml"), version=version)
        shown = capsys.readouterr().out
        assert f"version {copy} is version 100 again: a rollback from version 200" in shown
        assert "model_run/100" in shown
        assert "model_run/200" not in shown
        assert "descends from" not in shown


@pytest.fixture
def run_again(pipeline, monkeypatch):
    """Return a function that runs the pipeline with the push of a version in the cache.

    It returns whether the version was pushed again, and what was said.
    """
    from pipelines.config import load_config
    from pipelines.local import run_local
    from pipelines.pipeline.run_target import PreviousRun
    from pipelines.report.run_report import NodeRun

    config = load_config(pipeline / "my.yaml")

    def run(version, *, again=False):
        execution = pushes_of(graph_of(pipeline))[version].producer.id
        node = NodeRun(node="EmbeddingPusher", index=1, count=1, state="cached", execution=execution)
        ran, said = [], []
        monkeypatch.setattr(run_local, "_run_once", lambda *given: ran.append(given[-1]) or [node])
        display = SimpleNamespace(say=said.append)
        run_local._run_until_served(config, PreviousRun(), display, contextlib.nullcontext, again=again)
        assert ran[0] is None
        assert set(ran[1:]) <= {f"in place of execution {execution}"}
        return len(ran) > 1, said

    return run


@pytest.mark.tfx
def test_rolled_back_version_is_pushed_again_only_if_asked(pipeline, run_again):
    assert run_again(200) == (False, [])
    roll_back(serving(pipeline))
    with pytest.raises(ConfigError, match="before, and rolled back"):
        run_again(200)
    assert run_again(200, again=True) == (True, [])


@pytest.mark.tfx
def test_version_that_is_no_longer_served_is_pushed_again(run_again):
    assert run_again(100) == (True, [])


@pytest.mark.tfx
def test_push_of_another_pipeline_is_not_taken_for_its_own(pipeline, run_again):
    store = sqlite_store(pipeline / "runs/my/metadata.sqlite")
    push = put_artifact(store, "PushedModel", "/elsewhere/200", "other")
    push.custom_properties["pushed"].int_value = 1
    push.custom_properties["pushed_version"].string_value = "200"
    push.custom_properties["pushed_destination"].string_value = "/elsewhere/200"
    events = [(store.get_artifacts_by_type("Model")[0], mlmd.Event(type=mlmd.Event.INPUT))]
    events.append((push, mlmd.Event(type=mlmd.Event.OUTPUT)))
    store.put_execution(mlmd.Execution(type_id=store.get_execution_type("EmbeddingPusher").id), events, [])
    assert run_again(100) == (True, [])


@pytest.mark.tfx
def test_damaged_version_is_pushed_again_and_set_aside(pipeline, run_again):
    version = pipeline / "runs/my/serving/200"
    (version / "saved_model.pb").unlink()
    pushed_again, said = run_again(200)
    assert pushed_again
    assert said[0].endswith("It is pushed again.")
    assert ".damaged-200" in said[1]
    assert not version.exists()


def test_verify_says_that_a_version_is_a_copy(pipeline, capsys):
    copy = roll_back(serving(pipeline))
    with pytest.raises(SystemExit):
        cli.main(["verify", copy.path])
    assert "a copy of version 100" in capsys.readouterr().out
