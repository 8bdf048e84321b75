"""Writes `kfp_platform.json`: the schema of the second document of a pipeline, as Kubeflow Pipelines publishes it.

    uv run --no-project --with kfp-kubernetes==2.17.0 python tests/kube_check/write_kfp_schema.py

The source is the package kfp-kubernetes (Apache-2.0), whose releases with tolerations need a newer kfp than TFX does.
"""

import json
from pathlib import Path

from google.protobuf import descriptor_pb2, json_format
from kfp.kubernetes import kubernetes_executor_config_pb2

file = descriptor_pb2.FileDescriptorProto()
kubernetes_executor_config_pb2.DESCRIPTOR.CopyToProto(file)
text = json.dumps(json_format.MessageToDict(file), separators=(",", ":"), sort_keys=True)
Path(__file__).with_name("kfp_platform.json").write_text(text + "\n")
