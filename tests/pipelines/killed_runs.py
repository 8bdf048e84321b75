"""Runs pipelines of three nodes that share one metadata store, and kills their runs at random times.

    PYTHONPATH=tests/pipelines python -c "import killed_runs; killed_runs.main()" FOLDER PIPELINES RUNS SEED

prints a JSON object: the number of runs, how many of them were killed, how many pipelines failed, and the counts of
`found_amiss` after a last, undisturbed run of each pipeline.
"""

import contextlib
import json
import os
import random
import signal
import sys
import time
from pathlib import Path
from types import SimpleNamespace

from ml_metadata.proto import metadata_store_pb2 as mlmd
from tfx import v1 as tfx

from components import Vocabularies, compat
from pipelines.local.metadata_repair import repair_metadata
from pipelines.local.runner import ReportingDagRunner
from pipelines.local.work_dir import run_lock
from pipelines.pipeline.run_target import metadata_connection

PARTS = 5
STORE = os.environ.get("SHARED_STORE")  # address of a server; without one, a sqlite file


def write_slowly(uri, text):
    """Write a file in parts, so that many kills leave it incomplete."""
    os.makedirs(uri, exist_ok=True)
    with open(os.path.join(uri, "text"), "w") as file:
        for _ in range(PARTS):
            file.write(f"{text}\n")
            file.flush()
            time.sleep(0.02)


@tfx.dsl.components.component
def First(made: tfx.dsl.components.OutputArtifact[Vocabularies], text: tfx.dsl.components.Parameter[str]):  # noqa: N802
    write_slowly(made.uri, text)


@tfx.dsl.components.component
def Second(  # noqa: N802
    read: tfx.dsl.components.InputArtifact[Vocabularies], made: tfx.dsl.components.OutputArtifact[Vocabularies]
):
    write_slowly(made.uri, Path(read.uri, "text").read_text().splitlines()[0])


@tfx.dsl.components.component
def Third(  # noqa: N802
    read: tfx.dsl.components.InputArtifact[Vocabularies], made: tfx.dsl.components.OutputArtifact[Vocabularies]
):
    write_slowly(made.uri, Path(read.uri, "text").read_text().splitlines()[0])


def config_of(folder, number):
    name = f"pipeline-{number}"
    return SimpleNamespace(
        name=name, work_dir=f"{folder}/{name}", metadata_path=STORE or f"{folder}/shared.sqlite", permissions="owner"
    )


def connection(config):
    return metadata_connection(config.metadata_path)


def run_once(config, run):
    """Run the pipeline. Every second run has the inputs of the previous one, so that its nodes may be cached."""
    with run_lock(config), compat.metadata.Metadata(connection(config)) as handle:
        repair_metadata(handle.store, config.name, f"{config.work_dir}/artifacts")
        first = First(text=f"{config.name} {run // 2}")
        second = Second(read=first.outputs["made"])
        nodes = [first, second, Third(read=second.outputs["made"])]
        pipeline = tfx.dsl.Pipeline(
            config.name, f"{config.work_dir}/artifacts", components=nodes, enable_cache=True,
            metadata_connection_config=connection(config),
        )  # fmt: skip
        ReportingDagRunner(lambda _: None).run(pipeline)


def run_or_be_killed(config, run, chance):
    """Run the pipeline in a child process, usually with a kill after a random time; return whether it was killed."""
    child = os.fork()
    if child == 0:
        try:
            run_once(config, run)
            os._exit(0)
        except BaseException as error:
            sys.stderr.write(f"{config.name} run {run}: {error!r}\n")
            os._exit(1)
    end = time.monotonic() + chance.uniform(0.05, 1.5) if chance.random() < 0.7 else None
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            break
        if end is not None and time.monotonic() > end:
            os.kill(child, signal.SIGKILL)
            end = None
        time.sleep(0.005)
    if not os.WIFSIGNALED(status) and os.WEXITSTATUS(status):
        raise RuntimeError(f"{config.name}, run {run}: ended with {status}")
    return os.WIFSIGNALED(status)


def drive(folder, number, runs, seed):
    chance = random.Random(seed * 1000 + number)
    killed = [run_or_be_killed(config_of(folder, number), run, chance) for run in range(runs)]
    run_once(config_of(folder, number), runs)
    Path(folder, f"killed-{number}.json").write_text(json.dumps(sum(killed)))


def found_amiss(folder, pipelines):
    """Count the LIVE artifacts of the pipelines (`live`) and errors in the store.

    Errors are incomplete LIVE artifacts (`half`), LIVE artifacts with the text of another pipeline (`mixed`), and
    executions that are still open although nothing runs (`stale`).
    """
    amiss = {"half": 0, "mixed": 0, "stale": 0, "live": 0}
    with compat.metadata.Metadata(connection(config_of(folder, 0))) as handle:
        for number in range(pipelines):
            name = f"pipeline-{number}"
            context = handle.store.get_context_by_type_and_name("pipeline", name)
            for artifact in handle.store.get_artifacts_by_context(context.id):
                if artifact.state == mlmd.Artifact.LIVE:
                    amiss["live"] += 1
                    lines = Path(artifact.uri, "text").read_text().splitlines()
                    amiss["half"] += len(lines) != PARTS or len(set(lines)) != 1
                    amiss["mixed"] += not lines[0].startswith(f"{name} ")
        open_states = (mlmd.Execution.NEW, mlmd.Execution.RUNNING)
        amiss["stale"] = sum(execution.last_known_state in open_states for execution in handle.store.get_executions())
    return amiss


def main():
    folder, pipelines, runs, seed = sys.argv[1], *map(int, sys.argv[2:5])
    drivers = []
    for number in range(pipelines):
        child = os.fork()
        if child == 0:
            code = 1
            with contextlib.suppress(Exception):
                drive(folder, number, runs, seed)
                code = 0
            os._exit(code)
        drivers.append(child)
    failed = sum(bool(os.waitpid(child, 0)[1]) for child in drivers)
    killed = sum(json.loads(path.read_text()) for path in Path(folder).glob("killed-*.json"))
    report = {"failed": failed, "killed": killed, "runs": pipelines * runs, **found_amiss(folder, pipelines)}
    sys.stdout.write(json.dumps(report) + "\n")
