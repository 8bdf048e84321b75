"""The installed compilers, what a test needs to run them, and programs in their place."""

import pytest

from embedding_core.tpu_compiler import SparseCoreCompiler, TpuCompiler

TPU_COMPILER = TpuCompiler.installed()
SPARSE_CORE_COMPILER = SparseCoreCompiler.installed()
NEEDS_TPU_COMPILER = pytest.mark.skipif(
    TPU_COMPILER is None, reason="the TPU compiler is not installed: `make tpu-compiler`"
)
NEEDS_SPARSE_CORE_COMPILER = pytest.mark.skipif(
    SPARSE_CORE_COMPILER is None, reason="the compiler for SparseCores is not installed: `make sparsecore-compiler`"
)


def python_of(folder, script):
    """Write a shell script in place of an environment's Python; its arguments are -I, a file of code and a folder."""
    path = folder / "python"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path
