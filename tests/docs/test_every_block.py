"""Checks every code block of README and docs: commands, make targets, YAML, Python; says which of them a test runs."""

import ast
import re
from pathlib import Path

import pytest
import typer
import yaml
from code_blocks import ROOT, blocks_of, commands_of, pages

from embedding_core.errors import ConfigError
from embedding_core.rooms import ROOMS, is_installed, room_of
from pipelines.commands.cli import app
from pipelines.config import load_config
from pipelines.config.pipeline_config import config_schema
from tests.campaigns import CAMPAIGNS, table

pytestmark = pytest.mark.light

# Tests that run all Python blocks of a page, or those that have a text.
RUN = {
    ("README.md", "TPUEmbedding("): "tests/test_wheel.py",
    ("docs/own_model.md", "def build"): "tests/pipelines/models/test_documented_models.py",
    ("docs/own_model.md", "def run_fn"): "tests/components/trainer/test_own_run.py",
    ("docs/moving_from_keras_rs.md", ""): "tests/embedding_core/layer/test_keras_rs.py",
    ("docs/moving_from_tfrs.md", ""): "tests/pipelines/test_moving_from_tfrs.py",
    ("docs/preflight.md", "def make_step"): "tests/docs/test_python_runs.py",
    ("docs/simulated_tpu.md", ""): "tests/docs/test_python_runs.py",
    ("docs/models.md", "NoGiantRows"): "tests/components/quality_gate/test_quality_gate.py",
    ("docs/serving.md", "tritonclient"): "tests/servers/triton/test_triton.py",
    ("docs/serving.md", "saved_model.load("): "tests/docs/test_pages_run.py",
    ("docs/retrieval.md", "top_k_filtered"): "tests/docs/test_pages_run.py",
    ("docs/shadow.md", "prediction_log_pb2"): "tests/docs/test_pages_run.py",
    ("docs/deltas.md", "newest_chain"): "tests/docs/test_pages_run.py",
    ("docs/tutorial.md", "model.signatures"): "tests/docs/test_pages_run.py",
}
RUN |= {
    (f"docs/components/{path.name}", ""): "tests/components/test_component_pages.py"
    for path in (ROOT / "docs/components").glob("*.md")
}
# Python blocks that no test runs; that they parse and import what exists is checked.
PARTS = {
    ("docs/sparsecore_limits.md", "read_sparse_core_limits"): "needs TensorFlow 2.21, keras-rs and jax-tpu-embedding",
}
# Indented texts that are not code of this project.
TEXTS = {
    ("README.md", "pip install"): "make release-check installs the wheel",
    ("README.md", "log loss"): "tests/pipelines/test_end_to_end.py compares the figures",
    ("kubeflow/README.md", "docker build"): "needs a container engine; tests/test_image.py runs the build without one",
    ("kubeflow/README.md", '"task": {'): "tests/parameter_server starts its tasks with the same variable",
    ("docs/architecture.md", ""): "drawings; tests/test_rules_of_the_source.py compares them with the contracts",
    ("docs/health.md", "the share of"): "an error message",
    ("docs/preflight.md", "the largest gradient"): "a formula",
    ("docs/preflight.md", "-m venv"): "tests/embedding_core/tpu_compiler compiles in such an environment",
    ("docs/scale.md", "dask scheduler"): "tests/pipelines/dask/test_dask_cluster.py starts the same commands",
    ("docs/serving.md", "docker run"): "needs TensorFlow Serving's server, which is in no package index",
    ("docs/deltas.md", "openssl rand"): "a shell variable",
    ("docs/deltas.md", "POST /v1"): "a request; tests/deltas sends it",
    ("docs/serving.md", "examples/kserve/predictor.py"): "tests/servers/test_kserve.py starts it, by the campaign",
    ("docs/shadow.md", "logging_config"): "a configuration of TensorFlow Serving's server",
    ("docs/tutorial.md", "pip install"): "make release-check installs the wheel",
}
# What a configuration needs beside the block.
MINIMAL = {"data": "rows.csv", "label": "clicked", "features": {"categorical": ["user", "item", "price"]}}
CLUSTER = {"image": "image", "pipeline_root": "gs://bucket/root"}
HISTORY = {"name": "history", "vocabulary": "item", "multivalent": True}
BESIDE = {
    ("kubeflow/README.md", "kubeflow:"): {
        "data": "gs://b/x.csv",
        "push": {"destination": "gs://b/s"},
        "kubeflow": CLUSTER,
    },
    ("docs/data.md", "histories:"): {"features": {"categorical": ["item", HISTORY]}},
    ("docs/retrieval.md", "exclude_seen"): {
        "label": {"kind": "positive"},
        "model": {"name": "two_tower", "arguments": {"query_features": ["user"], "candidate_features": ["item"]}},
        "training": {"softmax": "item"},
    },
}
KEYS = {*config_schema()["properties"], *(key for keys in ROOMS.values() for key in keys)}
EXPECTED = "no file has this name|no file matches|belongs to the optional part"
BLOCKS = [block for page in pages() for block in blocks_of(page)]
SCRIPT = re.compile(r"(?m)^(?:\.venv/bin/)?python3? (\S+\.py)\b")
OPTIONAL = re.compile(r"--[a-z][a-z-]*")


def known(table, block):
    return next((why for (page, text), why in table.items() if page == block.page and text in block.text), None)


def sections(block):
    """Return the block as a part of a configuration; None if it is something else."""
    if block.language not in {"", "yaml"}:
        return None
    try:
        values = yaml.safe_load(block.text)
    except yaml.YAMLError:
        return None
    return values if isinstance(values, dict) and values and set(values) <= KEYS else None


def kind(block):
    if commands_of(block.text):
        return "command"
    if re.search(r"(?m)^make [a-z]", block.text):
        return "make"
    if SCRIPT.search(block.text):
        return "script"
    if known(TEXTS, block):
        return "text"
    if sections(block) is not None:
        return "yaml"
    if known(RUN, block) or known(PARTS, block):
        return "python"
    return None


def test_every_block_is_checked_in_one_of_these_ways():
    assert [f"{block.page}:{block.line} {block.first}" for block in BLOCKS if kind(block) is None] == []
    assert len(BLOCKS) > 80


def test_no_entry_is_left_over():
    entries = {*RUN, *PARTS, *TEXTS, *BESIDE}
    used = {(page, text) for block in BLOCKS for page, text in entries if page == block.page and text in block.text}
    assert entries - used == set()


def test_test_that_runs_a_page_names_it():
    for (page, _), path in RUN.items():
        if all(is_installed(room) for room in ROOMS if room in path.split("/")):
            source = (ROOT / path).read_text()
            assert Path(page).name in source or Path(page).parent.name in source, (page, path)


COMMAND_LINE = typer.main.get_command(app)
COMMANDS = [(block, line) for block in BLOCKS for line in commands_of(block.text)]


@pytest.mark.parametrize(("block", "line"), COMMANDS, ids=[f"{b.page}:{b.line} {line[:40]}" for b, line in COMMANDS])
def test_command_and_its_options_exist(block, line):
    """The group, the command and each option; the campaign `pages` runs them all."""
    command = COMMAND_LINE
    for word in line.split():
        if not hasattr(command, "commands"):
            break
        if word not in command.commands and not all(map(is_installed, ROOMS)):
            pytest.skip("an optional room is not installed")
        assert word in command.commands, f"{block.page}:{block.line}: there is no command {word!r}"
        command = command.commands[word]
    options = {name for param in command.params for name in (*param.opts, *param.secondary_opts)}
    options |= {option for option in OPTIONAL.findall(line) if room_of(option)}
    assert set(OPTIONAL.findall(line)) - {"--help", "--debug"} <= options


def test_page_of_commands_says_which_install_has_each():
    page = (ROOT / "docs/commands.md").read_text()
    table = re.search(r"(?m)^\| install \| Python and TensorFlow \|(?:.*\n)+?\n", page)[0]
    assert set(COMMAND_LINE.commands) - set(re.findall(r"`([a-z-]+)`", table)) == set()


def test_contributing_lists_the_campaigns():
    assert table() in (ROOT / "CONTRIBUTING.md").read_text(), "write what `tests.campaigns.table()` returns"


@pytest.mark.skipif(not all(map(is_installed, ROOMS)), reason="an optional room is not installed")
def test_files_of_campaigns_exist():
    words = " ".join(campaign.commands for campaign in CAMPAIGNS.values()).split()
    assert [word for word in words if word.startswith("tests/") and not (ROOT / word).exists()] == []


def test_scripts_and_make_targets_exist():
    scripts = {name for block in BLOCKS for name in SCRIPT.findall(block.text)}
    assert [name for name in sorted(scripts) if not (ROOT / name).is_file()] == []
    targets = set(re.findall(r"(?m)^([a-z-]+):", (ROOT / "Makefile").read_text()))
    lines = [line for block in BLOCKS for line in re.findall(r"(?m)^make ([a-z-]+)(?: NAME=([a-z-]+))?", block.text)]
    assert len(lines) > 10
    assert {target for target, _ in lines} <= targets
    assert {campaign for _, campaign in lines if campaign} <= set(CAMPAIGNS)


YAML = [block for block in BLOCKS if kind(block) == "yaml" and not known(RUN, block)]


def configurations(text):
    """Return the configurations of a block: a key that is repeated at the top begins another one."""
    found = [{}]
    for part in re.split(r"(?m)^(?=\w)", text):
        for key, value in (yaml.safe_load(part) or {}).items():
            if key in found[-1]:
                found.append({})
            found[-1][key] = value
    return found


def mistakes_of(values, beside, path):
    """Return the mistakes of a configuration, except that its files, or optional rooms, are not here."""
    values = {**MINIMAL, **beside, **values}
    if "labels" in values:
        del values["label"]
    if "kubeflow" in beside:
        values["kubeflow"] = {**beside["kubeflow"], **values["kubeflow"]}
    path.write_text(yaml.safe_dump(values))
    try:
        load_config(path)
    except ConfigError as error:
        return [line for line in str(error).splitlines() if not re.search(EXPECTED, line)]
    return []


@pytest.mark.parametrize("block", YAML, ids=[f"{block.page}:{block.line}" for block in YAML])
def test_configuration_is_loaded(block, tmp_path):
    for number, values in enumerate(configurations(block.text)):
        assert mistakes_of(values, known(BESIDE, block) or {}, tmp_path / f"c{number}.yaml") == []


PACKAGES = ("embedding_core", "components", "pipelines")
PYTHON = [block for block in BLOCKS if kind(block) == "python" and block.language != "bash"]


@pytest.mark.parametrize("block", PYTHON, ids=[f"{block.page}:{block.line}" for block in PYTHON])
def test_python_parses_and_imports_what_exists(block):
    for node in ast.walk(ast.parse(block.text)):
        if isinstance(node, ast.ImportFrom) and node.module.partition(".")[0] in PACKAGES:
            if any(room in node.module.split(".") and not is_installed(room) for room in ROOMS):
                pytest.skip("an optional room is not installed")
            path = ROOT / node.module.replace(".", "/")
            source = (path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text()
            for alias in node.names:
                inside = (path / f"{alias.name}.py").is_file() or (path / alias.name).is_dir()
                assert inside or re.search(rf"\b{alias.name}\b", source), f"{node.module} has no {alias.name}"
