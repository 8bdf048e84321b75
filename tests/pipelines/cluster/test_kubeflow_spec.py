import copy
from pathlib import Path

import pytest
import yaml

from embedding_core.errors import ConfigError
from pipelines.cluster.kubeflow_spec import check_spec, kubernetes_name, with_kubernetes_names

pytestmark = pytest.mark.light


@pytest.fixture(scope="module")
def compiled():
    """Return the demo's specification for Vertex, whose names are not those of Kubernetes."""
    golden = Path(__file__).parent / "golden" / "taxi_vertex.yaml"
    return yaml.load(golden.read_text(), Loader=yaml.CSafeLoader)


@pytest.mark.parametrize(
    ("name", "new"), [("EmbeddingTrainer", "embedding-trainer"), ("online_retail", "online-retail"), ("a", "a")]
)
def test_name_for_kubernetes(name, new):
    assert kubernetes_name(name) == new


@pytest.mark.parametrize("name", ["___", "é", "x" * 64])
def test_name_that_kubernetes_cannot_have_is_refused(name):
    with pytest.raises(ConfigError, match="1 to 63"):
        kubernetes_name(name)


def test_resolver_is_refused(compiled):
    spec = copy.deepcopy(compiled)
    spec["deploymentSpec"]["executors"]["Transform_executor"] = {"resolver": {}}
    with pytest.raises(ConfigError, match="is a resolver"):
        with_kubernetes_names(spec)


@pytest.mark.parametrize(
    ("break_it", "words"),
    [
        (lambda spec: spec["components"].pop("Transform"), "no component"),
        (lambda spec: spec["deploymentSpec"]["executors"].clear(), "no executor"),
        (lambda spec: spec["components"]["SchemaGen"]["outputDefinitions"]["artifacts"].clear(), "'schema'"),
        (lambda spec: spec["root"]["inputDefinitions"]["parameters"].pop("data_folder"), "the parameter 'data_folder'"),
    ],
)
def test_specification_that_does_not_hold_together_is_refused(compiled, break_it, words):
    spec = copy.deepcopy(compiled)
    check_spec(spec)
    break_it(spec)
    with pytest.raises(ConfigError, match=words):
        check_spec(spec)
