"""The same bytes under every Beam runner: in this process, in worker processes, and over the portable protocol.

Flink and Spark speak that last protocol; Beam's own job service stands for theirs, and the workers are in this process
(LOOPBACK), which leaves out nothing but the container that they would be in.
"""

import contextlib
import json
import socket
import subprocess
import sys
import time

import pytest

pytestmark = pytest.mark.tfx

WORKERS = {
    "in_memory": ["--runner=DirectRunner", "--direct_running_mode=in_memory"],
    "multi_processing": [
        "--runner=DirectRunner", "--direct_running_mode=multi_processing", "--direct_num_workers=2",
    ],
}  # fmt: skip


@contextlib.contextmanager
def job_service(log):
    """Beam's own job service on a free port; yields the arguments of a pipeline that runs on it."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "apache_beam.runners.portability.local_job_service_main", f"--port={port}"]
    with open(log, "w") as file, subprocess.Popen(command, stdout=file, stderr=file) as service:
        try:
            wait_for(port, service, log)
            yield ["--runner=PortableRunner", f"--job_endpoint=localhost:{port}", "--environment_type=LOOPBACK"]
        finally:
            service.terminate()


def wait_for(port, service, log):
    for _ in range(600):
        assert service.poll() is None, log.read_text()[-2000:]
        with contextlib.suppress(OSError), socket.create_connection(("localhost", port), timeout=1):
            return
        time.sleep(0.2)
    raise TimeoutError(log.read_text()[-2000:])


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """Three CSV files, with ties among counts, so that an order by chance would show."""
    folder = tmp_path_factory.mktemp("rows")
    for part in range(3):
        lines = ["user,item,price"]
        lines += [f"u{n % 37},i{n * n % 101}|i{n % 7},{n * 0.5}" for n in range(part * 200, part * 200 + 200)]
        (folder / f"part-{part}.csv").write_text("\n".join(lines) + "\n")
    return folder


def context(arguments, folder):
    from tfx.dsl.components.base.base_beam_executor import BaseBeamExecutor

    return BaseBeamExecutor.Context(beam_pipeline_args=arguments, tmp_dir=str(folder / "tmp"), unique_id="1")


def ingest(rows, folder, arguments):
    """Examples of the rows."""
    from tfx.proto import example_gen_pb2
    from tfx.types import standard_artifacts
    from tfx.utils import proto_utils

    from components.example_gen.executor import Executor

    examples = standard_artifacts.Examples()
    examples.uri = str(folder / "examples" / "1")
    pattern = example_gen_pb2.Input(splits=[{"name": "data", "pattern": "*.csv"}])
    settings = {"columns": {"user": "token", "item": "token", "price": "float"}}
    Executor(context(arguments, folder)).Do(
        {},
        {"examples": [examples]},
        {
            "input_base": str(rows),
            "input_config": proto_utils.proto_to_json(pattern),
            "data_format": "csv",
            "settings": json.dumps(settings),
        },
    )
    return examples


def count(examples, folder, arguments):
    """Digest of the vocabularies of the examples."""
    from components.artifacts import Vocabularies
    from components.vocabulary_gen.executor import Executor
    from pipelines.upkeep import read_content

    vocabularies = Vocabularies()
    vocabularies.uri = str(folder / "vocabularies" / "1")
    features = [{"name": "user", "column": {"name": "user"}}]
    features.append({"name": "item", "column": {"name": "item", "separator": "|"}})
    Executor(context(arguments, folder)).Do(
        {"examples": [examples]}, {"vocabularies": [vocabularies]}, {"features": json.dumps(features)}
    )
    return read_content(vocabularies.uri).digest


@pytest.fixture(scope="module")
def here(rows, tmp_path_factory):
    """Examples, and the digest of their vocabularies, by the runner in this process."""
    folder = tmp_path_factory.mktemp("here")
    examples = ingest(rows, folder, WORKERS["in_memory"])
    return examples, count(examples, folder, WORKERS["in_memory"])


def test_portable_runner_gives_the_same_examples_and_vocabularies(rows, here, tmp_path):
    from pipelines.upkeep import read_content

    with job_service(tmp_path / "service.log") as arguments:
        examples = ingest(rows, tmp_path, arguments)
        assert read_content(examples.uri).digest == read_content(here[0].uri).digest
        assert count(examples, tmp_path, arguments) == here[1]


def test_two_worker_processes_give_the_same_vocabularies(here, tmp_path):
    assert count(here[0], tmp_path, WORKERS["multi_processing"]) == here[1]


@pytest.mark.slow
def test_two_worker_processes_give_the_same_examples(rows, here, tmp_path):
    from pipelines.upkeep import read_content

    examples = ingest(rows, tmp_path, WORKERS["multi_processing"])
    assert read_content(examples.uri).digest == read_content(here[0].uri).digest
