"""Runs the projects that `tfx-embeddings init` and `tfx template copy` write to the push (campaign `notebook`)."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from odd_rows import write_odd_csv

from pipelines.config import load_config
from pipelines.new_project.write_project import CONFIG, template_folder, write_project

pytestmark = [pytest.mark.tfx, pytest.mark.slow]

TUTORIAL = Path(__file__).parents[3] / "docs" / "tutorial.md"
TAXI = "package:tfx/examples/chicago_taxi_pipeline/data/simple/data.csv"


def pushed(folder, *overrides):
    from pipelines.local.run_local import run

    return run(load_config(folder / CONFIG, overrides), printed=False)[0]


def test_project_of_an_odd_file_runs_and_answers_as_the_tutorial(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    write_odd_csv(tmp_path / "odd.csv")
    write_project(tmp_path / "my_project", "odd.csv", None)
    assert pushed(tmp_path / "my_project", "training.epochs=1").pushed
    (query,) = re.findall(r"```python\n(.*?)```", TUTORIAL.read_text(), re.DOTALL)
    exec(compile(query, "tutorial.md", "exec"), {})
    assert "serving_default" in capsys.readouterr().out


@pytest.mark.parametrize("data", [TAXI, None])
def test_project_of_the_demos_data_runs_to_the_push(tmp_path, monkeypatch, data):
    """`None` is the template as it is, whose function for Transform is used too."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    write_project(tmp_path / "taxi", data, None)
    own = [] if data else ["preprocessing_fn=own_preprocessing.preprocessing_fn"]
    assert pushed(tmp_path / "taxi", "training.epochs=1", *own).pushed


@pytest.mark.timeout(3600)
def test_tfx_copies_the_template_and_its_runners_work(tmp_path):
    """TFX's command line joins the template's folder with that of its own templates: an absolute path wins."""
    python = Path(sys.executable)

    def run(*command):
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]

    copy = ["template", "copy", "--pipeline_name=shop", "--destination_path=shop", f"--model={template_folder()}"]
    run(python.with_name("tfx"), *copy)
    write_project(tmp_path / "ours" / "shop", None, None)
    copied = {path.name: path.read_text() for path in (tmp_path / "shop").iterdir()}
    assert copied == {path.name: path.read_text() for path in (tmp_path / "ours" / "shop").iterdir()}
    run(python, "shop/local_runner.py", "--set", "training.epochs=1")
    assert list(tmp_path.glob("shop/runs/shop/serving/[0-9]*"))
    addresses = ["data.path=gs://b/d.csv", "push.destination=gs://b/s", "kubeflow={image: i, pipeline_root: gs://b/r}"]
    run(python, "shop/kubeflow_v2_runner.py", *(part for address in addresses for part in ("--set", address)))
    assert yaml.safe_load((tmp_path / "shop/shop_pipeline.yaml").read_text())["pipelineInfo"]["name"] == "shop"
