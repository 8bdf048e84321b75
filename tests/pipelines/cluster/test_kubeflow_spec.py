import pytest

from embedding_core.errors import ConfigError
from pipelines.cluster.kubeflow_spec import check_spec, kubernetes_name, with_defaults, with_kubernetes_names

pytestmark = pytest.mark.light


def spec(executor=None):
    """Return a specification of two tasks; the second reads the output of the first."""
    outputs = {"outputDefinitions": {"artifacts": {"made": {}}}}
    container = executor or {"container": {"lifecycle": {"preCacheCheck": {}}, "image": "i"}}
    return {
        "components": {
            "ExampleGen": {"executorLabel": "ExampleGen_executor", **outputs},
            "MyTask": {"executorLabel": "MyTask_executor", **outputs},
        },
        "deploymentSpec": {"executors": {"ExampleGen_executor": container, "MyTask_executor": {"container": {}}}},
        "root": {
            "inputDefinitions": {"parameters": {"data": {"parameterType": "STRING"}}},
            "dag": {
                "tasks": {
                    "ExampleGen": {
                        "componentRef": {"name": "ExampleGen"},
                        "cachingOptions": {"enableCache": True},
                        "inputs": {"parameters": {"path": {"componentInputParameter": "data"}}},
                    },
                    "MyTask": {
                        "componentRef": {"name": "MyTask"},
                        "cachingOptions": {"enableCache": True},
                        "dependentTasks": ["ExampleGen"],
                        "inputs": {
                            "artifacts": {
                                "read": {
                                    "taskOutputArtifact": {"producerTask": "ExampleGen", "outputArtifactKey": "made"}
                                }
                            }
                        },
                    },
                }
            },
        },
    }


@pytest.mark.parametrize(
    ("name", "new"), [("EmbeddingTrainer", "embedding-trainer"), ("online_retail", "online-retail"), ("a", "a")]
)
def test_name_for_kubernetes(name, new):
    assert kubernetes_name(name) == new


@pytest.mark.parametrize("name", ["___", "é", "x" * 64])
def test_name_that_kubernetes_cannot_have_is_refused(name):
    with pytest.raises(ConfigError, match="1 to 63"):
        kubernetes_name(name)


def test_renamed_specification_holds_and_caches_no_driver_task():
    renamed = with_kubernetes_names(spec())
    check_spec(renamed)
    first, second = (renamed["root"]["dag"]["tasks"][name] for name in ("example-gen", "my-task"))
    assert "cachingOptions" not in first
    assert second["cachingOptions"] == {"enableCache": True}
    assert second["dependentTasks"] == ["example-gen"]
    assert "lifecycle" not in renamed["deploymentSpec"]["executors"]["exec-example-gen"]["container"]


def test_resolver_is_refused():
    with pytest.raises(ConfigError, match="is a resolver"):
        with_kubernetes_names(spec({"resolver": {}}))


def test_defaults_stand_beside_their_parameters():
    done = with_defaults(spec(), {"data": ("gs://b/d", "the data"), "unused": (1, "")}, "gs://b/root")
    parameter = done["root"]["inputDefinitions"]["parameters"]["data"]
    assert parameter == {
        "parameterType": "STRING", "defaultValue": "gs://b/d", "description": "the data", "isOptional": True,
    }  # fmt: skip
    assert done["defaultPipelineRoot"] == "gs://b/root"


@pytest.mark.parametrize(
    ("break_it", "words"),
    [
        (lambda broken: broken["components"].pop("MyTask"), "no component"),
        (lambda broken: broken["deploymentSpec"]["executors"].clear(), "no executor"),
        (lambda broken: broken["components"]["ExampleGen"]["outputDefinitions"]["artifacts"].clear(), "'made'"),
        (lambda broken: broken["root"]["inputDefinitions"]["parameters"].clear(), "the parameter 'data'"),
    ],
)
def test_specification_that_does_not_hold_together_is_refused(break_it, words):
    broken = spec()
    break_it(broken)
    with pytest.raises(ConfigError, match=words):
        check_spec(broken)
