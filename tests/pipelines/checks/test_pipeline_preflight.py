from __future__ import annotations

import io
import json
import sys
from types import SimpleNamespace

import ml_metadata
import pyarrow as pa
import pytest
from ml_metadata.proto import metadata_store_pb2 as mlmd
from pyarrow import parquet
from rich.console import Console

import pipelines.examples
from embedding_core.errors import ConfigError
from embedding_core.optimizers import DEFAULT_OPTIMIZER
from pipelines.checks import pipeline_preflight
from pipelines.checks.pipeline_preflight import print_report, save_json
from pipelines.checks.planned_tables import planned_tables, requested_slice
from pipelines.commands import cli
from pipelines.config import load_config

EXAMPLES = pipelines.examples.__path__[0]
RETAIL = f"{EXAMPLES}/../../examples/online_retail/online_retail.yaml"


@pytest.fixture(autouse=True)
def _path(monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))


def check(config, topology=None, assumed_tokens=1000, table_configs=None):
    tables = planned_tables(config, table_configs, assumed_tokens)
    return pipeline_preflight.check(config, requested_slice(config, topology), *tables)


def taxi(*overrides):
    return load_config(f"{EXAMPLES}/taxi.yaml", overrides)


@pytest.mark.parametrize(
    ("topology", "hardware", "rows_per_core", "rate"),
    [
        ("v2-8", "V1", 32, "tag 0"),
        ("v3-32", "V1", 8, "tag 0"),
        ("v5e-8", "V0", 32, f"{DEFAULT_OPTIMIZER.learning_rate}"),
    ],
)
def test_demo_is_green(topology, hardware, rows_per_core, rate):
    report = check(taxi("training.decay=linear"), topology=topology, assumed_tokens=1000)
    assert report.green
    assert (report.hardware, report.batch["rows_per_core"]) == (hardware, rows_per_core)
    assert report.program["xla"]["whole"] == "compiled"
    assert ("SendTPUEmbeddingGradients" in report.program["embedding_operations"]) is (hardware == "V1")
    shown = _shown(report)
    assert rate in shown
    assert "necessary, not sufficient" in shown


@pytest.mark.parametrize(
    ("topology", "more", "found"),
    [
        ("v3-32", [], ["input"]),
        ("v3-8", [], []),
        ("v3-32", ["kubeflow={image: i, pipeline_root: gs://b/r}"], []),
    ],
)
def test_local_folder_is_found_where_several_hosts_must_read_it(topology, more, found):
    from embedding_core.planning.topology import named_topology
    from pipelines.checks.pipeline_preflight import input_findings

    config = taxi("training.strategy=tpu", f"training.topology={topology}", *more)
    assert [one.kind for one in input_findings(config, named_topology(topology))] == found


def connection(path):
    found = mlmd.ConnectionConfig()
    found.sqlite.filename_uri = path
    return found


def _shown(report):
    out = io.StringIO()
    print_report(report, Console(file=out, width=200))
    return out.getvalue()


def test_two_towers_are_green_and_count_their_negatives(tmp_path):
    parquet.write_table(pa.table({"split": ["train"]}), tmp_path / "rows.parquet")
    config = load_config(RETAIL, [f"data.path={tmp_path}/rows.parquet"])
    report = check(config, topology="v2-8", assumed_tokens=1000)
    assert report.green
    assert report.batch["rows"] == 5 * 1024
    assert "padded" in report.notes[0]


def test_sizes_are_those_of_max_size_and_the_report_says_so():
    config = taxi("vocabularies.cell.max_size=77", "vocabularies.company.max_size=5000000000")
    report = check(config, topology="v2-8", assumed_tokens=10)
    rows = {table["name"]: table["rows"] for table in report.tables}
    assert (rows["cell"], rows["company"], rows["trip_start_day"]) == (78, 5_000_000_001, 11)
    assert "`max_size` of the vocabularies company, cell" in report.sizes
    assert "10 tokens assumed for payment_type" in report.sizes
    assert [finding.kind for finding in report.findings] == ["memory"]


def test_command_reads_table_configs_and_exits_4_on_a_finding(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(cli, "silence", lambda: None)
    (tmp_path / "embedding_config.json").write_text(_tables())
    options = ["--topology", "v2-8", "--batch", "30", "--table-configs", str(tmp_path)]
    with pytest.raises(SystemExit) as caught:
        cli.main(["preflight", f"{EXAMPLES}/taxi.yaml", *options, "--json", str(tmp_path / "report.json")])
    assert caught.value.code == 4
    data = json.loads((tmp_path / "report.json").read_text())
    assert data["sizes"] == f"the table configs in {tmp_path}"
    assert [finding["kind"] for finding in data["findings"]] == ["batch"]
    assert "pass 24 or 32" in capsys.readouterr().out


def _tables():
    table = {"name": "cell", "vocabulary_size": 9, "dim": 8, "optimizer": {"name": "sgd"}}
    return json.dumps({"tables": [table], "features": [{"name": "pickup_cell", "table": "cell"}]})


def _recorded(config, folder, tables):
    """Records a TableConfigs artifact of the pipeline, as a run does."""
    store = ml_metadata.MetadataStore(connection(config.metadata_path))
    kind = store.put_artifact_type(mlmd.ArtifactType(name="components.TableConfigs"))
    context = store.put_context_type(mlmd.ContextType(name="pipeline"))
    artifact = mlmd.Artifact(type_id=kind, uri=str(folder), state=mlmd.Artifact.LIVE)
    (number,) = store.put_artifacts([artifact])
    (pipeline,) = store.put_contexts([mlmd.Context(type_id=context, name=config.name)])
    store.put_attributions_and_associations([mlmd.Attribution(artifact_id=number, context_id=pipeline)], [])
    (folder / "embedding_config.json").write_text(tables)


def test_sizes_are_those_of_the_last_run_where_there_was_one(tmp_path):
    config = taxi(f"work_dir={tmp_path}", "tables.company.dim=24")
    last = {"name": "company", "vocabulary_size": 60, "dim": 8, "vocabulary": "company", "oov_rows": 1}
    feature = {"name": "company", "table": "company"}
    _recorded(config, tmp_path, json.dumps({"tables": [last], "features": [feature]}))
    tables, words = planned_tables(config, None, 1000)
    assert (tables.table("company").vocabulary_size, tables.table("company").dim) == (60, 24)
    assert tables.table("cell").vocabulary_size == 1001
    assert words.startswith(f"the table configs of the last run, {tmp_path}, for company; 1,000 tokens assumed for")
    limited = taxi(f"work_dir={tmp_path}", "vocabularies.company.max_size=30")
    assert planned_tables(limited, None, 1000)[0].table("company").vocabulary_size == 31


@pytest.mark.parametrize("damage", ["{", None])
def test_unreadable_table_configs_of_last_run_are_not_taken(tmp_path, damage):
    config = taxi(f"work_dir={tmp_path}")
    _recorded(config, tmp_path, damage or "")
    if damage is None:
        (tmp_path / "embedding_config.json").unlink()
    assert planned_tables(config, None, 1000)[1].startswith("before any pass over the data")


def test_topology_has_to_be_named():
    with pytest.raises(ConfigError, match="name a TPU slice"):
        check(taxi())


def test_folder_without_table_configs_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"embedding_config\.json"):
        check(taxi(), topology="v2-8", table_configs=tmp_path)


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff\xfe"])
def test_table_configs_that_are_none_are_refused_by_their_folder(tmp_path, content):
    (tmp_path / "embedding_config.json").write_bytes(content)
    with pytest.raises(ConfigError, match=rf"`--table-configs` is '{tmp_path}'"):
        check(taxi(), topology="v2-8", table_configs=tmp_path)


def test_report_that_cannot_be_written_is_one_error(tmp_path):
    with pytest.raises(ConfigError, match=r"`--json` is .* cannot be written"):
        save_json(SimpleNamespace(to_json=dict), tmp_path / "nowhere" / "report.json")


def test_softmax_over_sequences_is_green_and_counts_candidates(tmp_path):
    parquet.write_table(pa.table({"split": ["train"]}), tmp_path / "rows.parquet")
    amazon = f"{EXAMPLES}/../../benchmarks/leaderboards/amazon.yaml"
    report = check(load_config(amazon, [f"data.path={tmp_path}/rows.parquet"]), topology="v2-8", assumed_tokens=100)
    assert report.green, report.findings
    assert report.batch["rows"] == 512 + 512
    assert "512 drawn candidates" in report.notes[0]
