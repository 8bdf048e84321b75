"""The same bytes under every Beam runner: in this process, in worker processes, over the portable protocol, on Dask.

Flink and Spark use the portable protocol. Here Beam's own job service replaces theirs, and the workers are in this
process (LOOPBACK), so only the containers of the workers are not tested. The workers of Dask are in this process too;
tests/pipelines/dask/test_dask_cluster.py has them in processes of their own.
"""

import contextlib
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


def ingest(rows, folder, arguments):
    """Run ExampleGen's executor over the rows; return the examples."""
    from tfx.dsl.components.base.base_beam_executor import BaseBeamExecutor
    from tfx.types import standard_artifacts

    from components.example_gen import ExampleGen
    from components.example_gen.settings import Settings
    from tests.support.artifacts import artifact

    columns = {"user": "token", "item": "token", "price": "float"}
    component = ExampleGen(str(rows), "*.csv", "csv", Settings(columns=columns))
    examples = artifact(standard_artifacts.Examples, folder / "examples" / "1", made=False)
    context = BaseBeamExecutor.Context(beam_pipeline_args=arguments, tmp_dir=str(folder / "tmp"), unique_id="1")
    executor = component.executor_spec.executor_class(context)
    executor.Do({}, {"examples": [examples]}, component.exec_properties)
    return examples


PARTS = {"user": {"parts": 3}, "item": {"parts": 16}}


def count(examples, folder, arguments, rules=None):
    """Run VocabularyGen's executor over the examples; return the digest of the vocabularies."""
    from pipelines.local.metadata_repair import read_content
    from tests.support import vocabulary_runs

    features = [vocabulary_runs.feature("user"), vocabulary_runs.feature("item", separator="|")]
    folder.mkdir(exist_ok=True)
    made, _ = vocabulary_runs.count(
        folder, features, out="vocabularies", examples=examples, rules=rules, beam=arguments
    )
    assert not (folder / "vocabularies" / "parts").exists()
    return read_content(made.uri).digest


@pytest.fixture(scope="module")
def here(rows, tmp_path_factory):
    """Return the examples, and the digest of their vocabularies, that the in-process runner makes."""
    folder = tmp_path_factory.mktemp("here")
    examples = ingest(rows, folder, WORKERS["in_memory"])
    return examples, count(examples, folder, WORKERS["in_memory"])


def test_portable_runner_gives_same_examples_and_vocabularies(rows, here, tmp_path):
    from pipelines.local.metadata_repair import read_content

    with job_service(tmp_path / "service.log") as arguments:
        examples = ingest(rows, tmp_path, arguments)
        assert read_content(examples.uri).digest == read_content(here[0].uri).digest
        assert count(examples, tmp_path, arguments, PARTS) == here[1]


@pytest.mark.slow
def test_worker_processes_give_same_examples_and_vocabularies(rows, here, tmp_path):
    from pipelines.local.metadata_repair import read_content

    examples = ingest(rows, tmp_path, WORKERS["multi_processing"])
    assert read_content(examples.uri).digest == read_content(here[0].uri).digest
    assert count(examples, tmp_path, WORKERS["multi_processing"]) == here[1]
    assert count(examples, tmp_path / "parts", WORKERS["multi_processing"], PARTS) == here[1]


@pytest.mark.slow
@pytest.mark.room("dask")
def test_dask_gives_the_same_examples_and_vocabularies(rows, here, tmp_path):
    import distributed

    from pipelines.local.metadata_repair import read_content

    (runner,) = hooks("pipelines", "beam_runner")
    local = {"processes": False, "threads_per_worker": 1, "protocol": "tcp", "dashboard_address": None}
    with distributed.LocalCluster(n_workers=2, **local) as cluster:
        arguments = [*runner.on_dask(cluster.scheduler_address)]
        examples = ingest(rows, tmp_path, arguments)
        assert read_content(examples.uri).digest == read_content(here[0].uri).digest
        assert count(examples, tmp_path, arguments) == here[1]
        assert count(examples, tmp_path / "parts", arguments, PARTS) == here[1]


def test_thresholds_for_parts_are_those_of_the_whole_vocabulary(here, tmp_path):
    rules = {"min_count": 2, "max_size": 20}
    whole_rules, other = (
        {"item": {**rules, "parts": parts}, "user": {"parts": parts, "max_size": 5}} for parts in (1, 4)
    )
    whole = count(here[0], tmp_path / "whole", WORKERS["in_memory"], whole_rules)
    assert count(here[0], tmp_path / "parts", WORKERS["in_memory"], other) == whole
    said = []
    for parts in (1, 4):
        too_many = {"item": {"parts": parts, "min_count": 99999}}
        with pytest.raises(ConfigError, match="leave no token: the most frequent of its") as error:
            count(here[0], tmp_path / f"none{parts}", WORKERS["in_memory"], too_many)
        said.append(str(error.value))
    assert said[0] == said[1]
