"""Generates docs/configuration.md and the JSON Schema beside the examples from the configuration classes."""

from __future__ import annotations

import json
import types
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path

from embedding_core.optimizers import DEFAULT_OPTIMIZER
from embedding_core.schema import Rule, Section
from pipelines.config.pipeline_config import PipelineConfig, config_schema

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "configuration.md"
SCHEMA = ROOT / "pipelines" / "examples" / "config.schema.json"
INTRODUCTION = """# Configuration

Every key of the YAML file that `tfx-embeddings` reads. `make reference` writes this page from the classes that read
the file; do not edit it.

- `tfx-embeddings validate CONFIG` checks a file, and prints it with every default written out.
- `--set key=value` puts a value over the file's: `--set training.batch_size=512`, `--set features.dense.0=price`.
- `tfx-embeddings schema` prints the JSON Schema, for editors. Name it in the first line of a file:
  `# yaml-language-server: $schema=config.schema.json`.
- In a section with a "short form", a text alone stands for that key: `model: ranking` is `model: {name: ranking}`.
"""
WORDS = {str: "text", int: "a whole number", float: "a number", bool: "true or false", typing.Any: "any value"}


def sections_of(kind: object) -> list[type[Section]]:
    """Return the Section classes in a type annotation, at any depth."""
    if isinstance(kind, type) and issubclass(kind, Section):
        return [kind]
    return [section for part in typing.get_args(kind) for section in sections_of(part)]


def words_of(kind: object) -> str:
    """Describe the values that a type annotation allows, for the page."""
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        rules = [note.words for note in parts[1:] if isinstance(note, Rule)]
        return rules[-1] if rules else words_of(parts[0])
    if origin is typing.Literal:
        return ", ".join(f'"{word}"' for word in parts)
    if origin in (typing.Union, types.UnionType):
        texts = list(dict.fromkeys("null" if part is type(None) else words_of(part) for part in parts))
        return " or ".join(texts)
    if origin is tuple:
        return f"a list: {words_of(parts[0])}"
    if origin is Mapping:
        return f"a mapping of names: {words_of(parts[1])}"
    if sections_of(kind):
        return "see below"
    return WORDS[kind]


def default_of(section: type[Section], name: str) -> str:
    """Return what the page shows as the default of a field; "" for one of `FROM_THE_FILE`."""
    field = section.model_fields[name]
    if section is PipelineConfig and name in PipelineConfig.FROM_THE_FILE:
        return ""
    if field.is_required():
        return "required"
    default = field.get_default(call_default_factory=True)
    if not isinstance(default, Section):
        return f"`{json.dumps(default)}`"
    if default is not DEFAULT_OPTIMIZER:
        return "see below"
    return f"`{json.dumps(default.model_dump(include={'name', *default.model_fields_set}))}`"


def table(section: type[Section], path: str) -> Iterator[str]:
    """Yield the Markdown table of a section's keys, and then those of the sections inside it."""
    hints = typing.get_type_hints(section, include_extras=True)
    yield section.summary()
    if section.SHORT:
        yield f"\nShort form: `{section.SHORT}`."
    yield "\n| key | value | default | meaning |\n|---|---|---|---|"
    for (key, meaning), name in zip(section.descriptions().items(), section.model_fields, strict=True):
        cells = [f"`{key}`", words_of(hints[name]), default_of(section, name), meaning]
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
    for key, name in zip(section.keys(), section.model_fields, strict=True):
        for nested in sections_of(hints[name]):
            words = words_of(hints[name])
            place = ".0" if "a list" in words else ".NAME" if "a mapping of names" in words else ""
            yield from below(nested, f"{path}{key}{place}")


def below(section: type[Section], path: str) -> Iterator[str]:
    """Yield the heading and table of a section inside another; optimizers are listed once, for `table_optimizer`."""
    if path == "tables.NAME.optimizer":
        return
    words = [section.words_of(key)[0] for key in ("by", "name") if len(section.words_of(key)) == 1]
    yield f"\n## `{path}`" + "".join(f", {word}" for word in words) + "\n"
    yield from table(section, f"{path}.")


def page() -> str:
    """Return the Markdown of the page."""
    return INTRODUCTION + "\n## The file\n\n" + "\n".join(table(PipelineConfig, "")) + "\n"


def schema() -> str:
    """Return the text of the JSON Schema file."""
    return json.dumps(config_schema(), indent=1) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
    SCHEMA.write_text(schema())
