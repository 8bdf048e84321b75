"""Compiles the examples, and compares what was compiled with golden files, which REFRESH_GOLDEN=1 rewrites."""

import os
import re
from pathlib import Path

import yaml

from pipelines.config import load_config

ROOT = Path(__file__).parents[3]
TAXI_FILE, RETAIL_FILE = "pipelines/examples/taxi.yaml", "examples/online_retail/online_retail.yaml"
ADDRESSES = [
    "kubeflow.image=example-docker.pkg.dev/project/repository/tfx-embeddings:0.1.0",
    "kubeflow.pipeline_root=gs://example-bucket/root",
    "push.destination=gs://example-bucket/serving",
]
TAXI = [TAXI_FILE, [*ADDRESSES, "data.path=gs://example-bucket/taxi/data.csv"]]
JOB = ["kubeflow.project=example-project", "kubeflow.region=us-west4"]


def compiled(example, overrides, more, target):
    from pipelines.cluster.compile_kubeflow import compile_pipeline

    return compile_pipeline(load_config(ROOT / example, [*overrides, *more]), target)


def save_demo(path, target):
    """Compile the demo with addresses that nobody reads, and write it."""
    from pipelines.cluster.compile_kubeflow import save_documents

    addresses = [
        "data.path=gs://bucket/data.csv",
        "push.destination=gs://bucket/serving",
        "kubeflow={image: none, pipeline_root: gs://bucket/root}",
    ]
    save_documents(compiled(TAXI_FILE, addresses, [], target), path)


def assert_golden(documents, golden, folder):
    """Golden files have `<digest>` for digests, which change with our sources, and `<version>` for TFX's."""
    from pipelines.cluster.compile_kubeflow import save_documents

    save_documents(documents, folder / "pipeline.yaml")
    text = re.sub(r"\b[0-9a-f]{16,64}\b", "<digest>", (folder / "pipeline.yaml").read_text())
    text = re.sub(r"(?<=^sdkVersion: tfx-)[\d.]+$", "<version>", text, flags=re.MULTILINE)
    if os.environ.get("REFRESH_GOLDEN"):
        golden.write_text(text)
    assert list(yaml.safe_load_all(text))
    assert text == golden.read_text(), (
        "`REFRESH_GOLDEN=1 .venv/bin/pytest tests/pipelines -k golden` writes the files again"
    )


def assert_specification_of_kfp(document):
    from google.protobuf import json_format
    from kfp.pipeline_spec import pipeline_spec_pb2

    spec = json_format.ParseDict(document, pipeline_spec_pb2.PipelineSpec())
    deployment = json_format.ParseDict(document["deploymentSpec"], pipeline_spec_pb2.PipelineDeploymentConfig())
    assert spec.schema_version == "2.1.0"
    assert not any(executor.WhichOneof("spec") == "resolver" for executor in deployment.executors.values())
