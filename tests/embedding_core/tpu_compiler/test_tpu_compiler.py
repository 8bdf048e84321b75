"""The exchange with the compiler's process: what needs no compiler, and with one, a compilation of each outcome."""

import json
import os
import sys
import venv
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from embedding_core.errors import ConfigError
from embedding_core.tpu_compiler import TpuCompiler
from tests.support.tpu_compiler.compilers import NEEDS_TPU_COMPILER, TPU_COMPILER, python_of

pytestmark = pytest.mark.light

WORKING = '{"stage": "compiling", "versions": {}}'


@pytest.fixture
def program(tmp_path):
    """Make a program in place of the environment's Python."""
    return lambda text, **more: TpuCompiler(python=python_of(tmp_path, text), **more)


def environment(folder, versions):
    """Make an environment that claims to have some packages, and has none."""
    venv.create(folder, symlinks=True)
    packages = next(folder.glob("lib/python*/site-packages"))
    for name, version in versions.items():
        (packages / f"{name}-{version}.dist-info").mkdir()
        (packages / f"{name}-{version}.dist-info" / "METADATA").write_text(f"Name: {name}\nVersion: {version}\n")
    return TpuCompiler(python=folder / "bin" / "python")


def test_environment_that_is_absent_is_one_clear_line(tmp_path):
    with pytest.raises(ConfigError, match=r"^there is no environment.*'make|make tpu-compiler") as caught:
        TpuCompiler.find(tmp_path / "python")
    assert str(tmp_path / "python") in str(caught.value)
    assert "\n" not in str(caught.value)
    assert f"libtpu {TpuCompiler.pinned_versions()['libtpu']}" in str(caught.value)


def test_variable_names_the_environment(monkeypatch):
    monkeypatch.setenv(TpuCompiler.VARIABLE, sys.executable)
    assert TpuCompiler.find().python == Path(sys.executable)
    assert TpuCompiler.installed().python == Path(sys.executable)


def test_without_a_variable_it_is_where_make_puts_it(monkeypatch, tmp_path):
    monkeypatch.delenv(TpuCompiler.VARIABLE, raising=False)
    monkeypatch.chdir(tmp_path)
    assert TpuCompiler.installed() is None
    (tmp_path / ".tpu-compiler" / "bin").mkdir(parents=True)
    os.symlink(sys.executable, tmp_path / ".tpu-compiler" / "bin" / "python")
    assert TpuCompiler.installed().python == tmp_path / ".tpu-compiler" / "bin" / "python"


def test_environment_variable_that_names_nothing_is_refused(monkeypatch, tmp_path):
    monkeypatch.setenv(TpuCompiler.VARIABLE, str(tmp_path))
    with pytest.raises(ConfigError, match="is not a program"):
        TpuCompiler.installed()


def test_process_gets_the_program_and_no_settings_of_the_caller(program, monkeypatch, tmp_path):
    for name in ("PYTHONPATH", "TPU_NAME", "XLA_FLAGS", "JAX_PLATFORMS", "LIBTPU_INIT_ARGS"):
        monkeypatch.setenv(name, "given")
    reply = '{"stage": "compiled", "versions": {}}'
    compiler = program(f"env > {tmp_path}/env; cp $3/* {tmp_path}; echo '{reply}' > $3/reply.json")
    assert compiler.compile(b"hlo", "v5p") == {"target": "v5p:2x2x1", "stage": "compiled", "versions": {}}
    request = json.loads((tmp_path / "request.json").read_text())
    assert request == {"topology": "v5p:2x2x1", "versions": TpuCompiler.pinned_versions()}
    assert (tmp_path / "program.hlo").read_bytes() == b"hlo"
    assert "=given" not in (tmp_path / "env").read_text()


def test_environment_without_the_compiler_is_refused():
    with pytest.raises(ConfigError, match="has no jax, no jaxlib, no libtpu: make it with"):
        TpuCompiler(python=Path(sys.executable)).compile(b"", "v3")


def test_environment_with_other_versions_is_refused(tmp_path):
    compiler = environment(tmp_path, {**TpuCompiler.pinned_versions(), "libtpu": "0.0.1"})
    with pytest.raises(ConfigError, match=r"has jax .*, libtpu 0\.0\.1: make it with"):
        compiler.compile(b"", "v3")


def test_damaged_environment_is_refused_with_its_error(tmp_path):
    with pytest.raises(ConfigError, match=r"cannot run the compiler \(ModuleNotFoundError: No module named 'jax'\)"):
        environment(tmp_path, TpuCompiler.pinned_versions()).compile(b"", "v3")


def test_program_of_another_kind_is_refused(tmp_path):
    (tmp_path / "python").write_bytes(b"\x7fELF")
    (tmp_path / "python").chmod(0o755)
    with pytest.raises(ConfigError, match=r"cannot run the compiler \(Exec format error\)"):
        TpuCompiler(python=tmp_path / "python").compile(b"", "v3")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("kill -9 $$", "signal 9 ended it, 'Killed'"),
        ("exec sleep 60", "it was not ready after 0.5 s"),
        ("echo '{' > $3/reply.json; echo first >&2; echo last >&2", "last"),
        ("true", "it wrote nothing"),
    ],
)
def test_process_that_fails_before_compiler_is_ready_is_refused(program, text, found):
    with pytest.raises(ConfigError, match=found):
        program(text, seconds=0.5).compile(b"", "v3")


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("kill -9 $$", "signal 9 ended it, 'Killed': it wrote nothing"),
        ("exec sleep 60", "it was not ready after 0.5 s: it wrote nothing"),
        ("echo 'F0102 03:04 5 a.cc:6] Check failed: x' >&2; echo '    @ 0x7f' >&2; exit 1", "Check failed: x"),
    ],
)
def test_compiler_that_stops_is_a_result(program, text, error):
    result = program(f"echo '{WORKING}' > $3/reply.json; {text}", seconds=0.5).compile(b"", "v3")
    assert (result["stage"], result["error"]) == ("stopped", error)


@NEEDS_TPU_COMPILER
def test_two_processes_compile_at_once():
    """Bytes that are not an HLO module are refused only after libtpu is loaded."""
    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(lambda generation: TPU_COMPILER.compile(b"not HLO", generation), ["v3", "v5e"]))
    assert [result["stage"] for result in results] == ["not converted"] * 2
