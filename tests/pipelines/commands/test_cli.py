import importlib
import sys
import types
from pathlib import Path
from types import SimpleNamespace

import pytest
import typer
import yaml

from embedding_core import rooms
from embedding_core.errors import DataError, PreemptionError
from pipelines.commands import cli, run_command
from pipelines.config import load_config
from pipelines.local import run_display
from tests.pipelines.commands.exit_code import exit_code

pytestmark = pytest.mark.light


@pytest.fixture(autouse=True)
def _no_tensorflow(monkeypatch):
    for module in (cli, run_command):
        monkeypatch.setattr(module, "load_tensorflow", lambda: None)


def _command(monkeypatch, name, **functions):
    """Replace the module `pipelines.<name>` by one with only these functions."""
    wing, _, last = f"pipelines.{name}".rpartition(".")
    module = types.ModuleType(f"{wing}.{last}")
    vars(module).update(functions)
    monkeypatch.setitem(sys.modules, f"{wing}.{last}", module)
    monkeypatch.setattr(importlib.import_module(wing), last, module, raising=False)


def test_validate_prints_a_config_that_reads_back_equal(file, capsys):
    assert exit_code("validate", file, "--set", "seed=3") == 0
    printed = capsys.readouterr().out
    (file.parent / "printed.yaml").write_text(printed)
    assert load_config(file.parent / "printed.yaml") == load_config(file, ["seed=3"])
    assert yaml.safe_load(printed)["seed"] == 3


def test_mistakes_are_lines_on_stderr_and_exit_code_1(file, capsys):
    assert exit_code("validate", file, "--set", "seed=-1", "--set", "sed=1") == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert [line.split(":")[0] for line in err.splitlines()] == ["error", "error"]
    assert "Traceback" not in err


def test_wrong_usage_is_exit_code_2(file):
    assert exit_code("validate") == 2
    assert exit_code("frobnicate") == 2
    assert exit_code("validate", file, "--no-such-option") == 2


def test_run_hands_the_checked_config_on(file, monkeypatch):
    given = []
    _command(monkeypatch, "local.run_local", run=lambda config, **_: given.append(config) or _report(pushed=True))
    assert exit_code("run", file, "--set", "training.steps=7") == 0
    assert given[0].training.steps == 7


def test_run_measures_only_if_asked_to(file, monkeypatch):
    given = []
    _command(monkeypatch, "local.run_local", run=lambda _, profile, **__: given.append(profile) or _report(pushed=True))
    assert [exit_code("run", file), exit_code("run", file, "--profile")] == [0, 0]
    assert given == [False, True]


@pytest.mark.parametrize("is_terminal", [False, True])
def test_run_is_quiet_if_asked_to_or_without_a_terminal(file, monkeypatch, is_terminal):
    given = []
    _command(monkeypatch, "local.run_local", run=lambda _, quiet, **__: given.append(quiet) or _report(pushed=True))
    monkeypatch.setattr(run_command, "sys", SimpleNamespace(stdout=SimpleNamespace(isatty=lambda: is_terminal)))
    for options in ([], ["--quiet"], ["--no-quiet"]):
        assert exit_code("run", file, *options) == 0
    assert given == [not is_terminal, True, False]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("trian", "there is no command 'trian': did you mean 'run'?"),
        ("rolback", "did you mean 'rollback'?"),
        ("frobnicate", "there is no command 'frobnicate': see `--help`."),
    ],
)
def test_unknown_command_is_answered_by_the_nearest(capsys, given, words):
    assert exit_code(given) == 2
    assert words in capsys.readouterr().err


def test_command_of_a_removed_room_is_not_suggested():
    group = cli.InstalledCommands(name="tfx-embeddings")
    with pytest.raises(Exception, match="there is no command 'new': see `--help`"):
        group.resolve_command(typer.Context(group), ["new"])


def test_run_that_pushes_nothing_is_exit_code_3(file, monkeypatch):
    _command(monkeypatch, "local.run_local", run=lambda *_, **__: _report(pushed=False))
    assert exit_code("run", file) == 3


def _report(*, pushed):
    return SimpleNamespace(pushed=pushed), None


def _raise(error):
    def function(*_, **__):
        try:
            raise error
        except Exception as cause:
            raise RuntimeError("wrapped by an orchestrator") from cause

    return function


def test_error_on_purpose_inside_another_is_its_one_line(file, monkeypatch, capsys):
    _command(monkeypatch, "local.run_local", run=_raise(DataError("rows.csv:2: no label.")))
    assert exit_code("run", file) == 1
    assert capsys.readouterr().err == "error: rows.csv:2: no label.\n"


def test_absent_earlier_run_is_said_before_anything_runs(file, monkeypatch, capsys):
    _command(monkeypatch, "local.run_local", run=_raise(KeyError("not reached")))
    assert exit_code("run", file, "--set", "vocabulary_evolution=nowhere") == 1
    assert "nowhere': it has no *.counts.npy" in capsys.readouterr().err


def test_preempted_run_says_how_to_go_on_and_is_exit_code_75(file, monkeypatch, capsys):
    _command(monkeypatch, "local.run_local", run=_raise(PreemptionError("SIGTERM came: the state is saved.")))
    assert exit_code("run", file) == 75
    assert capsys.readouterr().err == "error: SIGTERM came: the state is saved.\n"


@pytest.mark.parametrize("place", ["before", "after"])
def test_debug_may_come_before_and_after_the_command(file, monkeypatch, capsys, place):
    _command(monkeypatch, "local.run_local", run=_raise(DataError("no label.")))
    assert exit_code(*(["--debug", "run", file] if place == "before" else ["run", file, "--debug"])) == 1
    err = capsys.readouterr().err
    assert "Traceback" in err
    assert err.endswith("error: no label.\n")


def _fails_in_a_captured_run(error):
    def run(config, **_):
        with run_display.captured(config.work_dir):
            raise error

    return run


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (DataError("no label."), "error: no label.\nlog: "),
        (KeyError("x"), "error: KeyError: 'x'\nerror: This error was not expected"),
    ],
)
def test_error_of_a_run_names_its_log_with_the_traceback(file, monkeypatch, capfd, error, shown):
    _command(monkeypatch, "local.run_local", run=_fails_in_a_captured_run(error))
    assert exit_code("run", file) == 1
    err = capfd.readouterr().err
    assert err.startswith(shown)
    assert "Traceback" not in err
    log = Path(err.splitlines()[-1].removeprefix("log: "))
    assert log.is_relative_to(file.parent / "runs/my/logs")
    assert f"{type(error).__name__}: {error}" in log.read_text()


def test_debug_keeps_everything_on_the_screen(file, monkeypatch, capfd):
    _command(monkeypatch, "local.run_local", run=_fails_in_a_captured_run(KeyError("x")))
    assert exit_code("run", file, "--debug") == 1
    assert "Traceback" in capfd.readouterr().err
    assert not (file.parent / "runs" / "my" / "logs").exists()


def test_ctrl_c_says_how_to_go_on_and_is_exit_code_130(file, monkeypatch, capfd):
    _command(monkeypatch, "local.run_local", run=_fails_in_a_captured_run(KeyboardInterrupt()))
    assert exit_code("run", file) == 130
    shown = capfd.readouterr().err
    assert "The same command resumes the run" in shown
    assert "Traceback" not in shown


def test_unexpected_error_keeps_its_traceback(file, monkeypatch, capsys):
    _command(monkeypatch, "local.run_local", run=_raise(KeyError("x")))
    assert exit_code("run", file) == 1
    assert "KeyError" in capsys.readouterr().err


@pytest.mark.parametrize(("green", "options", "code"), [(True, [], 0), (False, [], 4), (False, ["--no-preflight"], 0)])
def test_compile_for_a_tpu_writes_only_what_passes_the_preflight(file, tmp_path, monkeypatch, green, options, code):
    written, shown, further = [], [], []
    installed = SimpleNamespace(installed_checks=lambda config, tables, slice_: {"compiler": slice_.name})
    monkeypatch.setattr(cli, "_PREFLIGHT_CHECKS", [installed])
    documents = {
        "compile_pipeline": lambda config, target: [target],
        "save_documents": lambda *given: written.append(given),
        "compile_cluster": lambda config: [],
    }
    _command(monkeypatch, "cluster.compile_kubeflow", **documents)
    _command(
        monkeypatch,
        "checks.pipeline_preflight",
        check=lambda config, slice_, tables, sizes, checks: further.append(checks) or SimpleNamespace(green=green),
        print_report=shown.append,
    )
    changes = [
        "training.strategy=tpu",
        "training.topology=v5e-4",
        "kubeflow={image: i, pipeline_root: gs://b/r, project: p, region: r}",
        "data={path: gs://b/rows.csv, format: csv}",
        "push=gs://b/serving",
    ]
    tpu = [word for change in changes for word in ("--set", change)]
    assert exit_code("compile", file, "--target", "vertex", "--out", tmp_path / "p.yaml", *tpu, *options) == code
    assert written == ([(["vertex"], tmp_path / "p.yaml")] if code == 0 else [])
    assert len(shown) == (code == 4)
    assert further == ([] if options else [{"compiler": "v5e-4"}])


def test_option_of_optional_part_not_installed_names_the_part(monkeypatch, file, capsys):
    monkeypatch.setattr(rooms, "is_installed", lambda room: room != "tpu_compiler")
    assert exit_code("preflight", file, "--compiler=tpu") == 1
    assert "--compiler is not a known option: it belongs to the optional part 'tpu_compiler'" in capsys.readouterr().err


def test_lineage_gets_its_own_arguments(monkeypatch, file):
    given = []
    _command(monkeypatch, "commands.lineage_command", show=lambda *_, **named: given.append(named))
    assert exit_code("lineage", "--recorded", "folder", "--version", "3") == 0
    assert {key: value for key, value in given[0].items() if value is not None} == {"recorded": "folder", "version": 3}
