"""Measures how healthy embedding tables are, and judges them before a push; loads neither TensorFlow nor TFX.

`docs/health.md` explains every figure.
"""

from embedding_core.health.judgement import Finding, Health, bound_of, judge_table
from embedding_core.health.table_figures import HEALTH_FILE, Block, Earlier, TableFacts, TableFigures, measure_table

__all__ = [
    "HEALTH_FILE",
    "Block",
    "Earlier",
    "Finding",
    "Health",
    "TableFacts",
    "TableFigures",
    "bound_of",
    "judge_table",
    "measure_table",
]
