"""Runs the demo with its root, its pushed versions and its checkpoints below an address.

    python -m tests.object_stores.demo_run gs://bucket FOLDER [KEY=VALUE]...

prints the versions that verify, what is wrong with others, and the checkpoints. Only ML Metadata is in the folder.
"""

import dataclasses
import json
import sys
from pathlib import Path

import tensorflow as tf

from pipelines.config import load_config
from pipelines.local.runner import ReportingDagRunner
from pipelines.pipeline.embedding_pipeline import create_pipeline
from pipelines.pipeline.run_target import local_target
from tests.object_stores.killed_pushes import look

TAXI = Path(__file__).parents[2] / "pipelines/examples/taxi.yaml"


def main(address, folder, *overrides):
    config = load_config(TAXI, [f"work_dir={folder}", f"push.destination={address}/served", *overrides])
    target = dataclasses.replace(local_target(config), root=f"{address}/artifacts", resume_dir=f"{address}/resume")
    ReportingDagRunner(lambda run: sys.stderr.write(f"{run.node} {run.state}\n")).run(
        create_pipeline(config, target=target)
    )
    whole, wrong = look(f"{address}/served")
    checkpoints = tf.io.gfile.glob(f"{address}/artifacts/CheckpointRetriever/embedding_checkpoint/*/manifest.json")
    sys.stdout.write(json.dumps({"whole": whole, "wrong": wrong, "checkpoints": checkpoints}) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
