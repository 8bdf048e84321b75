"""Writes the JSON Schema of the configuration, which editors complete and check YAML files with."""

from __future__ import annotations

from embedding_core.schema import Json
from pipelines.config.pipeline_config import PipelineConfig


def config_schema() -> Json:
    """Return the JSON Schema of the YAML file; descriptions are those of the docstrings.

    It accepts every file that `tfx-embeddings validate` accepts, but not the other way round: rules over several keys
    are not in it.
    """
    schema = PipelineConfig.model_json_schema()
    schema["required"] = [key for key in schema["required"] if key not in PipelineConfig.FROM_THE_FILE]
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "tfx-embeddings"}
