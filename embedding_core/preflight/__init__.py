"""What a TPU would be given, found out without a TPU: tables, memory, and the training step's traced program."""

from embedding_core.preflight.report import NECESSARY, Finding, Report
from embedding_core.preflight.run import preflight
from embedding_core.preflight.steps import PipelineStep, Step

__all__ = ["NECESSARY", "Finding", "PipelineStep", "Report", "Step", "preflight"]
