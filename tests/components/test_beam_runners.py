"""The same bytes under every Beam runner: in this process, in worker processes, over the portable protocol, on Dask.

Flink and Spark use the portable protocol. Here Beam's own job service replaces theirs, and the workers are in this
process (LOOPBACK), so only the containers of the workers are not tested. The workers of Dask are in this process too;
tests/pipelines/dask/test_dask_cluster.py has them in processes of their own.
"""

import contextlib
import json
import socket
import subprocess
import sys
import time

import pytest

from embedding_core.errors import ConfigError
from embedding_core.rooms import hooks
from pipelines.pipeline.run_target import IN_PROCESS, NO_CONTAINER

pytestmark = pytest.mark.tfx

WORKERS = {
    "in_memory": [*IN_PROCESS],
    "multi_processing": [*IN_PROCESS, "--direct_running_mode=multi_processing", "--direct_num_workers=2"],
}


@contextlib.contextmanager
def job_service(log):
    """Run Beam's own job service on a free port; yield the pipeline arguments that select it."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "apache_beam.runners.portability.local_job_service_main", f"--port={port}"]
    with open(log, "w") as file, subprocess.Popen(command, stdout=file, stderr=file) as service:
        try:
            wait_for(port, service, log)
            address = f"--job_endpoint=localhost:{port}"
            yield ["--runner=PortableRunner", address, "--environment_type=LOOPBACK", NO_CONTAINER]
        finally:
            service.terminate()


def wait_for(port, service, log):
    while True:  # as long as it starts
        assert service.poll() is None, log.read_text()[-2000:]
        with contextlib.suppress(OSError), socket.create_connection(("localhost", port), timeout=1):
            return
        time.sleep(0.2)


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """Write three CSV files in which tokens have equal counts, so that a nondeterministic order would show."""
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
    """Run ExampleGen's executor over the rows; return the examples."""
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


PARTS = {"user": {"parts": 3}, "item": {"parts": 16}}


def count(examples, folder, arguments, rules=None):
    """Run VocabularyGen's executor over the examples; return the digest of the vocabularies."""
    from components.artifacts import Vocabularies
    from components.vocabulary_gen.executor import Executor
    from pipelines.local.content import read_content

    vocabularies = Vocabularies()
    vocabularies.uri = str(folder / "vocabularies" / "1")
    features = [{"name": "user", "column": {"name": "user"}}]
    features.append({"name": "item", "column": {"name": "item", "separator": "|"}})
    Executor(context(arguments, folder)).Do(
        {"examples": [examples]},
        {"vocabularies": [vocabularies]},
        {"features": json.dumps(features), "vocabulary_rules": json.dumps(rules or {})},
    )
    assert not (folder / "vocabularies" / "1" / "parts").exists()
    return read_content(vocabularies.uri).digest


@pytest.fixture(scope="module")
def here(rows, tmp_path_factory):
    """Return the examples, and the digest of their vocabularies, that the in-process runner makes."""
    folder = tmp_path_factory.mktemp("here")
    examples = ingest(rows, folder, WORKERS["in_memory"])
    return examples, count(examples, folder, WORKERS["in_memory"])


def test_portable_runner_gives_same_examples_and_vocabularies(rows, here, tmp_path):
    from pipelines.local.content import read_content

    with job_service(tmp_path / "service.log") as arguments:
        examples = ingest(rows, tmp_path, arguments)
        assert read_content(examples.uri).digest == read_content(here[0].uri).digest
        assert count(examples, tmp_path, arguments) == here[1]
        assert count(examples, tmp_path / "parts", arguments, PARTS) == here[1]


@pytest.mark.room("dask")
def test_dask_gives_the_same_examples_and_vocabularies(rows, here, tmp_path):
    import distributed

    from pipelines.local.content import read_content

    (runner,) = hooks("pipelines", "beam_runner")
    local = {"processes": False, "threads_per_worker": 1, "protocol": "tcp", "dashboard_address": None}
    with distributed.LocalCluster(n_workers=2, **local) as cluster:
        arguments = [*runner.on_dask(cluster.scheduler_address)]
        examples = ingest(rows, tmp_path, arguments)
        assert read_content(examples.uri).digest == read_content(here[0].uri).digest
        assert count(examples, tmp_path, arguments) == here[1]
        assert count(examples, tmp_path / "parts", arguments, PARTS) == here[1]


def test_two_worker_processes_give_the_same_vocabularies(here, tmp_path):
    assert count(here[0], tmp_path, WORKERS["multi_processing"]) == here[1]


@pytest.mark.parametrize("workers", ["in_memory", pytest.param("multi_processing", marks=pytest.mark.slow)])
def test_vocabularies_merged_out_of_parts_have_the_same_bytes(here, tmp_path, workers):
    assert count(here[0], tmp_path, WORKERS[workers], PARTS) == here[1]


def test_thresholds_for_parts_are_those_of_the_whole_vocabulary(here, tmp_path):
    rules = {"min_count": 2, "max_size": 20}
    one, other = ({"item": {**rules, "parts": parts}, "user": {"parts": parts, "max_size": 5}} for parts in (1, 4))
    whole = count(here[0], tmp_path / "whole", WORKERS["in_memory"], one)
    assert count(here[0], tmp_path / "parts", WORKERS["in_memory"], other) == whole
    said = []
    for parts in (1, 4):
        with pytest.raises(ConfigError, match="leave no token: the most frequent of its") as error:
            count(
                here[0], tmp_path / f"none{parts}", WORKERS["in_memory"], {"item": {"parts": parts, "min_count": 99999}}
            )
        said.append(str(error.value))
    assert said[0] == said[1]


@pytest.mark.slow
def test_two_worker_processes_give_the_same_examples(rows, here, tmp_path):
    from pipelines.local.content import read_content

    examples = ingest(rows, tmp_path, WORKERS["multi_processing"])
    assert read_content(examples.uri).digest == read_content(here[0].uri).digest
