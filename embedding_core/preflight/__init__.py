"""What a TPU would be given, found out without a TPU: tables, memory, and the training step's traced program."""

from embedding_core.preflight.preflight_report import NECESSARY, Finding, Report
from embedding_core.preflight.preflight_run import preflight
from embedding_core.preflight.step_to_trace import PipelineStep, Step

__all__ = ["NECESSARY", "Finding", "PipelineStep", "Report", "Step", "preflight"]
