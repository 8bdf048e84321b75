"""Checks where versions are pushed, in which form, and which requests and versions they are compared with."""

from __future__ import annotations

from collections.abc import Callable

from components.shadow.log_files import log_files
from embedding_core.errors import ConfigError, nearest
from embedding_core.schema import Mistakes
from embedding_core.storage import is_remote
from pipelines.config.model import RETRIEVAL_MODELS
from pipelines.config.pipeline_config import PipelineConfig

_PATTERN_SIGNS = "*?[\\"


def _literal(path: str, value: str | None) -> Mistakes:
    """Refuse an address that TFX, or TensorFlow when it loads a model, would take for a pattern of files."""
    sign = next((sign for sign in _PATTERN_SIGNS if sign in (value or "")), None)
    if sign is not None:
        rule = f"TFX and TensorFlow take its {sign!r} for a pattern, and would read other files"
        yield path, f"is {value!r}: {rule}; give a folder without any of * ? [ and backslash."


def _work_dir_is_literal(config: PipelineConfig) -> Mistakes:
    yield from _literal("work_dir", config.work_dir)


def _destination_is_literal(config: PipelineConfig) -> Mistakes:
    yield from _literal("push.destination", config.push.destination)


def _deltas_can_be_pushed(config: PipelineConfig) -> Mistakes:
    if config.push.deltas is None:
        return
    if is_remote(config.push_destination):
        given = f"is given, but versions are pushed to {config.push_destination!r}, an object store, which has no locks"
        yield "push.deltas", f"{given}: push to a local or mounted folder, or set it to false."
    if config.model.name in RETRIEVAL_MODELS:
        given = f"is given, but `model.name` is {config.model.name!r}, whose index of candidates deltas do not change"
        yield "push.deltas", f"{given}: set it to false."


def _requests_are_there(config: PipelineConfig) -> Mistakes:
    if config.shadow is None:
        return
    yield from _literal("shadow.against", config.shadow.against)
    try:
        log_files(config.shadow.requests)
    except ConfigError as error:
        yield "shadow.requests", f"is {error}"


def _baseline_is_literal(config: PipelineConfig) -> Mistakes:
    yield from _literal("evaluation.baseline", config.evaluation.baseline)


def _tables_of_rows_dtype_exist(config: PipelineConfig) -> Mistakes:
    tables = dict.fromkeys(feature.table_name for feature in config.features.categorical)
    given = config.push.rows_dtype
    for name in () if isinstance(given, str) else given:
        if name not in tables:
            yield f"push.rows_dtype.{name}", f"is not a table: {nearest(name, tables)}"


VERSION_RULES: list[tuple[frozenset[str], Callable[[PipelineConfig], Mistakes]]] = [
    (frozenset({"work_dir"}), _work_dir_is_literal),
    (frozenset({"push"}), _destination_is_literal),
    (frozenset({"push", "work_dir", "model"}), _deltas_can_be_pushed),
    (frozenset({"shadow"}), _requests_are_there),
    (frozenset({"evaluation"}), _baseline_is_literal),
    (frozenset({"features", "push"}), _tables_of_rows_dtype_exist),
]
