import io
import json
import sys

import pyarrow as pa
import pytest
from pyarrow import parquet
from rich.console import Console

import pipelines.examples
from embedding_core.errors import ConfigError
from embedding_core.optimizers import DEFAULT_OPTIMIZER
from pipelines.checks import pipeline_preflight
from pipelines.checks.pipeline_preflight import print_report
from pipelines.checks.planned_tables import planned_tables, requested_slice
from pipelines.commands import cli
from pipelines.config import load_config
from tests.pipelines.commands.exit_code import exit_code
from tests.support.metadata import put_artifact, sqlite_store

EXAMPLES = pipelines.examples.__path__[0]
SMALL = """
data: rows.csv
label: bought
features: {categorical: [item], dense: [price]}
model: {arguments: {hidden_units: [8], cross_layers: 0}}
training: {decay: linear, batch_size: 256}
"""
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
    [("v3-32", "V1", 8, "tag 0"), ("v5e-8", "V0", 32, f"{DEFAULT_OPTIMIZER.learning_rate}")],
)
def test_small_model_is_green(tmp_path, topology, hardware, rows_per_core, rate):
    (tmp_path / "rows.csv").write_text("item,price,bought\na,1,1\n")
    (tmp_path / "my.yaml").write_text(SMALL)
    report = check(load_config(tmp_path / "my.yaml"), topology=topology)
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
    assert [finding.kind for finding in input_findings(config, named_topology(topology))] == found


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
    tables, sizes = planned_tables(config, None, 10)
    rows = {table.name: table.vocabulary_size for table in tables.tables}
    assert (rows["cell"], rows["company"], rows["trip_start_day"]) == (78, 5_000_000_001, 11)
    assert "`max_size` of the vocabularies company, cell" in sizes
    assert "10 tokens assumed for payment_type" in sizes


def test_command_reads_table_configs_and_exits_4_on_a_finding(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(cli, "silence", lambda: None)
    (tmp_path / "embedding_config.json").write_text(_tables())
    options = ["--topology", "v2-8", "--batch", "30", "--table-configs", str(tmp_path)]
    assert exit_code("preflight", f"{EXAMPLES}/taxi.yaml", *options, "--json", tmp_path / "report.json") == 4
    data = json.loads((tmp_path / "report.json").read_text())
    assert data["sizes"] == f"the table configs in {tmp_path}"
    assert [finding["kind"] for finding in data["findings"]] == ["batch"]
    assert "pass 24 or 32" in capsys.readouterr().out


def _tables():
    table = {"name": "cell", "vocabulary_size": 9, "dim": 8, "optimizer": {"name": "sgd"}}
    return json.dumps({"tables": [table], "features": [{"name": "pickup_cell", "table": "cell"}]})


def _recorded(config, folder, tables):
    """Records a TableConfigs artifact of the pipeline, as a run does."""
    put_artifact(sqlite_store(config.metadata_path), "components.TableConfigs", folder, config.name)
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


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff\xfe"])
def test_table_configs_that_are_none_are_refused_by_their_folder(tmp_path, content):
    (tmp_path / "embedding_config.json").write_bytes(content)
    with pytest.raises(ConfigError, match=rf"`--table-configs` is '{tmp_path}'"):
        check(taxi(), topology="v2-8", table_configs=tmp_path)


def test_softmax_over_sequences_is_green_and_counts_candidates(tmp_path):
    parquet.write_table(pa.table({"split": ["train"]}), tmp_path / "rows.parquet")
    amazon = f"{EXAMPLES}/../../benchmarks/leaderboards/amazon.yaml"
    given = [f"data.path={tmp_path}/rows.parquet", "training.softmax.sampled=512"]
    report = check(load_config(amazon, given), topology="v2-8", assumed_tokens=100)
    assert report.green, report.findings
    assert report.batch["rows"] == 1024 + 512
    assert "512 drawn candidates" in report.notes[0]
