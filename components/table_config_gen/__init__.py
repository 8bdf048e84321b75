"""TableConfigGen: the tables of a model, computed from its vocabularies."""

from components.table_config_gen.component import TableConfigGen

__all__ = ["TableConfigGen"]
