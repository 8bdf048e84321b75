import json
import socket
import subprocess
import sys

import pytest
import tensorflow as tf

from embedding_core import rooms
from embedding_core.errors import ConfigError
from embedding_core.parameter_server import worker
from embedding_core.parameter_server.strategy import cluster_task
from embedding_core.training import TrainingConfig
from embedding_core.training.device_choice import choose_placement

CLUSTER = {"chief": ["10.0.0.1:2222"], "worker": ["10.0.0.2:2222"], "ps": ["10.0.0.3:2222"]}
CHIEF = {"type": "chief", "index": 0}


def without(kind):
    return {other: addresses for other, addresses in CLUSTER.items() if other != kind}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (None, "TF_CONFIG names no cluster"),
        ({"cluster": {}, "task": CHIEF}, "TF_CONFIG names no cluster"),
        ("{", "TF_CONFIG is not JSON"),
        ({"cluster": without("worker"), "task": CHIEF}, "has no worker"),
        ({"cluster": without("ps"), "task": CHIEF}, "has no parameter server"),
        ({"cluster": without("chief"), "task": {"type": "worker", "index": 0}}, "has 0 tasks under 'chief'"),
        ({"cluster": {**CLUSTER, "chief": ["a:1", "b:1"]}, "task": CHIEF}, "has 2 tasks under 'chief'"),
        ({"cluster": {**CLUSTER, "master": ["a:1"]}, "task": CHIEF}, "has 'master'"),
        ({"cluster": {**CLUSTER, "ps": "10.0.0.3:2222"}, "task": CHIEF}, "write lists of host:port"),
        ({"cluster": {**CLUSTER, "ps": ["10.0.0.3:99999"]}, "task": CHIEF}, "with ports from 1 to 65535"),
        ({"cluster": {**CLUSTER, "ps": ["10.0.0.3:abc"]}, "task": CHIEF}, "with ports from 1 to 65535"),
        ([], "TF_CONFIG is '[]': write an object"),
        ({"cluster": CLUSTER, "task": {"type": ["chief"], "index": 0}}, "`type` must be one of chief, ps, worker"),
        ({"cluster": CLUSTER, "task": {"type": "chief", "index": False}}, "`task.index` of TF_CONFIG is False"),
        ({"cluster": CLUSTER}, "`type` must be one of chief, ps, worker"),
        ({"cluster": CLUSTER, "task": {"type": "worker", "index": 1}}, "`task.index` of TF_CONFIG is 1"),
        ({"cluster": CLUSTER, "task": {"type": "ps", "index": 0}}, "TF_CONFIG's task is 'ps', but only the chief"),
    ],
)
def test_training_refuses_a_tf_config(monkeypatch, given, message):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    if given is not None:
        monkeypatch.setenv("TF_CONFIG", given if isinstance(given, str) else json.dumps(given))
    with pytest.raises(ConfigError) as error:
        choose_placement(TrainingConfig(strategy="parameter_server"))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_tasks_know_whether_they_serve(monkeypatch):
    served = {}
    for kind in CLUSTER:
        monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": CLUSTER, "task": {"type": kind, "index": 0}}))
        served[kind] = cluster_task().serves
    assert served == {"chief": False, "worker": True, "ps": True}


def test_server_of_a_chief_ends_with_one_line(monkeypatch, capsys):
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": CLUSTER, "task": CHIEF}))
    assert worker.main() == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "TF_CONFIG names 'chief' as this process' task" in line


def test_port_in_use_ends_with_one_line(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        task = {"type": "worker", "index": 0}
        monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": {**CLUSTER, "worker": [address]}, "task": task}))
        command = [sys.executable, "-m", "embedding_core.parameter_server.worker"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert f"worker 0 of TF_CONFIG cannot listen at {address}" in done.stderr.splitlines()[-1]


def test_without_the_room_its_strategy_and_keys_are_refused(monkeypatch):
    monkeypatch.setattr(rooms, "is_installed", lambda room: False)
    for name in ("cluster", "strategy=parameter_server", tf.distribute.ParameterServerStrategy.__name__):
        assert rooms.room_of(name) == "parameter_server"


def test_parameter_servers_have_no_topology():
    with pytest.raises(ConfigError, match="`strategy` is 'parameter_server': leave out one"):
        TrainingConfig(strategy="parameter_server", topology="v3-8")
