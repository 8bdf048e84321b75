"""Which limits the preflight compiles stacks with."""

import pytest

import pipelines.examples
from components.artifact_files import EMBEDDING_CONFIG_FILE
from components.sparse_cores.table_limits import SPARSE_CORE_LIMITS_FILE
from embedding_core.planning.topology import named_topology
from embedding_core.storage import sealed_json
from pipelines.checks.planned_tables import planned_tables
from pipelines.config import load_config
from pipelines.sparse_cores.planned_limits import planned_limits

EXAMPLES = pipelines.examples.__path__[0]
LIMITS = {"topology": "v6e-8", "batch_size": 256}


def taxi(tmp_path, *overrides):
    return load_config(f"{EXAMPLES}/taxi.yaml", [f"work_dir={tmp_path}/runs", *overrides])


def limits_of(config, folder=None, tables=None):
    tables = tables or planned_tables(config, None, 1000)[0]
    return planned_limits(config, tables, named_topology("v6e-8"), folder)


@pytest.fixture
def table_configs(tmp_path):
    """Write what TableConfigGen writes for the demo, with limits."""
    folder = tmp_path / "tables"
    folder.mkdir()
    tables, _ = planned_tables(taxi(tmp_path), None, 1000)
    (folder / EMBEDDING_CONFIG_FILE).write_text(tables.to_json())
    (folder / SPARSE_CORE_LIMITS_FILE).write_bytes(sealed_json(LIMITS))
    return folder


def test_limits_without_a_run_are_none_and_the_command_is_named(tmp_path):
    limits, source = limits_of(taxi(tmp_path))
    assert limits is None
    assert source.startswith("no run has computed the limits of v6e-8: `tfx-embeddings run` with")
    assert "training.topology=v6e-8" in source


def test_limits_are_those_of_the_table_configs(tmp_path, table_configs):
    limits, source = limits_of(taxi(tmp_path), table_configs)
    assert limits == LIMITS
    assert source == str(table_configs)


def test_table_configs_of_another_slice_have_no_limits(tmp_path, table_configs):
    (table_configs / SPARSE_CORE_LIMITS_FILE).unlink()
    limits, source = limits_of(taxi(tmp_path), table_configs)
    assert limits is None
    assert "have no limits of SparseCores" in source


def test_limits_of_other_tables_are_not_used(tmp_path, table_configs):
    limits, source = limits_of(taxi(tmp_path), table_configs, planned_tables(taxi(tmp_path), None, 2000)[0])
    assert limits is None
    assert "are for other tables or features than those planned here (table " in source
    assert f"add `--table-configs {table_configs}` to check that run's tables" in source


def test_function_of_the_user_has_no_limits(tmp_path, table_configs):
    config = taxi(tmp_path)
    model = config.model.model_copy(update={"run_fn": "module.run_fn"})
    limits, source = limits_of(
        config.model_copy(update={"model": model}), table_configs, planned_tables(config, None, 1000)[0]
    )
    assert limits is None
    assert "`run_fn`" in source
