"""Compiles programs with Google's TPU compiler, without a TPU, in a process of the compiler's own environment."""

from embedding_core.tpu_compiler.compiler import TpuCompiler
from embedding_core.tpu_compiler.sparse_core_compiler import SparseCoreCompiler, SparseCores

__all__ = ["SparseCoreCompiler", "SparseCores", "TpuCompiler"]
