"""Tests Triton on pushed versions: they appear, are loaded and go, and every answer is that of a version."""

import os

os.environ["TF_USE_LEGACY_KERAS"] = "1"

import subprocess

import pytest
from code_blocks import block_with

from components.triton.triton_model import write_triton_model
from tests.servers.campaign import Models, ask_while_versions_change
from tests.servers.real_servers import NEEDS_SERVERS, PYTHON, answers, backends, triton

pytestmark = [NEEDS_SERVERS, pytest.mark.timeout(7200)]


@pytest.mark.parametrize("requests", [20_000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_load_on_triton_during_pushes_rollbacks_and_keep_last(tmp_path, requests):
    """Each answer is, to the bit, that of the version that it names; none fails."""
    models, log = Models(tmp_path), tmp_path / "triton.log"
    write_triton_model(models.base, "serving_default", backends(tmp_path / "backends"))

    def is_served(version):
        return answers(f"http://127.0.0.1:{http}/v2/models/taxi/versions/{version}/ready")

    with triton(models.base.parent, tmp_path / "backends", log) as (http, grpc):
        servers = f"kserve-v2-http={http},kserve-v2-grpc={grpc}"
        ask_while_versions_change(models, servers, is_served, log, requests)
        assert not is_served(min(map(int, models.expected))), "a version that was removed is served"


def test_client_of_the_page_gets_the_answer_of_the_version(tmp_path):
    """The Python of docs/serving.md, in the client's environment; models of these tests have no probability."""
    models = Models(tmp_path, count=1)
    write_triton_model(models.base, "serving_default", backends(tmp_path / "backends"))
    block = block_with("docs/serving.md", "tritonclient").text
    (tmp_path / "row").write_bytes(models.batches[0][0])
    (tmp_path / "example.py").write_text(
        f"def SerializeToString():\n    return open({str(tmp_path / 'row')!r}, 'rb').read()\n"
    )
    with triton(models.base.parent, tmp_path / "backends", tmp_path / "log") as (http, _):
        program = "import example\nimport numpy as np\n" + block.replace("localhost:8000", f"localhost:{http}")
        program += "\nprint(answer.get_response()['model_version'], answer.as_numpy('logit').tobytes().hex())"
        done = subprocess.run([PYTHON, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    ((version, logits),) = models.expected.items()
    assert done.stdout.split() == [version, logits[0]], done.stderr[-2000:]
