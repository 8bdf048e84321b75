"""QualityGate: counts the eval split, measures retrieval, and blesses or refuses the model."""

from components.quality_gate.component import QualityGate

__all__ = ["QualityGate"]
