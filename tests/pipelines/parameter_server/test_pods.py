"""Tests pipelines that are compiled for a cluster of parameter servers; see `tests/pipelines/cluster`."""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from embedding_core.errors import ConfigError
from pipelines.config import load_config
from tests.pipelines.cluster.compiled_examples import (
    JOB,
    ROOT,
    TAXI,
    TAXI_FILE,
    assert_golden,
    assert_specification_of_kfp,
    compiled,
)

pytestmark = pytest.mark.tfx

GOLDEN = Path(__file__).parent / "golden"
CLUSTER = ["training.strategy=parameter_server", "kubeflow.cluster={workers: 4, servers: 2, server: {memory_gb: 64}}"]


@pytest.mark.parametrize(("target", "more"), [("vertex", [*CLUSTER, *JOB]), ("kubeflow", CLUSTER)])
def test_compiled_pipeline_is_its_golden_file(target, more, tmp_path):
    documents = compiled(*TAXI, more, target)
    assert_golden(documents, GOLDEN / f"taxi_{target}_servers.yaml", tmp_path)
    assert_specification_of_kfp(documents[0])


def test_pods_of_a_cluster_are_their_golden_file(tmp_path):
    from pipelines.cluster.compile_kubeflow import compile_cluster

    pods = compile_cluster(load_config(ROOT / TAXI_FILE, [*TAXI[1], *CLUSTER]))
    assert_golden(pods, GOLDEN / "pods" / "taxi.yaml", tmp_path)


@pytest.mark.parametrize("kind", ["worker", "ps"])
def test_a_pod_finds_its_number_in_its_name(kind):
    """The shell of the image runs the command; `python` prints what it would get."""
    from pipelines.cluster.compile_kubeflow import compile_cluster

    pods = compile_cluster(load_config(ROOT / TAXI_FILE, [*TAXI[1], *CLUSTER]))
    pod = next(
        manifest
        for manifest in pods
        if manifest["kind"] == "StatefulSet" and manifest["metadata"]["name"] == f"taxi-{kind}"
    )
    (container,) = pod["spec"]["template"]["spec"]["containers"]
    shell, flag, script = container["command"]
    env = {variable["name"]: variable["value"] for variable in container["env"]} | {"HOSTNAME": f"taxi-{kind}-1"}
    printed = subprocess.run(
        [shell, flag, script.partition("exec")[0] + 'printf %s "$TF_CONFIG"'],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    given = json.loads(printed)
    assert given["task"] == {"type": kind, "index": 1}
    assert given["cluster"]["chief"] == ["taxi-chief:2222"]
    assert given["cluster"][kind][1] == f"taxi-{kind}-1.taxi-{kind}:2222"


@pytest.mark.parametrize(
    ("more", "target", "message"),
    [
        (CLUSTER[:1], "kubeflow", "`kubeflow.cluster` is null"),
        (CLUSTER[1:], "kubeflow", "`kubeflow.cluster` is given"),
        (CLUSTER, "vertex", "`kubeflow.project` is null: a training job on a cluster"),
        ([*CLUSTER, "name=1taxi"], "kubeflow", "it must begin with a letter there"),
        ([*CLUSTER, f"name={'x' * 46}"], "kubeflow", "have at most 45 characters; give another name"),
    ],
)
def test_cluster_that_cannot_be_is_refused(more, target, message):
    from pipelines.cluster.compile_checks import check_compile

    with pytest.raises(ConfigError, match=re.escape(message)):
        check_compile(load_config(ROOT / TAXI_FILE, [*TAXI[1], *more]), target)
