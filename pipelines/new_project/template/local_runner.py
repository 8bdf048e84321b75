"""Runs the pipeline {{PIPELINE_NAME}} on this machine, as `tfx-embeddings run pipeline.yaml` does.

Arguments are those of that command: python local_runner.py --set training.epochs=1
"""

import sys
from pathlib import Path

from pipelines.commands.cli import main

if __name__ == "__main__":
    main(["run", str(Path(__file__).with_name("pipeline.yaml")), *sys.argv[1:]])
