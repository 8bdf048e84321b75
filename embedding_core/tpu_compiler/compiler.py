"""Compiles the program of a core with Google's TPU compiler, XLA:TPU."""

from __future__ import annotations

import dataclasses

from embedding_core.schema import Json
from embedding_core.tpu_compiler.environment import CompilerEnvironment

# The smallest slice of each generation: the program of one core does not depend on the number of cores.
_TOPOLOGIES = {"v2": "v2:2x2", "v3": "v3:2x2", "v4": "v4:2x2x1", "v5e": "v5e:2x2", "v5p": "v5p:2x2x1", "v6e": "v6e:2x2"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class TpuCompiler(CompilerEnvironment):
    """The TPU compiler of an environment."""

    NAME = "the TPU compiler"
    VARIABLE = "TPU_COMPILER_PYTHON"
    TARGET = "tpu-compiler"
    OPTION = "--compiler-python"
    REQUIREMENTS = "requirements.txt"
    PINNED = ("jax", "jaxlib", "libtpu")
    SCRIPT = "compiler_process.py"

    def compile(self, hlo: bytes, generation: str) -> Json:
        """Compile an HLO module for one core of a TPU.

        Args:
          hlo: serialized HloModuleProto.
          generation: "v2", "v3", "v4", "v5e", "v5p" or "v6e".

        Returns:
          "stage": "compiled", "refused" (the compiler's "error", word for word), "not converted" ("error" is of
          StableHLO, the form in which the compiler takes programs) or "stopped" ("error" says how the process ended);
          "versions"; "target"; and if compiled "argument_bytes", "output_bytes", "shared_bytes" (of outputs in the
          memory of arguments), "temporary_bytes", "program_bytes", "flops", "bytes_accessed", "optimal_seconds" (the
          compiler's estimate of a step) and "operations" by type.

        Raises:
          ConfigError: the environment is damaged, or has other versions than those that are pinned.
        """
        target = _TOPOLOGIES[generation]
        reply = self._exchange({"topology": target}, {"program.hlo": hlo})
        if reply["stage"] == "compiling":
            reply = {**reply, "stage": "stopped"}
        return {"target": target, **reply}
