import json
import os

import pytest

from components.example_gen.row_selection import SplitByColumn, SplitByFile
from components.example_gen.settings import Settings
from components.example_gen.spans import PatternSpans
from embedding_core.errors import ConfigError, DataError

pytestmark = pytest.mark.tfx

SETTINGS = Settings(columns={"id": "token"}, split=SplitByColumn(column="side"))


@pytest.fixture
def run(tmp_path):
    """Return a function that runs a pipeline of ExampleGen alone and returns the states of all executions so far."""
    from ml_metadata.proto import metadata_store_pb2
    from tfx import v1 as tfx
    from tfx.orchestration import metadata

    from components.example_gen import ExampleGen

    connection = metadata.sqlite_metadata_connection_config(str(tmp_path / "metadata.sqlite"))

    def go(settings=SETTINGS, pattern="*.csv", folder="data", **more):
        pipeline = tfx.dsl.Pipeline(
            pipeline_name="test",
            pipeline_root=str(tmp_path / "root"),
            components=[ExampleGen(str(tmp_path / folder), pattern, "csv", settings, **more)],
            enable_cache=True,
            metadata_connection_config=connection,
        )
        tfx.orchestration.LocalDagRunner().run(pipeline)
        with metadata.Metadata(connection) as store:
            executions = store.store.get_executions()
            return [metadata_store_pb2.Execution.State.Name(execution.last_known_state) for execution in executions]

    (tmp_path / "data").mkdir()
    return go


def write(tmp_path, text, name="a.csv"):
    path = tmp_path / "data" / name
    path.write_text(text)
    return path


def test_only_changed_files_or_settings_run_again(run, tmp_path):
    path = write(tmp_path, "id,side\n1,train\n2,eval\n")
    assert run() == ["COMPLETE"]
    assert run() == ["COMPLETE", "CACHED"]
    changed = os.stat(path).st_mtime_ns
    write(tmp_path, "id,side\n1,train\n3,eval\n")
    os.utime(path, ns=(changed, changed))  # as a copy of the same size that keeps times
    assert run()[2:] == ["COMPLETE"]
    assert run(SETTINGS.replace(seed=1))[3:] == ["COMPLETE"]
    assert sorted(os.listdir(tmp_path / "root/ExampleGen/examples/1")) == ["Split-eval", "Split-train"]


def test_changed_file_for_evaluation_runs_again(run, tmp_path):
    write(tmp_path, "id\n1\n2\n")
    (tmp_path / "data/test").mkdir()
    path = write(tmp_path, "id\n3\n", "test/b.csv")
    given = {"settings": SETTINGS.replace(split=SplitByFile()), "eval_pattern": "test/*.csv"}
    assert run(**given) == ["COMPLETE"]
    assert run(**given) == ["COMPLETE", "CACHED"]
    changed = os.stat(path).st_mtime_ns
    write(tmp_path, "id\n4\n", "test/b.csv")
    os.utime(path, ns=(changed, changed))
    assert run(**given)[2:] == ["COMPLETE"]
    os.rename(path, path.with_name("c.csv"))
    assert run(**given)[3:] == ["COMPLETE"]
    (record,) = (tmp_path / "root/ExampleGen/examples").glob("4.lineage.json")
    splits = {os.path.basename(file["path"]): file.get("split") for file in json.loads(record.read_text())["files"]}
    assert splits == {"a.csv": None, "c.csv": "eval"}


@pytest.mark.parametrize(("split", "eval_pattern"), [(SplitByFile(), None), (SETTINGS.split, "b.csv")])
def test_split_by_file_and_eval_pattern_go_together(tmp_path, split, eval_pattern):
    from components.example_gen import ExampleGen

    with pytest.raises(ConfigError, match="give it with `split=SplitByFile\\(\\)`, and only then"):
        ExampleGen(str(tmp_path), "a.csv", "csv", SETTINGS.replace(split=split), eval_pattern=eval_pattern)


def test_no_file_is_an_error_before_anything_runs(run, tmp_path):
    with pytest.raises(DataError, match=r"no file matches '.*/data/\*.csv': it is empty"):
        run()


def test_folder_with_brackets_is_watched_literally(run, tmp_path):
    for folder in ("run[1]", "run1"):
        (tmp_path / folder).mkdir()
    (tmp_path / "run[1]/a.csv").write_text("id,side\n1,train\n2,eval\n")
    assert run(folder="run[1]") == ["COMPLETE"]
    (tmp_path / "run1/a.csv").write_text("id,side\nwrong,train\n2,eval\n")
    assert run(folder="run[1]")[1:] == ["CACHED"]


def test_spans_become_a_glob(tmp_path):
    from components.example_gen import ExampleGen

    spans = PatternSpans(pattern="{YYYY}-{MM}-{DD}.csv", first="2011-10-01")
    component = ExampleGen(str(tmp_path), spans.pattern, "csv", SETTINGS.replace(spans=spans))
    assert json.loads(component.exec_properties["input_config"])["splits"][0]["pattern"] == "*-*-*.csv"
    assert json.loads(component.exec_properties["settings"])["spans"]["pattern"] == "{YYYY}-{MM}-{DD}.csv"


@pytest.mark.parametrize(
    ("pattern", "data_format", "words"),
    [
        ("*", "json", "`data_format` is 'json': it must be one of csv, tfrecord, parquet"),
        ("**/a.csv", "csv", r"`pattern` is '\*\*/a.csv': TFX has no"),
    ],
)
def test_files_that_cannot_be_read_are_refused(tmp_path, pattern, data_format, words):
    from components.example_gen import ExampleGen

    with pytest.raises(ConfigError, match=words):
        ExampleGen(str(tmp_path), pattern, data_format, SETTINGS)
