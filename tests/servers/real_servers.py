"""Starts the model servers of the environment `.servers` on loopback, and ends them; for tests.

The campaign `servers` makes the environment from `requirements.txt` beside this file.
"""

import contextlib
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ENVIRONMENT = HERE.parents[1] / ".servers"
PYTHON = ENVIRONMENT / "bin/python"
NEEDS_SERVERS = pytest.mark.skipif(
    not (ENVIRONMENT / ".ready").exists(), reason="no model servers: make campaign NAME=servers (1.5 GB)"
)
# A server of the tests talks to nobody else, and sees no GPU.
QUIET = {"CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "2", "NO_PROXY": "*"}


def free_ports(count):
    """Return ports of loopback that nobody listens on."""
    with contextlib.ExitStack() as open_sockets:
        found = [open_sockets.enter_context(socket.socket()) for _ in range(count)]
        for connection in found:
            connection.bind(("127.0.0.1", 0))
        return [connection.getsockname()[1] for connection in found]


@contextlib.contextmanager
def running(command, *, environment, log, ready, trusted=None, timeout=240.0):
    """Run a server in a process group of its own until the block ends.

    Args:
      ready: address or request that is answered with status 200 as soon as the server serves.
      trusted: file of the certificate that the server makes, if it serves by https.
    """
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            env={**os.environ, **QUIET, **environment},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            wait_until(lambda: process.poll() is not None or answers(ready, trusted), timeout, log)
            assert process.poll() is None, log.read_text(errors="replace")[-3000:]
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(60)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def answers(address, trusted=None):
    """Return whether the address answers with status 200."""
    try:
        tls = ssl.create_default_context(cafile=str(trusted)) if trusted else None
        with urllib.request.urlopen(address, timeout=5, context=tls) as found:
            return found.status == 200
    except OSError:
        return False


def wait_until(happened, timeout, log):
    """Wait until a function returns true, and fail with the end of the log if it does not."""
    end = time.monotonic() + timeout
    while not happened():
        assert time.monotonic() < end, log.read_text(errors="replace")[-3000:]
        time.sleep(0.1)


def backends(folder):
    """Make a folder of Triton's backends: its Python backend, with the program that runs our Python."""
    wheel = Path(_site_packages(), "pytriton/tritonserver")
    python = Path(folder, "python")
    shutil.copytree(wheel / "backends/python", python)
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    shutil.copy(wheel / "python_backend_stubs" / version / "triton_python_backend_stub", python)
    return Path(folder)


def _site_packages():
    return next((ENVIRONMENT / "lib").glob("python3*/site-packages"))


@contextlib.contextmanager
def triton(repository, backend_folder, log):
    """Serve a model repository with Triton, which looks for new versions each second; yield the HTTP and gRPC ports."""
    packages, prefix = _site_packages(), sys.base_prefix
    http, grpc = free_ports(2)
    environment = {
        "LD_LIBRARY_PATH": f"{prefix}/lib:{packages}/nvidia_pytriton.libs",
        "PYTHONHOME": prefix,
        "PYTHONPATH": str(packages),
    }
    command = [
        packages / "pytriton/tritonserver/bin/tritonserver",
        f"--model-repository={repository}",
        f"--backend-directory={backend_folder}",
        "--model-control-mode=poll",
        "--repository-poll-secs=1",
        "--http-address=127.0.0.1",
        f"--http-port={http}",
        "--grpc-address=127.0.0.1",
        f"--grpc-port={grpc}",
        "--allow-metrics=false",
        "--allow-sagemaker=false",
        "--allow-vertex-ai=false",
    ]
    ready = f"http://127.0.0.1:{http}/v2/health/ready"
    with running(command, environment=environment, log=log, ready=ready):
        yield http, grpc
