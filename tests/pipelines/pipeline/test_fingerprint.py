import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import components
from pipelines.pipeline.fingerprint import digest_of_files, loaded_files

ROOT = Path(components.__file__).parents[1]
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
def test_only_code_that_the_trainer_loads_changes_its_digest(tmp_path):
    for name in ("components", "embedding_core", "pipelines"):
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
    assert digest_after_an_edit_of("components/notebook.py") == first
    assert digest_after_an_edit_of("components/quality_gate/executor.py") == first
    assert digest_after_an_edit_of("embedding_core/update_rules.py") != first


@pytest.mark.tfx
def test_trainer_loads_no_module_that_is_not_in_its_digest():
    program = (
        f"import importlib, json, sys\nfor name in {TRAINER}: importlib.import_module(name)\n"
        "ours = ('components', 'embedding_core', 'pipelines')\n"
        "print(json.dumps([m.__file__ for n, m in sys.modules.items() if n.split('.')[0] in ours and m.__file__]))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True, capture_output=True, text=True)
    loaded = set(json.loads(done.stdout.splitlines()[-1]))
    assert len(loaded) > 50
    assert loaded <= loaded_files(TRAINER, str(ROOT))
