"""Tests the commands that work without TFX, and the error that the others print."""

import importlib.util
import json

import pytest

from components.example_gen.readers import read_batches
from embedding_core.errors import ConfigError
from pipelines.commands.cli import NEED_TFX
from tests.pipelines.commands.exit_code import exit_code

pytestmark = pytest.mark.light


@pytest.fixture
def file(file, monkeypatch):
    """Add a `max_size` of the vocabulary to the configuration, so that its tables have a known size."""
    monkeypatch.setenv("COLUMNS", "200")
    file.write_text(f"{file.read_text()}vocabularies: {{item: {{max_size: 99}}}}\n")
    return file


@pytest.fixture
def no_tfx(monkeypatch):
    find, gone = importlib.util.find_spec, ("tfx", "tfx_bsl", "ml_metadata")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in gone else find(name))


@pytest.mark.usefixtures("no_tfx")
def test_help_without_tfx_lists_what_works_and_names_the_rest(file, capsys):
    assert exit_code("--help") == 0
    shown, _, rest = capsys.readouterr().out.rpartition("╯")
    assert all(f"│ {name} " in shown for name in ("checkpoint", "export-embeddings", "plan", "preflight", "verify"))
    assert not any(f"│ {name} " in shown for name in NEED_TFX)
    assert all(name in rest for name in (*NEED_TFX, "tfx-embeddings[tfx]"))


@pytest.mark.usefixtures("no_tfx")
@pytest.mark.parametrize("command", sorted(NEED_TFX))
def test_command_that_needs_tfx_says_so_in_one_line(file, capsys, command):
    assert exit_code(command, file) == 1
    assert capsys.readouterr().err.splitlines() == [
        f"error: `{command}` needs TFX, which is not installed: install tfx-embeddings[tfx]."
    ]


@pytest.mark.usefixtures("no_tfx")
def test_sizes_of_the_last_run_are_not_guessed(file, capsys):
    (file.parent / "runs").mkdir()
    (file.parent / "runs" / "metadata.sqlite").write_text("not empty")
    assert exit_code("plan", file, "--set", f"work_dir={file.parent / 'runs'}") == 1
    assert "`--table-configs`" in capsys.readouterr().err


@pytest.mark.usefixtures("no_tfx")
def test_tfrecord_files_need_tfx():
    with pytest.raises(ConfigError, match=r"'rows.tfrecord' is a TFRecord file: .*install tfx-embeddings\[tfx\]"):
        next(iter(read_batches("rows.tfrecord", "tfrecord", None, None)))


def test_every_command_that_needs_tfx_exists(file, capsys):
    assert exit_code("--help") == 0
    shown = capsys.readouterr().out
    assert all(f"│ {name} " in shown for name in NEED_TFX)
    assert "which runs on Python" not in shown


def test_plan_prints_tables_and_their_memory(file, capsys):
    assert exit_code("plan", file, "--assume", "9", "--slice", "v3-8", "--set", "tables.item.dim=8") == 0
    shown = capsys.readouterr().out
    assert "3,200       3,200         832" in shown  # rows, slots, and 13 of the 100 rows with slots
    assert "`max_size` of the vocabularies item" in shown
    assert "Adagrad" in shown
    assert "GiB on the fullest host; it fits" in shown
    large = ("--set", "vocabularies.item.max_size=900000000", "--set", "tables.item.dim=64")
    assert exit_code("plan", file, "--assume", "9", "--topology", "v3-8", *large) == 0
    assert "too large: item" in capsys.readouterr().out


def test_plan_of_a_simulated_tpu_has_tables_alone(file, capsys):
    simulated = "training={strategy: simulated_tpu, topology: 2x2, batch_size: 32}"
    assert exit_code("plan", file, "--assume", "9", "--set", simulated) == 0
    assert "core bytes" not in capsys.readouterr().out


def test_plan_as_json(file, capsys):
    assert exit_code("plan", file, "--assume", "9", "--json", "--topology", "v2-8") == 0
    found = json.loads(capsys.readouterr().out)
    assert [table["vocabulary_size"] for table in found["tables"]] == [100]
    assert found["memory"]["name"] == "v2-8"
