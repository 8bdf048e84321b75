"""Compiles programs with Google's TPU compiler, without a TPU, in a process of the compiler's own environment."""

from embedding_core.tpu_compiler.compiler import TpuCompiler, find_tpu_compiler, installed_tpu_compiler
from embedding_core.tpu_compiler.sparse_core_compiler import SparseCoreCompiler

__all__ = ["SparseCoreCompiler", "TpuCompiler", "find_tpu_compiler", "installed_tpu_compiler"]
