"""What a user sees of the TPU compiler, and every example configuration on every generation."""

import pyarrow as pa
import pytest
from pyarrow import parquet

import pipelines.examples
from embedding_core.planning.topology import named_topology
from embedding_core.tpu_compiler import SparseCoreCompiler
from pipelines.checks.planned_tables import planned_tables
from pipelines.commands import cli
from pipelines.config import load_config
from pipelines.tpu_compiler.preflight_checks import Compiler, asked_checks, compiler_lines
from tests.support.tpu_compiler.compilers import NEEDS_TPU_COMPILER, TPU_COMPILER

EXAMPLES = pipelines.examples.__path__[0]
ROOT = f"{EXAMPLES}/../.."
COMPILED = {
    "stage": "compiled",
    "versions": {"libtpu": "0.0.17"},
    "target": "v5e:2x2",
    **dict.fromkeys(("argument_bytes", "output_bytes", "shared_bytes", "temporary_bytes", "program_bytes"), 2**20),
    "total_bytes": 3 * 2**20,
    "planned_bytes": 2**29,
    "tables_inside": False,
    "operations": {"parameter": 1000, "fusion": 12, "copy": 3},
    "optimal_seconds": -1.0,
    "left_out": ["SendTPUEmbeddingGradients"],
    "unknown_sizes": 7,
}


def test_memory_is_beside_the_plan_and_what_is_missing_is_said():
    shown = "\n".join(compiler_lines(COMPILED))
    assert "arguments 1.0, outputs 0.0, temporary 1.0, program 1.0, together 3.0" in shown
    assert "tables and slots are not in this program: 0.500 GiB more, by the plan" in shown
    assert "15; fusion x12, copy x3" in shown
    assert (
        "not in its program: sums over the cores, operations of the embedding hardware (SendTPUEmbeddingGradients)"
        in shown
    )
    assert "arguments with a size that is only known at run time, compiled as 4: 7" in shown


@pytest.mark.parametrize(("seconds", "shown"), [(0.002, True), (-1.0, False), (None, False)])
def test_estimate_is_shown_as_ordinal_and_only_if_it_is_a_time(seconds, shown):
    lines = [line for line in compiler_lines({**COMPILED, "optimal_seconds": seconds}) if "estimate" in line]
    assert len(lines) == shown
    assert all("2.000 ms" in line and "not a measured time" in line for line in lines)


def test_refusal_is_shown_word_for_word():
    refused = {**COMPILED, "stage": "refused", "error": "RESOURCE_EXHAUSTED: no\n" + "line\n" * 40}
    lines = list(compiler_lines(refused))
    assert lines[1] == "  RESOURCE_EXHAUSTED: no"
    assert lines[-2] == "  ... and 11 more lines, which `--json` writes"


@pytest.mark.parametrize(
    ("topology", "tpu_compiler", "found"),
    [("v3-8", "absent", "the TPU compiler"), ("v5p-8", "/bin/sh", "the compiler for SparseCores")],
)
def test_command_without_compiler_is_one_error(tmp_path, monkeypatch, capsys, topology, tpu_compiler, found):
    monkeypatch.setattr(cli, "silence", lambda: None)
    monkeypatch.setenv(SparseCoreCompiler.VARIABLE, str(tmp_path / "python"))
    options = ["--topology", topology, "--compiler", "tpu", "--compiler-python", tpu_compiler]
    with pytest.raises(SystemExit) as caught:
        cli.main(["preflight", f"{EXAMPLES}/taxi.yaml", *options])
    assert caught.value.code == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: there is no environment of {found}")


def compiled(config, topology, tokens):
    from pipelines.checks.pipeline_preflight import check

    slice_, (tables, sizes) = named_topology(topology), planned_tables(config, None, tokens)
    checks = asked_checks(config, tables, slice_, None, compiler=Compiler.tpu, compiler_python=TPU_COMPILER.python)
    return check(config, slice_, tables, sizes, checks=checks)


@pytest.mark.slow
@NEEDS_TPU_COMPILER
@pytest.mark.parametrize("topology", ["v2-8", "v3-8", "v4-8", "v5e-4", "v5p-8", "v6e-8"])
@pytest.mark.parametrize(
    "file",
    [
        "pipelines/examples/taxi.yaml",
        *(f"examples/online_retail/{name}.yaml" for name in ("online_retail", "daily_runs")),
        *(f"benchmarks/leaderboards/{name}.yaml" for name in ("amazon", "gowalla", "movielens")),
    ],
)
def test_every_example_compiles_for_every_generation(file, topology, tmp_path):
    parquet.write_table(pa.table({"split": ["train"]}), tmp_path / "rows.parquet")
    data = [] if "taxi" in file else [f"data.path={tmp_path}/rows.parquet"]
    report = compiled(load_config(f"{ROOT}/{file}", data), topology, 100_000)
    assert report.findings == ()
    result = report.further["compiler"]
    assert result["stage"] == "compiled"
    assert result["tables_inside"] is (report.hardware == "V0")
    if result["tables_inside"]:
        assert result["argument_bytes"] == pytest.approx(result["planned_bytes"], rel=0.05)


@pytest.mark.slow
@NEEDS_TPU_COMPILER
def test_plan_with_copies_does_not_fit_where_compiler_refuses():
    """On v5e the compiler copies tables of 64 columns into a padded layout."""
    report = compiled(load_config(f"{EXAMPLES}/taxi.yaml", []), "v5e-4", 2_000_000)
    assert report.memory["fullest_core_bytes"] < report.memory["bytes_per_core"] / 2
    assert not report.memory["fits"]
    assert [finding.kind for finding in report.findings] == ["memory", "tpu"]
    assert "gradients and padded copies" in report.findings[0].what
    assert "RESOURCE_EXHAUSTED" in report.further["compiler"]["error"]
