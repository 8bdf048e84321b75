"""Tests all manifests against the published schemas of Kubernetes and of Kubeflow Pipelines, kept beside this file.

The campaign `kube-check` asks a Kubernetes API server, which knows more rules than a schema can say.
"""

import functools
import json
from pathlib import Path

import jsonschema
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory
from kfp.pipeline_spec import pipeline_spec_pb2

from tests.kube_check.manifests import (
    COMPILED,
    golden_documents,
    manifests_before_a_run,
    pods_of,
    slice_pods,
    written_manifests,
)

pytestmark = pytest.mark.light
HERE = Path(__file__).parent


@functools.cache
def schema_of(kind):
    """Return the validator for a kind, which refuses unknown keys."""
    definitions = json.loads((HERE / "schemas.json").read_text())["$defs"]
    (name,) = (definition for definition in definitions if definition.rpartition(".")[2] == kind)
    return jsonschema.Draft202012Validator({"$ref": f"#/$defs/{name}", "$defs": definitions})


def errors_of(manifest):
    return [f"{error.json_path}: {error.message}" for error in schema_of(manifest["kind"]).iter_errors(manifest)]


@pytest.mark.parametrize("name", COMPILED)
def test_pods_of_compiled_pipelines_follow_kubernetes_schema(name):
    pods = pods_of(golden_documents(name))
    assert len(pods) > 5
    assert {task: found for task, pod in pods.items() if (found := errors_of(pod))} == {}


def test_slices_and_written_manifests_follow_kubernetes_schema():
    manifests = {**slice_pods(), **written_manifests()[0], **manifests_before_a_run()}
    assert {manifest["kind"] for manifest in manifests.values()} >= {"Pod", "Deployment", "Service"}
    assert {name: found for name, manifest in manifests.items() if (found := errors_of(manifest))} == {}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda pod: pod["spec"]["tolerations"][0].update(keys="google.com/tpu"), "keys"),
        (lambda pod: pod["spec"]["containers"][0]["resources"].update(limits={"google.com/tpu": ["4"]}), "limits"),
    ],
)
def test_schema_refuses_a_wrong_pod(change, words):
    pod = slice_pods()["v5e-4"]
    assert errors_of(pod) == []
    change(pod)
    assert any(words in error for error in errors_of(pod))


def platform_message():
    """Return the message of Kubeflow Pipelines for an executor's settings of Kubernetes."""
    file = json_format.ParseDict(
        json.loads((HERE / "kfp_platform.json").read_text()), descriptor_pb2.FileDescriptorProto()
    )
    pool = descriptor_pool.DescriptorPool()
    for known in ("google/protobuf/any.proto", "google/protobuf/struct.proto", "google/protobuf/duration.proto"):
        pool.AddSerializedFile(descriptor_pool.Default().FindFileByName(known).serialized_pb)
    pool.AddSerializedFile(descriptor_pool.Default().FindFileByName("google/rpc/status.proto").serialized_pb)
    pool.AddSerializedFile(pipeline_spec_pb2.DESCRIPTOR.serialized_pb)
    pool.AddSerializedFile(file.SerializeToString())
    kind = pool.FindMessageTypeByName("kfp_kubernetes.KubernetesExecutorConfig")
    if hasattr(message_factory, "GetMessageClass"):  # protobuf 4.22 and later
        return message_factory.GetMessageClass(kind)
    return message_factory.MessageFactory(pool).GetPrototype(kind)


def test_second_document_follows_schema_of_kubeflow_pipelines():
    kind, parsed = platform_message(), 0
    for _, *platform in map(golden_documents, COMPILED):
        for manifest in platform:
            (placed,) = manifest["platforms"]["kubernetes"]["deploymentSpec"]["executors"].values()
            assert json_format.MessageToDict(json_format.ParseDict(placed, kind())) == placed
            parsed += 1
    assert parsed
    with pytest.raises(json_format.ParseError, match="toleration"):
        json_format.ParseDict({"toleration": []}, kind())
