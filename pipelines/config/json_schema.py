"""Makes the JSON Schema of the configuration, with which editors complete and check YAML files."""

from __future__ import annotations

from embedding_core.schema import Json
from pipelines.config.pipeline_config import PipelineConfig


def config_schema() -> Json:
    """Return the JSON Schema of the YAML file; its descriptions come from the docstrings of the sections.

    It accepts every file that `tfx-embeddings validate` accepts, and others too: it does not contain the rules that
    involve several keys.
    """
    schema = PipelineConfig.model_json_schema()
    schema["required"] = [key for key in schema["required"] if key not in PipelineConfig.FROM_THE_FILE]
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "tfx-embeddings"}
