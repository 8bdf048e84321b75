"""Compiles the lookup and update of stacks of tables on SparseCores (TPU v5p, v6e), through jax-tpu-embedding."""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import NamedTuple

from embedding_core.errors import ConfigError
from embedding_core.schema import Json
from embedding_core.tpu_compiler.environment import CompilerEnvironment

_DIMENSIONS = {"v5p": 3, "v6e": 2}  # of the network that joins the chips of a slice


@dataclasses.dataclass(frozen=True, kw_only=True)
class SparseCoreCompiler(CompilerEnvironment):
    """The TPU compiler of an environment with jax-tpu-embedding, which needs Python 3.12 or later."""

    NAME = "the compiler for SparseCores"
    VARIABLE = "SPARSECORE_COMPILER_PYTHON"
    TARGET = "sparsecore-compiler"
    OPTION = "--sparsecore-python"
    REQUIREMENTS = "sparse_core_requirements.txt"
    PINNED = ("jax-tpu-embedding", "jax", "jaxlib", "libtpu")
    SCRIPT = "sparse_core_process.py"

    def compile(self, program: Json, generation: str) -> Json:
        """Compile the lookup and update of every stack of tables for all chips of a slice; each stack alone.

        Args:
          program: "chips", "sparse_cores_per_chip" and "batch_size" (of all chips); "tables": "rows", "dim", "combiner"
            and "optimizer" by name, with the "kind" and "hyperparameters" of the optimizer and the names of those that
            are "changed" from their defaults; "features": "table" and "length" (of a sequence, else 0) by name;
            "form": `jax_tpu_embedding` in the forms of the limits.
          generation: "v5p" or "v6e".

        Returns:
          "versions", "target" and "stacks". Each stack has "stage": "compiled", "refused" ("error" is the compiler's,
          word for word), "stopped" ("error" says how the process ended) or "lacking" ("error" names the optimizer that
          jax-tpu-embedding does not have); its "tables"; and if compiled "argument_bytes", "output_bytes",
          "shared_bytes", "temporary_bytes" and "program_bytes" of a chip, and "not_passed": hyperparameters that are
          set, and that jax-tpu-embedding does not have.

        Raises:
          ConfigError: the environment is damaged, or has other versions than those that are pinned; or the slice has
            another number of chips than a box can have.
        """
        target, left = slice_name(generation, program["chips"]), True
        done: dict[str, Json] = {}
        while left:
            reply = self._exchange({**program, "topology": target, "done": sorted(done)}, {})
            done |= reply["stacks"]
            left = reply["stage"] == "compiling"  # the process ended: go on with the stack after this one
            if left:
                done[reply["stack"]] = {"stage": "stopped", "error": reply["error"], "tables": reply["tables"]}
        return {"target": target, "versions": reply["versions"], "stacks": done}


class SparseCores(NamedTuple):
    """What the programs of SparseCores are compiled with.

    Attributes:
      compiler: the compiler; None if its environment is not there.
      limits: what `sparse_core_limits` computed for the slice, the batch and the tables; None if nothing did.
      source: source of the limits in words; if there are none, why, and what to do.
    """

    compiler: SparseCoreCompiler | None
    limits: Json | None
    source: str


def slice_name(generation: str, chips: int) -> str:
    """Name a slice as the compiler does, such as "v5p:2x2x1": its chips in each dimension, in the most compact box.

    Raises:
      ConfigError: no box has so many chips.
    """
    dimensions = _DIMENSIONS[generation]
    sides = [side for side in range(1, chips + 1) if chips % side == 0]
    boxes = [
        box
        for box in itertools.combinations_with_replacement(sides, dimensions)
        if math.prod(box) == chips and (box.count(1) == 0 or chips <= 4)
    ]
    if not boxes:
        raise ConfigError(f"a slice of {generation} does not have {chips} chips: use another size.")
    box = min(boxes, key=sum)
    ordered = [side for side in box if side > 1] + [side for side in box if side == 1]
    return f"{generation}:{'x'.join(map(str, ordered))}"
