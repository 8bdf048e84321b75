"""Tests the command on real rows: short runs, a repeated command, a failed choice, and a choice that is taken over."""

import json
import shlex
import sys

import numpy as np
import pytest

from pipelines.choices.choice import AS_CONFIGURED
from pipelines.choices.sample import Sample
from pipelines.choices.short_runs import ShortRuns
from pipelines.commands import cli
from pipelines.config import load_config
from pipelines.local.work_dir import plan_lock
from tests.pipelines.choices.test_choice import tables
from tests.pipelines.commands.exit_code import exit_code

pytestmark = pytest.mark.tfx

CONFIG = """
data: rows.csv
label: bought
split: {by: hash, eval_fraction: 0.3}
features: {categorical: [item, shop]}
tables: {item: {dim: 24}}
model: MODEL
training: {epochs: 1, batch_size: 40, early_stopping: null, strategy: cpu}
evaluation: {min_rows: 50}
"""
FAILS_AT_8 = """
from pipelines.models import ranking


def build(config, embeddings, dense, **arguments):
    if embeddings["item"].shape[-1] == 8:
        raise ValueError("the item needs 16 columns")
    return ranking.build(config, embeddings, dense)
"""
OPTIONS = ("--slices", "v3-8,v5e-4", "--seeds", "2", "--no-compiler")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("planned")
    generator = np.random.default_rng(3)
    items, shops = generator.integers(0, 20, 900), generator.integers(0, 5, 900)
    bought = (generator.random(900) < np.where(items % 2, 0.8, 0.2)).astype(int)
    rows = [f"i{item},s{shop},{label}" for item, shop, label in zip(items, shops, bought, strict=True)]
    (made / "rows.csv").write_text("\n".join(["item,shop,bought", *rows]) + "\n")
    (made / "fails.py").write_text(FAILS_AT_8)
    for name, model in (("my", "ranking"), ("fails", "fails")):
        (made / f"{name}.yaml").write_text(CONFIG.replace("MODEL", model))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", list(sys.path))
        patch.setattr(cli, "silence", lambda: None)
        yield made


def plan(capfd, file, *options):
    code = exit_code("plan", file, *OPTIONS, *options)
    shown = capfd.readouterr()
    with open(file.parent / "runs" / file.stem / "plan" / "plan.json", encoding="utf-8") as read:
        return code, json.load(read), shown


@pytest.fixture(scope="module")
def kept(folder):
    return folder / "runs" / "my" / "plan" / "results.json"


def test_runs_go_on_where_a_command_was_stopped(folder, kept, capfd):
    code, short, shown = plan(capfd, folder / "my.yaml", "--runs", "2", "--rows", "600")
    assert code == 0
    assert [run["choice"] for run in short["runs"]] == ["as configured"] * 2
    assert short["rows"] == "600 of 900 rows, drawn at random"
    assert short["sizes"] == "vocabularies counted in all 900 rows"
    assert "not trained, because `--runs` is 2: dim 8 of item" in shown.err
    first = json.loads(kept.read_text())

    code, made, shown = plan(capfd, folder / "my.yaml", "--runs", "8", "--rows", "600")
    assert code == 0
    assert first.items() <= json.loads(kept.read_text()).items()
    assert made["runs"][:2] == short["runs"]
    assert len(made["runs"]) == 8
    assert all(0.5 < run["auc"] < 1 for run in made["runs"])
    assert shown.err.count("; kept") == 2
    assert "8 in " in shown.err
    assert [row["rows"] for row in made["tables"]] == [21, 6]


def test_model_files_of_short_runs_are_removed(kept):
    made = list(kept.parent.glob("work/artifacts/EmbeddingTrainer/model*/*"))
    assert made
    assert not [path for path in made if path.is_dir()]


def test_choice_is_taken_over_by_its_command(folder, capfd):
    _, made, _ = plan(capfd, folder / "my.yaml", "--runs", "8", "--rows", "600")
    offer = next(one for one in made["slices"][0]["offers"] if one["choice"] == "dim 8 of item, shop")
    _, *arguments = shlex.split(offer["command"])
    assert exit_code(*arguments) in (0, 3)
    report = json.loads((folder / "runs" / "my" / "report" / "report.json").read_text())
    assert {row["name"]: row["dim"] for row in report["tables"]} == {"item": 8, "shop": 8}
    assert report["configuration"]["training"]["topology"] == "v3-8"


def test_failed_run_is_reported_and_others_go_on(folder, capfd):
    code, made, shown = plan(capfd, folder / "fails.yaml", "--runs", "14")
    assert code == 0
    failed = [run for run in made["runs"] if run["error"]]
    assert {run["choice"] for run in failed} == {"dim 8 of item, shop", "dim 8 of item"}
    assert all("the item needs 16 columns" in run["error"] for run in failed)
    others = {"as configured", "dim 32 of shop; dim 48 of item", "batch 160", "dim 8 of shop"}
    assert {run["choice"] for run in made["runs"] if not run["error"]} == others
    by_choice = {offer["choice"]: offer for offer in made["slices"][0]["offers"]}
    assert by_choice["dim 8 of item, shop"]["source"] == "unknown"
    assert not by_choice["dim 8 of item, shop"]["front"]
    assert "failed: " in shown.err


def test_model_that_fails_as_configured_is_one_error(folder, capfd):
    assert exit_code("plan", folder / "fails.yaml", *OPTIONS, "--set", "tables.item.dim=8") == 1
    assert "error: no short run of the model as configured has a result: " in capfd.readouterr().err


def test_nothing_that_fits_has_its_exit_code_and_a_remedy(folder, capfd):
    assert exit_code("plan", folder / "my.yaml", *OPTIONS, "--no-runs", "--budget", "100B") == 4
    assert "no choice fits: the smallest dims need" in capfd.readouterr().out


def test_second_command_in_the_folder_is_refused(folder, capfd):
    with plan_lock(str(folder / "shared")):
        assert exit_code("plan", folder / "my.yaml", *OPTIONS, "--no-runs", "--out", str(folder / "shared")) == 1
    assert "another run uses it, process" in capfd.readouterr().err


def test_results_of_other_rows_are_not_used(folder):
    config = load_config(folder / "my.yaml", [])
    keys = [
        ShortRuns(config, Sample(config.data, 900, 900, digest), str(folder)).key(tables(item=(5, 8)), AS_CONFIGURED, 1)
        for digest in ("one", "other", "one")
    ]
    assert keys[0] == keys[2] != keys[1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--slices", "v3_8"), "`--slices` names 'v3_8'"),
        (("--slices", "v3-8", "--budget", "16Gib"), "did you mean 'GiB'?"),
        (("--slices", "v3-8", "--runs", "2"), "at least `--seeds`, 3"),
        (("--slices", "v3-8", "--topology", "v3-8"), "name all slices in `--slices`"),
        (("--slices", "v3-8", "--set", "data=gone.csv"), "no file has this name"),
        (("--slices", "v3-8", "--out", "gs://bucket/x"), "`--out` is 'gs://bucket/x': a plan is written to a local"),
        (("--slices", "v3-8", "--set", "work_dir=gs://bucket/x"), "`work_dir` is 'gs://bucket/x': it must be a folder"),
    ],
)
def test_bad_input_is_one_error(folder, capfd, options, message):
    assert exit_code("plan", folder / "my.yaml", *options) == 1
    (line,) = capfd.readouterr().err.splitlines()
    assert message in line
