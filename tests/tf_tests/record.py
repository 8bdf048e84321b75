"""Keeps the counts of TensorFlow's tests that pass, and writes them into docs/simulated_tpu.md.

The record names the engines' code by a digest, so that counts of other engines are noticed. Comments and docstrings do
not change the digest; another version of Python may.
"""

import ast
import hashlib
import json
import platform
from pathlib import Path

ROOT = Path(__file__).parents[2]
RECORD = Path(__file__).with_name("record.json")
PAGE = ROOT / "docs" / "simulated_tpu.md"
FILES = {
    "mid level (v2)": "`tests/tpu_embedding_v2_*_test.py` (20 files)",
    "tensor core (v1)": "`tests/tpu_embedding_v1_*_test.py` (2 files)",
    "serving": "`tpu_embedding_for_serving_test.py`",
}
SPARSE_CORES = {
    "SparseCores (v3)": "`tpu_embedding_v3_test.py`",
    "SparseCores (v3), additional": "`tpu_embedding_v3_additional_test.py`",
    "SparseCores (v3), checkpoint": "`tpu_embedding_v3_checkpoint_test.py`",
    "SparseCores (v3), checkpoint adapter": "`tpu_embedding_v3_checkpoint_adapter_test.py`",
    "SparseCores (v3), utilities": "`tpu_embedding_v3_utils_test.py`",
}
"""What docs/simulated_tpu.md says about each group of `run.py`."""
CHIPS = {"1x1": "1 chip", "1x2": "2 chips"}


def engines_digest():
    """Return a digest of the code of the engines and of all that they import in this project."""
    import grimp

    graph = grimp.build_graph("embedding_core", cache_dir=None)
    engines = "embedding_core.engines"
    modules = {engines, *graph.find_descendants(engines), *graph.find_upstream_modules(engines, as_package=True)}
    of_room = {"embedding_core.sparse_cores.tpu_embedding"} & graph.modules
    modules |= {module for name in of_room for module in (name, *graph.find_upstream_modules(name))}
    digest = hashlib.sha256()
    for module in sorted(modules):
        digest.update(f"{module}\n{_code_of(module)}\n".encode())
    return digest.hexdigest()


def _code_of(module):
    path = ROOT.joinpath(*module.split("."))
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [statement for statement in body if not _is_text(statement)]
    return ast.unparse(tree)


def _python():
    return ".".join(platform.python_version_tuple()[:2])


def is_of_this_python():
    """Return whether this version of Python computes the digest as the one that wrote the record."""
    return not RECORD.exists() or json.loads(RECORD.read_text(encoding="utf-8"))["python"] == _python()


def _is_text(node):
    """Return whether a statement is a docstring, or another text that is not assigned."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def add(topology, counts):
    """Record the counts of one topology, a mapping from group to passed and total; counts of other engines go.

    Args:
      topology: hosts x cores of each, such as "2x2".
      counts: number of tests that passed, and number of all tests, by group.
    """
    digest = engines_digest()
    known = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else {}
    if known.get("engines") != digest:
        known = {"engines": digest, "python": _python(), "topologies": {}}
    known["topologies"][topology] = {**known["topologies"].get(topology, {}), **counts}
    known["topologies"] = dict(sorted(known["topologies"].items()))
    RECORD.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")


def table():
    """Return the recorded counts as a Markdown table."""
    return _table(FILES, "Tests", {})


def table_of_sparse_cores():
    """Return the recorded counts of the tests of SparseCores as a Markdown table."""
    return _table(SPARSE_CORES, "Test functions", CHIPS)


def _table(files, what, names):
    recorded = json.loads(RECORD.read_text(encoding="utf-8"))["topologies"]
    topologies = {name: counts for name, counts in recorded.items() if set(files) <= set(counts)}
    lines = [f"| Files | {what} | {' | '.join(f'Pass on {names.get(name, name)}' for name in topologies)} |"]
    lines.append("|---" * (len(topologies) + 2) + "|")
    for group, described in files.items():
        (total,) = {counts[group][1] for counts in topologies.values()}
        passed = " | ".join(str(counts[group][0]) for counts in topologies.values())
        lines.append(f"| {described} | {total} | {passed} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    from benchmarks.measuring import write_between

    write_between(PAGE, "tf tests", table())
    write_between(PAGE, "tf tests of SparseCores", table_of_sparse_cores())
