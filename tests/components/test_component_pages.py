"""Runs the lines of docs/components that put each component into a pipeline, on channels of the types they name."""

import re
from pathlib import Path

import pytest

from embedding_core.rooms import ROOMS, is_installed

pytestmark = pytest.mark.tfx

PAGES = sorted((Path(__file__).parents[2] / "docs" / "components").glob("*.md"))
COMPONENTS = [page for page in PAGES if page.stem != "index" and (page.stem not in ROOMS or is_installed(page.stem))]
FEATURES = [{"name": "company", "column": {"name": "company"}}]


def channels():
    """Return the channels that the pages name, by their names."""
    from tfx.types import channel_utils, standard_artifacts

    from components import EmbeddingCheckpoint, TableConfigs, Vocabularies

    of_type = {
        "examples": standard_artifacts.Examples,
        "schema": standard_artifacts.Schema,
        "transform_graph": standard_artifacts.TransformGraph,
        "model": standard_artifacts.Model,
        "model_run": standard_artifacts.ModelRun,
        "previous_model": standard_artifacts.PushedModel,
        "blessing": standard_artifacts.ModelBlessing,
        "vocabularies": Vocabularies,
        "table_configs": TableConfigs,
        "embedding_checkpoint": EmbeddingCheckpoint,
        "earlier_checkpoint": EmbeddingCheckpoint,
    }
    return {name: channel_utils.as_channel([cls()]) for name, cls in of_type.items()} | {"features": FEATURES}


def test_there_is_a_page_for_each_component():
    folders = {path.parent.name for path in Path(__file__).parents[2].glob("components/*/component.py")}
    assert {page.stem for page in COMPONENTS} == folders


@pytest.mark.parametrize("page", COMPONENTS, ids=[page.stem for page in COMPONENTS])
def test_lines_of_the_page_make_the_component(page):
    from tfx.dsl.components.base.base_node import BaseNode

    title = page.read_text().splitlines()[0].removeprefix("# ")
    (block,) = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    names = channels()
    exec(compile(block, page.name, "exec"), names)
    made = {type(value).__name__ for value in names.values() if isinstance(value, BaseNode)}
    assert made == {title}
