"""Tests KServe's model server with the predictor of `examples/kserve`, over TensorFlow Serving's REST form."""

import os

os.environ["TF_USE_LEGACY_KERAS"] = "1"

import base64
import json
import subprocess
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.servers.campaign import Models, ask_while_versions_change
from tests.servers.real_servers import HERE, NEEDS_SERVERS, PYTHON, free_ports, running

pytestmark = [NEEDS_SERVERS, pytest.mark.timeout(7200)]
MANIFEST = Path(__file__).parents[2] / "kubeflow/serving/kserve.yaml"
# Prints the keys of the manifest that the classes of KServe's API do not have: none, and then the planted one.
UNKNOWN_KEYS = """
import sys, kserve, yaml
def unknown(given, kind):
    names = {key: one for one, key in kind.attribute_map.items()}
    for key, value in given.items():
        part = getattr(kserve.models, kind.openapi_types[names[key]], None) if key in names else None
        yield from [] if key in names else [key]
        yield from unknown(value, part) if part else []
given = yaml.safe_load(open(sys.argv[1]))
print(*unknown(given, kserve.V1beta1InferenceService))
given["spec"]["predictor"]["model"]["format"] = 1
print(*unknown(given, kserve.V1beta1InferenceService))
"""


def predict(port, body):
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/models/taxi:predict",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return 200, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


@pytest.mark.parametrize("requests", [3000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_load_on_kserve_during_pushes_rollbacks_and_keep_last(tmp_path, requests):
    """Each answer is, to the bit, that of the version that it names; none fails; a wrong request is a clear error."""
    models, log, (port,) = Models(tmp_path), tmp_path / "kserve.log", free_ports(1)
    row = {"b64": base64.b64encode(models.batches[0][0]).decode()}

    def is_served(version):
        return predict(port, {"instances": [row]})[1].get("model_version") == str(version)

    command = [PYTHON, HERE / "kserve_on_loopback.py", models.base, "taxi", str(port)]
    with running(command, environment={}, log=log, ready=f"http://127.0.0.1:{port}/v2/models/taxi/ready"):
        assert predict(port, {"instances": []})[0] == 400
        status, answer = predict(port, {"instances": [row], "signature_name": "nothing"})
        assert (status, "has no signature 'nothing'" in answer["error"]) == (400, True)
        ask_while_versions_change(models, f"rest-v1={port}", is_served, log, requests)


def test_manifest_of_kserve_has_only_keys_of_its_api():
    command = [PYTHON, "-c", UNKNOWN_KEYS, MANIFEST]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.stdout.splitlines() == ["", "format"], done.stderr[-2000:]
