"""Collects what the project gives to Kubernetes: the pods of compiled pipelines, and the manifests in `kubeflow/`.

A compiled pipeline has containers, not pods. Kubeflow Pipelines' driver makes the pod: limits from `resources` (memory
in units of 10^9 bytes), the accelerator's type as a resource's name, and selector and tolerations from the second
document. `pod_of` makes the same parts. On Vertex the user sees no pod; its containers are checked as pods, too.
"""

import functools
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
COMPILED = {path.stem: path for path in sorted(ROOT.glob("tests/pipelines/*/golden/*.yaml"))}
CUSTOM = ("kserve.io",)


def pod_of(name, container, placed):
    """Make the pod of a task from its container and from its part of the second document."""
    wanted = container.get("resources", {})
    limits = {}
    if "cpuLimit" in wanted:
        limits["cpu"] = f"{wanted['cpuLimit']:g}"
    if "memoryLimit" in wanted:
        limits["memory"] = f"{wanted['memoryLimit']:g}G"
    if "accelerator" in wanted:
        limits[wanted["accelerator"]["type"]] = str(wanted["accelerator"]["count"])
    keys = {key: container[key] for key in ("image", "command", "args", "env") if key in container}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name.lower().replace("_", "-")},
        "spec": {"restartPolicy": "Never", "containers": [{"name": "main", **keys, "resources": {"limits": limits}}]},
    }
    if "nodeSelector" in placed:
        pod["spec"]["nodeSelector"] = placed["nodeSelector"]["labels"]
    if "tolerations" in placed:
        pod["spec"]["tolerations"] = placed["tolerations"]
    return pod


def pods_of(documents):
    """Make the pods of all containers of a compiled pipeline, by the executor's name."""
    spec, *platform = documents
    placed = platform[0]["platforms"]["kubernetes"]["deploymentSpec"]["executors"] if platform else {}
    executors = spec["deploymentSpec"]["executors"]
    assert placed.keys() <= executors.keys()
    return {
        name: pod_of(name, executor["container"], placed.get(name, {}))
        for name, executor in executors.items()
        if "container" in executor
    }


@functools.cache
def golden_documents(name):
    """Read a golden file: a compiled pipeline, for open-source Kubeflow with its second document."""
    return list(yaml.load_all(COMPILED[name].read_text(), Loader=yaml.CSafeLoader))


def written_manifests():
    """Return the documents of the manifests below `kubeflow/` by file and name; custom resources apart."""
    found, custom = {}, {}
    for path in sorted((ROOT / "kubeflow").rglob("*.yaml")):
        for document in yaml.safe_load_all(path.read_text()):
            if "apiVersion" in document:
                kinds = custom if document["apiVersion"].partition("/")[0].endswith(CUSTOM) else found
                kinds[f"{path.name}/{document['kind']}-{document['metadata']['name']}"] = document
    return found, custom


def manifests_before_a_run():
    """Return the Services and pods that `compile` writes beside a pipeline, by kind and name."""
    files = ROOT.glob("tests/pipelines/*/golden/pods/*.yaml")
    documents = [document for path in files for document in yaml.safe_load_all(path.read_text())]
    return {f"{document['kind']}-{document['metadata']['name']}": document for document in documents}


def slice_pods():
    """Return a pod for each slice that GKE has on one host: its selector, its toleration and its limit."""
    from pipelines.cluster.compile_checks import tpu_request
    from pipelines.cluster.kubeflow_spec import tpu_document

    pods = {}
    for name in ("v3-8", "v4-8", "v5e-1", "v5e-4", "v5e-8", "v5p-8", "v6e-1", "v6e-4", "v6e-8"):
        slice_ = tpu_request(name)
        accelerator = {"type": "google.com/tpu", "count": str(slice_.chips_per_host)}
        platform = tpu_document("exec-trainer", slice_.node_selector())
        executor = platform["platforms"]["kubernetes"]["deploymentSpec"]["executors"]["exec-trainer"]
        pods[name] = pod_of(f"trainer-{name}", {"image": "image", "resources": {"accelerator": accelerator}}, executor)
    return pods
