"""Tests that the configuration page and JSON Schema are current and complete, and that the examples satisfy them."""

import json
import re
from pathlib import Path

import configuration_page
import jsonschema
import pytest
from typer.testing import CliRunner

from pipelines.commands.cli import app
from pipelines.config import load_config
from pipelines.config.loading import parse_yaml
from pipelines.config.pipeline_config import config_schema

pytestmark = pytest.mark.light
ROOT = Path(__file__).parents[3]
EXAMPLES = sorted([*(ROOT / "pipelines/examples").glob("*.yaml"), *(ROOT / "examples").rglob("*.yaml")])


def refused(values):
    return [error.message for error in jsonschema.Draft202012Validator(config_schema()).iter_errors(values)]


def test_page_and_schema_are_current():
    assert configuration_page.PAGE.read_text() == configuration_page.page(), "run: make reference"
    assert configuration_page.SCHEMA.read_text() == configuration_page.schema(), "run: make reference"


def test_every_key_has_a_meaning():
    assert re.findall(r"^\|.*\|  \|$", configuration_page.page(), re.MULTILINE) == []


def test_schema_command_prints_the_schema():
    printed = CliRunner().invoke(app, ["schema"])
    assert json.loads(printed.stdout) == config_schema()


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_name_the_schema_and_pass_it(path):
    text = path.read_text()
    named = re.match(r"# yaml-language-server: \$schema=(.*)\n", text)[1]
    assert (path.parent / named).resolve() == ROOT / "pipelines/examples/config.schema.json"
    assert refused(parse_yaml(text, path.name).values) == []


def test_schema_accepts_what_validate_prints():
    assert refused(load_config(ROOT / "pipelines/examples/taxi.yaml").to_mapping()) == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"trainig": {}},
        {"training": {"batch_size": 0}},
        {"training": {"table_optimizer": {"name": "adagrad", "rate": 1}}},
        {"split": {"by": "hash", "eval_fraction": 1}},
    ],
)
def test_schema_refuses_a_mistake(wrong):
    assert refused({"data": "a.csv", "label": "y", "features": {"categorical": ["item"]}, **wrong})
