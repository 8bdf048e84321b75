"""Which limits the preflight compiles stacks with, and what a user reads about these stacks."""

import pytest

import pipelines.examples
from components.artifact_files import EMBEDDING_CONFIG_FILE, SPARSE_CORE_LIMITS_FILE
from embedding_core.planning.topology import named_topology
from embedding_core.storage import sealed_json
from embedding_core.tpu_compiler import SparseCoreCompiler
from pipelines.checks.planned_tables import planned_tables
from pipelines.commands import cli
from pipelines.config import load_config
from pipelines.tpu_compiler.preflight_checks import planned_sparse_cores, sparse_core_lines

EXAMPLES = pipelines.examples.__path__[0]
LIMITS = {"topology": "v6e-8", "batch_size": 256}
FOUND = {
    "tables": ["a", "b"],
    "stage": "compiled",
    **dict.fromkeys(("argument_bytes", "output_bytes", "shared_bytes", "program_bytes", "planned_bytes"), 2**20),
    "temporary_bytes": 3 * 2**20,
    "not_passed": {"a": ["sum_inside_sqrt"]},
}
RESULT = {
    "stage": "compiled",
    "limits": "runs/tables/7",
    "target": "v6e:2x4",
    "versions": {"jax-tpu-embedding": "0.2.0", "libtpu": "0.0.52"},
    "stacks": {"a_b": FOUND},
}


def taxi(tmp_path, *overrides):
    return load_config(f"{EXAMPLES}/taxi.yaml", [f"work_dir={tmp_path}/runs", *overrides])


def limits_of(config, folder=None, tables=None):
    tables = tables or planned_tables(config, None, 1000)[0]
    return planned_sparse_cores(config, tables, named_topology("v6e-8"), folder, None)


@pytest.fixture
def table_configs(tmp_path):
    """Write what TableConfigGen writes for the demo, with limits."""
    folder = tmp_path / "tables"
    folder.mkdir()
    tables, _ = planned_tables(taxi(tmp_path), None, 1000)
    (folder / EMBEDDING_CONFIG_FILE).write_text(tables.to_json())
    (folder / SPARSE_CORE_LIMITS_FILE).write_bytes(sealed_json(LIMITS))
    return folder


def test_without_a_run_there_are_no_limits_and_the_command_is_named(tmp_path):
    found = limits_of(taxi(tmp_path))
    assert found.limits is None
    assert found.source.startswith("no run has computed the limits of v6e-8: `tfx-embeddings run` with")
    assert "training.topology=v6e-8" in found.source


def test_limits_are_those_of_the_table_configs(tmp_path, table_configs):
    found = limits_of(taxi(tmp_path), table_configs)
    assert found.limits == LIMITS
    assert found.source == str(table_configs)


def test_table_configs_of_another_slice_have_no_limits(tmp_path, table_configs):
    (table_configs / SPARSE_CORE_LIMITS_FILE).unlink()
    found = limits_of(taxi(tmp_path), table_configs)
    assert found.limits is None
    assert "have no limits of SparseCores" in found.source


def test_limits_of_other_tables_are_not_used(tmp_path, table_configs):
    found = limits_of(taxi(tmp_path), table_configs, planned_tables(taxi(tmp_path), None, 2000)[0])
    assert found.limits is None
    assert "are for other tables or features than those planned here (table " in found.source
    assert f"`--table-configs {table_configs}` checks the tables of that run" in found.source


def test_function_of_the_user_has_no_limits(tmp_path, table_configs):
    config = taxi(tmp_path)
    model = config.model.model_copy(update={"run_fn": "module.run_fn"})
    found = limits_of(config.model_copy(update={"model": model}), table_configs, planned_tables(config, None, 1000)[0])
    assert found.limits is None
    assert "`run_fn`" in found.source


def test_no_line_if_sparse_cores_were_not_asked_for():
    assert list(sparse_core_lines(None)) == []


def test_reasons_are_lines():
    lines = list(sparse_core_lines({"stage": "not compiled", "reasons": ["one", "two"]}))
    assert lines == [f"lookup and update on SparseCores: not compiled, because {one}" for one in ("one", "two")]


def test_stack_is_shown_beside_the_plan():
    first, stack, left = sparse_core_lines(RESULT)
    assert "jax-tpu-embedding 0.2.0, libtpu 0.0.52, for v6e:2x4), under the limits in runs/tables/7" in first
    assert "stack a_b (a, b): compiled; MiB on a chip: arguments 1.0, outputs 0.0, temporary 3.0" in stack
    assert "planned with 1.0" in stack
    assert left.strip() == "sum_inside_sqrt of the optimizer of a: jax-tpu-embedding does not have it"


def test_refusal_of_a_stack_is_shown_word_for_word():
    refused = {"stage": "refused", "error": "E3001: no\n" + "line\n" * 40, "tables": ["a", "b"]}
    lines = list(sparse_core_lines({**RESULT, "stacks": {"a_b": refused}}))
    assert lines[1].endswith("stack a_b (a, b): refused. The message, word for word:")
    assert lines[2] == "    E3001: no"
    assert lines[-1] == "    ... and 11 more lines, which `--json` writes"


def test_command_with_an_environment_that_is_absent_is_one_error(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(cli, "silence", lambda: None)
    monkeypatch.setenv("TPU_COMPILER_PYTHON", "/bin/sh")
    monkeypatch.setenv(SparseCoreCompiler.VARIABLE, str(tmp_path / "python"))
    with pytest.raises(SystemExit) as caught:
        cli.main(["preflight", f"{EXAMPLES}/taxi.yaml", "--topology", "v5p-8", "--compiler", "tpu"])
    assert caught.value.code == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: there is no environment of the compiler for SparseCores")
