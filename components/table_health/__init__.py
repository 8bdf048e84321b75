"""TableHealth: measures the embedding tables of a model, and blesses or refuses them."""

from components.table_health.component import TableHealth

__all__ = ["TableHealth"]
