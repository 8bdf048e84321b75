"""Compiles programs with Google's TPU compiler, without a TPU, in a process of the compiler's own environment."""

from embedding_core.tpu_compiler.compilers import SparseCoreCompiler, SparseCores, TpuCompiler

__all__ = ["SparseCoreCompiler", "SparseCores", "TpuCompiler"]
