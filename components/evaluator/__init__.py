"""Evaluator: TFX's own, with the figures computed in one vectorised pass."""

from components.evaluator.component import Evaluator

__all__ = ["Evaluator"]
