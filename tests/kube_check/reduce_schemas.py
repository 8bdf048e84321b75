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


def reduced(part, named):
    """Return a part without descriptions and with references into `$defs`; add the names that it refers to."""
    if isinstance(part, list):
        return [reduced(value, named) for value in part]
    if not isinstance(part, dict):
        return part
    texts = {key for key, value in part.items() if key == "description" and isinstance(value, str)}
    found = {key: reduced(value, named) for key, value in part.items() if not key.startswith("x-kubernetes")}
    if isinstance(found.get("$ref"), str):
        name = found["$ref"].rpartition("/")[2]
        named.add(name)
        found["$ref"] = f"#/$defs/{name}"
    return {key: value for key, value in found.items() if key not in texts}


def main():
    """Read the package's newest strict schemas, and write those of `ROOTS` with all that they refer to."""
    package = Path(importlib.util.find_spec("kubernetes_validate").origin).parent
    folder = package / "kubernetes-json-schema/v1.37.0-local-strict"
    definitions = json.loads(Path(folder, "_definitions.json").read_text())["$defs"]
    kept, left = {}, set(ROOTS)
    while left:
        name = left.pop()
        kept[name] = reduced(definitions[name], left)
        left -= kept.keys()
    roots = [{"$ref": f"#/$defs/{name}"} for name in ROOTS]
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", "oneOf": roots, "$defs": kept}
    OUT.write_text(json.dumps(schema, separators=(",", ":"), sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
