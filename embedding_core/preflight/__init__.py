"""Checks without a TPU what a TPU would run: tables, memory, and the traced program of the training step."""

from embedding_core.errors import Finding
from embedding_core.preflight.preflight_run import Report, preflight
from embedding_core.preflight.trace import PipelineStep, Step

__all__ = [
    "Finding",
    "PipelineStep",
    "Report",
    "Step",
    "preflight",
]
