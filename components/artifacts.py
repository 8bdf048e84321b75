"""Defines the artifact types that the components hand to each other.

KFP v2 and Vertex accept a custom type only if its name has one dot and is importable under that
very name, and if it declares no properties. So each is `components.<Class>`, re-exported by
`components/__init__.py`, and facts about an artifact are kept in custom properties as JSON
(KFP v2 hands integers back as floats; JSON text comes back as it was).
"""

from __future__ import annotations

import json
from typing import Any

from tfx import types
from tfx.types import system_artifacts


class _Described(types.Artifact):
    """An artifact with typed facts about itself, kept as JSON in custom properties."""

    def put_facts(self, **facts: Any) -> None:
        """Record facts (any JSON value) on the artifact."""
        for key, value in facts.items():
            self.set_string_custom_property(key, json.dumps(value, sort_keys=True))


class Vocabularies(_Described):
    """Vocabularies computed from Examples: tokens, counts, coverage and a digest of each."""

    TYPE_NAME = "components.Vocabularies"
    TYPE_ANNOTATION = system_artifacts.Dataset


class TableConfigs(_Described):
    """The tables and features of one model as JSON (`embedding_core.config.EmbeddingConfig`)."""

    TYPE_NAME = "components.TableConfigs"


class EmbeddingCheckpoint(_Described):
    """Logical tables and slots by name, without any topology, with a manifest."""

    TYPE_NAME = "components.EmbeddingCheckpoint"
    TYPE_ANNOTATION = system_artifacts.Model
