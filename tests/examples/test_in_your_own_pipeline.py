"""Runs the example pipeline of somebody else's, and the notebook that runs the components one by one."""

import os
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

pytestmark = pytest.mark.tfx

FOLDER = Path(__file__).parents[2] / "examples" / "in_your_own_pipeline"
NOTEBOOK = FOLDER / "components_one_by_one.ipynb"
ROWS = 1_500


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """Return a folder with the demo's first rows."""
    import tfx

    data = Path(tfx.__file__).parent / "examples" / "chicago_taxi_pipeline" / "data" / "simple" / "data.csv"
    folder = tmp_path_factory.mktemp("rows")
    lines = data.read_text().splitlines(keepends=True)
    (folder / "data.csv").write_text("".join(lines[: ROWS + 1]))
    return folder


@pytest.fixture
def modules(monkeypatch):
    monkeypatch.setattr(sys, "path", [str(FOLDER), *sys.path])
    import taxi_pipeline

    yield taxi_pipeline
    for name in ("taxi_pipeline", "taxi_modules"):
        sys.modules.pop(name, None)


def test_pipeline_compiles_with_the_nodes_of_both(modules, tmp_path):
    from tfx.dsl.compiler.compiler import Compiler

    compiled = Compiler().compile(modules.create_pipeline(str(tmp_path)))
    upstream = {node.pipeline_node.node_info.id: set(node.pipeline_node.upstream_nodes) for node in compiled.nodes}
    assert upstream["VocabularyGen"] == {"CsvExampleGen"}
    assert {"CsvExampleGen", "Transform", "TableConfigGen", "VocabularyGen"} == upstream["EmbeddingTrainer"]
    assert upstream["Pusher"] == {"Trainer"}


@pytest.mark.slow
def test_pipeline_pushes_both_models(modules, rows, tmp_path):
    import tensorflow as tf
    from tfx.orchestration.local.local_dag_runner import LocalDagRunner

    LocalDagRunner().run(modules.create_pipeline(str(tmp_path), str(rows), steps=20))
    pushed = {name: max((tmp_path / name).glob("[0-9]*")) for name in ("linear", "embeddings")}
    assert {name: bool(tf.saved_model.load(str(path)).signatures) for name, path in pushed.items()} == {
        "linear": True, "embeddings": True,
    }  # fmt: skip


@pytest.fixture(scope="module")
def shown(rows, tmp_path_factory):
    """Run the notebook; return the HTML of each cell's outputs."""
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TFX_EMBEDDINGS_DATA", str(rows))
        patch.setenv("TMPDIR", str(tmp_path_factory.mktemp("notebook")))
        patch.setenv("PYTHONPATH", os.pathsep.join([str(FOLDER.parents[1]), os.environ.get("PYTHONPATH", "")]))
        patch.setenv("TF_USE_LEGACY_KERAS", "1")
        NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(FOLDER)}}).execute()
    outputs = [output.get("data", {}) for cell in notebook.cells for output in cell.get("outputs", ())]
    return [data["text/html"] for data in outputs if "text/html" in data]


@pytest.mark.slow
@pytest.mark.parametrize(
    "visual",
    [
        "<h4>area</h4>",  # a vocabulary, with its tokens by count
        "<th>optimizer</th>",  # tables
        "every file has the digest that its manifest names",  # a checkpoint
        "evaluations while training",
        "<b>blessed</b>",
        "The proof compared",
    ],
)
def test_notebook_shows_what_each_component_made(shown, visual):
    assert [page for page in shown if visual in page]


def test_notebook_parses_and_names_only_components_that_exist():
    import components

    sources = [cell.source for cell in nbformat.read(NOTEBOOK, as_version=4).cells if cell.cell_type == "code"]
    for source in sources:
        compile(source, str(NOTEBOOK), "exec")
    assert {"VocabularyGen", "EmbeddingPusher"} <= {name for name in components.__all__ if name in "".join(sources)}
