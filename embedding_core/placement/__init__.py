"""Reports on which device each table and each lookup really is, and what TensorFlow silently does there."""

from embedding_core.placement.placement_report import Lookup, Placement, Silent, TablePlace
from embedding_core.placement.table_placement import placement_of

__all__ = ["Lookup", "Placement", "Silent", "TablePlace", "placement_of"]
