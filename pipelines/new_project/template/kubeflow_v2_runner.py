"""Compiles the pipeline {{PIPELINE_NAME}} for Vertex AI, or for Kubeflow Pipelines with `--target kubeflow`.

The cluster needs addresses that every machine reaches, in pipeline.yaml or as arguments:

    python kubeflow_v2_runner.py --set data.path=gs://bucket/data.csv --set push.destination=gs://bucket/serving
        --set 'kubeflow={image: REGISTRY/tfx-embeddings:0.2.0, pipeline_root: gs://bucket/root}'
"""

import sys
from pathlib import Path

from pipelines.commands.cli import main

if __name__ == "__main__":
    config = Path(__file__).with_name("pipeline.yaml")
    given = sys.argv[1:] if "--target" in sys.argv else ["--target", "vertex", *sys.argv[1:]]
    main(["compile", str(config), "--out", str(config.with_name("{{PIPELINE_NAME}}_pipeline.yaml")), *given])
