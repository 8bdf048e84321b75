import importlib
import multiprocessing
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import components
from pipelines.config import load_config
from pipelines.pipeline.fingerprint import code_fingerprint, digest_of_files, loaded_files, preprocessing_fingerprint

ROOT = Path(components.__file__).parents[1]
OURS = ("components", "embedding_core", "pipelines")
TRAINER = ("components.trainer.executor", "components.trainer.run", "pipelines.models.ranking")


@pytest.mark.light
def test_digest_follows_the_contents_and_not_the_place(tmp_path):
    places = [tmp_path / name / "model.py" for name in ("a", "b")]
    for place in places:
        place.parent.mkdir()
        place.write_text("x = 1\n")
    assert digest_of_files([str(places[0])]) == digest_of_files([str(places[1])])
    places[1].write_text("x = 2\n")
    assert digest_of_files([str(places[0])]) != digest_of_files([str(places[1])])


@pytest.mark.light
@pytest.mark.parametrize("key", ["preprocessing_fn", "model.run_fn"])
@pytest.mark.parametrize("edited", ["edited", "blocks/__init__", "blocks/parts"])
def test_edit_of_the_users_modules_changes_the_digest(tmp_path, monkeypatch, key, edited):
    monkeypatch.setattr(sys, "path", [*sys.path])  # it is appended to
    (tmp_path / "rows.csv").write_text("item,label\na,1\n")
    (tmp_path / "my.yaml").write_text("data: rows.csv\nlabel: label\nfeatures: {categorical: [item]}\n")
    (tmp_path / "blocks").mkdir()
    for name, source in {"blocks/__init__": "", "blocks/parts": "", "edited": "from blocks import parts\n"}.items():
        (tmp_path / f"{name}.py").write_text(f"{source}def function(arguments):\n    pass\n")
    config = load_config(tmp_path / "my.yaml", [f"{key}=edited.function"])
    digests = [lambda: code_fingerprint(config, "trainer")]
    digests += [lambda: preprocessing_fingerprint(config)] * (key == "preprocessing_fn")
    before = [digest() for digest in digests]
    with (tmp_path / f"{edited}.py").open("a") as file:
        file.write("# edited\n")
    assert not {*before} & {digest() for digest in digests}


@pytest.mark.light
def test_installed_packages_are_not_in_the_digest(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(packages := tmp_path / ".venv/lib/site-packages")
    packages.mkdir(parents=True)
    (packages / "installed.py").write_text("")
    (tmp_path / "own.py").write_text("import installed, json, rich.text\n")
    assert loaded_files(["own"], str(tmp_path)) == {str(tmp_path / "own.py")}


@pytest.mark.light
def test_only_code_that_the_trainer_loads_changes_its_digest(tmp_path):
    for name in OURS:
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "rows.csv").write_text("item,label\na,1\n")
    (tmp_path / "my.yaml").write_text("data: rows.csv\nlabel: label\nfeatures: {categorical: [item]}\n")
    program = (
        "from pipelines.config import load_config\n"
        "from pipelines.pipeline.fingerprint import code_fingerprint\n"
        "print(code_fingerprint(load_config('my.yaml'), 'trainer'))"
    )

    def digest_after_an_edit_of(name):
        with (tmp_path / name).open("a") as file:
            file.write("# edited\n")
        command = [sys.executable, "-c", program]
        return subprocess.run(command, cwd=tmp_path, env={}, check=True, capture_output=True, text=True).stdout

    first = digest_after_an_edit_of("my.yaml")
    assert digest_after_an_edit_of("components/quality_gate/executor.py") == first
    assert digest_after_an_edit_of("embedding_core/update_rules.py") != first


def own_files_that_load(modules):
    """Import modules again; return the files of all modules of ours that are then loaded. For a process of its own."""
    ours = [name for name in sys.modules if name.partition(".")[0] in OURS]
    for name in ours:
        del sys.modules[name]
    for name in modules:
        importlib.import_module(name)
    loaded = {module.__file__ for name, module in sys.modules.items() if name.partition(".")[0] in OURS}
    return {file for file in loaded if file}


@pytest.mark.tfx
def test_trainer_loads_no_module_that_is_not_in_its_digest():
    with multiprocessing.get_context("fork").Pool(1) as pool:  # it has TensorFlow and TFX already
        loaded = pool.apply(own_files_that_load, (TRAINER,))
    assert len(loaded) > 50
    assert loaded <= loaded_files(TRAINER, str(ROOT))
