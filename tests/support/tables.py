"""Makes configurations of tables."""

from embedding_core.config import EmbeddingConfig, FeatureConfig, TableConfig


def config_of(**tables):
    """Make tables from their settings, by default of 10 rows and 8 columns, each with a feature of its name."""
    defaults = {"vocabulary_size": 10, "dim": 8}
    return EmbeddingConfig(
        tables=tuple(TableConfig(name=name, **{**defaults, **settings}) for name, settings in tables.items()),
        features=tuple(FeatureConfig(name=name, table=name) for name in tables),
    )
