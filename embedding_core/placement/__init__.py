"""Reports the device that each table and each lookup is really on, and what TensorFlow does there silently."""

from embedding_core.errors import Finding
from embedding_core.placement.placement_report import Lookup, Placement, TablePlace
from embedding_core.placement.table_placement import placement_of

__all__ = ["Finding", "Lookup", "Placement", "TablePlace", "placement_of"]
