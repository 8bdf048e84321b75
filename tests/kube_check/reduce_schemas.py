"""Writes `schemas.json`: the parts of Kubernetes' OpenAPI schemas that the project's manifests need, one JSON Schema.

    uv run --no-project --with kubernetes-validate==1.37.0 python tests/kube_check/reduce_schemas.py

The source is the package kubernetes-validate 1.37.0, which has the schemas of Kubernetes 1.37 (Apache-2.0) with unknown
keys refused. Descriptions are left out. The package has 111 MB, and the file that is kept less than 100 KB.
"""

import importlib.util
import json
from pathlib import Path

ROOTS = (
    "io.k8s.api.core.v1.Pod",
    "io.k8s.api.core.v1.Service",
    "io.k8s.api.core.v1.ConfigMap",
    "io.k8s.api.apps.v1.Deployment",
    "io.k8s.api.apps.v1.StatefulSet",
    "io.k8s.api.batch.v1.Job",
)
OUT = Path(__file__).with_name("schemas.json")


def without_descriptions(part):
    if isinstance(part, dict):
        return {
            key: without_descriptions(one)
            for key, one in part.items()
            if not (key == "description" and isinstance(one, str)) and not key.startswith("x-kubernetes")
        }
    return [without_descriptions(one) for one in part] if isinstance(part, list) else part


def with_local_names(part, named):
    """Return the part with references into `$defs`, and add the names that it refers to."""
    if isinstance(part, dict):
        found = {key: with_local_names(one, named) for key, one in part.items()}
        if isinstance(found.get("$ref"), str):
            name = found["$ref"].rpartition("/")[2]
            named.add(name)
            found["$ref"] = f"#/$defs/{name}"
        return found
    return [with_local_names(one, named) for one in part] if isinstance(part, list) else part


def main():
    """Read the package's newest strict schemas, and write those of `ROOTS` with all that they refer to."""
    package = Path(importlib.util.find_spec("kubernetes_validate").origin).parent
    folder = package / "kubernetes-json-schema/v1.37.0-local-strict"
    definitions = json.loads(Path(folder, "_definitions.json").read_text())["$defs"]
    kept, left = {}, set(ROOTS)
    while left:
        name = left.pop()
        kept[name] = with_local_names(without_descriptions(definitions[name]), left)
        left -= kept.keys()
    roots = [{"$ref": f"#/$defs/{name}"} for name in ROOTS]
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "oneOf": roots,
        "$defs": dict(sorted(kept.items())),
    }
    OUT.write_text(json.dumps(schema, indent=None, separators=(",", ":"), sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
