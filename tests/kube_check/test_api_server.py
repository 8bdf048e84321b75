"""Tests every manifest with Kubernetes' own API server (campaign `kube-check`): server-side dry run."""

import json
import re
import sys
from pathlib import Path

import pytest

from tests.kube_check.api_server import FOLDER, api_server
from tests.kube_check.manifests import COMPILED, golden_documents, pods_of, slice_pods, written_manifests

pytestmark = [
    pytest.mark.light,
    pytest.mark.skipif(
        not (FOLDER / ".ready").exists(), reason="no kube-apiserver: make campaign NAME=kube-check (builds it once)"
    ),
]
ROOT = Path(__file__).parents[2]
BUCKET = [
    "kubeflow.image=example-docker.pkg.dev/project/repository/tfx-embeddings:0.1.0",
    "kubeflow.pipeline_root=gs://example-bucket/root",
    "push.destination=gs://example-bucket/serving",
]
TPU = ["training.strategy=tpu", "training.topology=v5e-4", "kubeflow.project=p", "kubeflow.region=us-west4"]
EXAMPLES = {
    "pipelines/examples/taxi.yaml": ["data.path=gs://example-bucket/taxi/*.csv"],
    "examples/online_retail/online_retail.yaml": ["data.path=gs://example-bucket/retail/*.parquet"],
    "examples/online_retail/daily_runs.yaml": [
        "data.path=gs://example-bucket/days/{YYYY}-{MM}-{DD}.csv",
        "warm_start=gs://example-bucket/checkpoint",
        "vocabulary_evolution=gs://example-bucket/vocabularies",
    ],
}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with api_server(tmp_path_factory.mktemp("server")) as running:
        yield running


def refusals(server, manifests):
    return {name: found for name, manifest in manifests.items() if (found := server.dry_run(manifest))}


def test_api_server_takes_every_manifest(server):
    manifests = {**slice_pods(), **written_manifests()[0]}
    for name in COMPILED:
        manifests |= {f"{name}/{task}": pod for task, pod in pods_of(golden_documents(name)).items()}
    assert refusals(server, manifests) == {}
    assert server.stored("Pod") == set()
    sys.stdout.write(json.dumps({"taken": len(manifests)}) + "\n")


@pytest.mark.tfx
@pytest.mark.slow
@pytest.mark.parametrize("target", ["vertex", "kubeflow"])
@pytest.mark.parametrize("example", EXAMPLES)
def test_api_server_takes_the_pods_of_every_example(server, example, target):
    """All examples, compiled now, for both targets, with a TPU and without."""
    from pipelines.cluster.compile_kubeflow import compile_pipeline
    from pipelines.config import load_config

    taken = 0
    for more in ([], [*TPU, "kubeflow.resources.EmbeddingTrainer={cpu: 4, memory_gb: 16}"]):
        config = load_config(ROOT / example, [*BUCKET, *EXAMPLES[example], *more])
        pods = pods_of(compile_pipeline(config, target))
        assert refusals(server, pods) == {}
        taken += len(pods)
    sys.stdout.write(json.dumps({"example": example, "target": target, "pods": taken}) + "\n")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda spec: limits_of(spec).update({"google.com/tpu": "4.5"}), "integer"),
        (lambda spec: limits_of(spec).update(tpu="4"), "must be a standard resource"),
        (lambda spec: spec["tolerations"][0].update(value="present"), "value must be empty"),
        (lambda spec: spec["nodeSelector"].update({"gke tpu": "2x2"}), "nodeSelector|name part"),
        (lambda spec: spec.update(nodeSelectors={}, toleration=[{"key": "a"}]), "ignored"),
    ],
    ids=["part of a chip", "resource without domain", "value of Exists", "label's key", "unknown key"],
)
def test_api_server_refuses_a_wrong_pod_of_a_tpu(server, change, words):
    pod = slice_pods()["v5e-4"]
    assert server.dry_run(pod) == ""
    change(pod["spec"])
    assert re.search(words, server.dry_run(pod)), server.dry_run(pod)


def limits_of(spec):
    return spec["containers"][0]["resources"]["limits"]
