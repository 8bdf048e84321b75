"""Compiles an HLO module with Google's TPU compiler. Runs in the compiler's own environment, as a script.

`embedding_core/tpu_compiler/compilers.py` starts this file by its path and exchanges files with it. It imports
nothing of this project, and is the only file that uses private names of jaxlib, whose versions are pinned in
`requirements.txt`.
"""

from __future__ import annotations

import io
import json
import os
import re
import resource
import sys
from collections import Counter
from importlib import metadata
from pathlib import Path
from typing import Any

# Without the first, libtpu waits for the metadata server of a TPU's machine. Without the second, only one process of a
# machine can load libtpu at a time.
_WITHOUT_TPU = {
    "TPU_SKIP_MDS_QUERY": "1",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_LOG_DIR": "disabled",
    "TPU_MIN_LOG_LEVEL": "3",
}
_OPERATION = re.compile(r" = .*? ([a-z][a-z0-9-]*)\(")


def main(folder: Path) -> None:
    """Read request.json and program.hlo in the folder; write reply.json.

    The reply has "stage": "versions" if this environment does not have the requested versions, "compiling" while
    the compiler works, and then "compiled", "refused" or, if StableHLO lacks a part of the program, "not converted".
    """
    request = ready(folder)
    if request is None:
        return
    versions = request["versions"]
    from jax.experimental import topologies

    device = topologies.get_topology_desc(platform="tpu", topology_name=request["topology"]).devices[0]
    write_reply(folder, {"stage": "compiling", "versions": versions})
    stage = "not converted"
    try:
        module = _to_stablehlo((folder / "program.hlo").read_bytes())
        stage = "refused"
        found = {"stage": "compiled", **_compile(device, module)}
    except Exception as error:  # XlaRuntimeError, and MLIRError, which is nested in a function of jaxlib
        found = {"stage": stage, "error": str(error)}
    write_reply(folder, {"versions": versions, **found})


def ready(folder: Path) -> dict[str, Any] | None:
    """Read request.json, check versions, and make this process ready to load libtpu; None if versions differ."""
    request: dict[str, Any] = json.loads((folder / "request.json").read_text())
    versions = {name: _version(name) for name in request["versions"]}
    if versions != request["versions"]:
        write_reply(folder, {"stage": "versions", "versions": versions})
        return None
    os.environ.update(_WITHOUT_TPU)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the compiler may end this process: no core file
    return request


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def write_reply(folder: Path, content: dict[str, Any]) -> None:
    """Write reply.json whole."""
    new = folder / "reply.json.new"
    new.write_text(json.dumps(content))
    new.replace(folder / "reply.json")


def _to_stablehlo(hlo: bytes) -> bytes:
    """Convert a serialized HloModuleProto to MLIR bytecode in StableHLO, which lacks HLO's copy."""
    from jax._src.interpreters.mlir import make_ir_context
    from jaxlib import _jax
    from jaxlib.mlir import ir

    with make_ir_context():
        module = ir.Module.parse(_jax.mlir.hlo_to_stablehlo(hlo))
        for function in module.body.operations:
            for operation in list(function.regions[0].blocks[0].operations):
                if operation.operation.name == "mhlo.copy":
                    operation.operation.results[0].replace_all_uses_with(operation.operation.operands[0])
                    operation.operation.erase()
        out = io.BytesIO()
        module.operation.write_bytecode(out)
    return out.getvalue()


def _compile(device: Any, module: bytes) -> dict[str, Any]:
    import numpy as np
    from jaxlib import _jax, xla_client

    options = xla_client.CompileOptions()
    options.num_replicas = options.num_partitions = 1
    build = options.executable_build_options
    build.num_replicas = build.num_partitions = 1
    build.device_assignment = xla_client.DeviceAssignment.create(np.array([[device.id]], np.int32))
    executable = device.client.compile(module, _jax.DeviceList((device,)), options)
    costs = executable.cost_analysis()
    return {
        **memory_of(executable.get_compiled_memory_stats()),
        "flops": costs.get("flops"),
        "bytes_accessed": costs.get("bytes accessed"),
        "optimal_seconds": costs.get("optimal_seconds"),
        "operations": _operations(executable.hlo_modules()),
    }


def memory_of(found: Any) -> dict[str, int]:
    """Return the bytes that a compiled program takes on a core."""
    return {
        "argument_bytes": found.argument_size_in_bytes,
        "output_bytes": found.output_size_in_bytes,
        "shared_bytes": found.alias_size_in_bytes,
        "temporary_bytes": found.temp_size_in_bytes,
        "program_bytes": found.generated_code_size_in_bytes,
    }


def _operations(modules: list[Any]) -> dict[str, int]:
    """Count the operations of the compiled program by their type, those inside of fusions included."""
    lines = (line for module in modules for line in module.to_string().splitlines())
    found = (_OPERATION.search(line) for line in lines)
    return dict(Counter(match.group(1) for match in found if match).most_common())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
