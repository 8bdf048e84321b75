"""Turns raw columns into tokens and ids, the same way for counting, training and serving."""

from embedding_core.columns.ids import TokenTable
from embedding_core.columns.raw_columns import Columns, DenseInputs, input_name
from embedding_core.columns.tokens import MISSING_INT, tokens_of

__all__ = ["MISSING_INT", "Columns", "DenseInputs", "TokenTable", "input_name", "tokens_of"]
