"""Computes a digest of the code that a run depends on, so that the cache notices a change.

TFX's cache compares only inputs and parameters. A function is given by its dotted path, so a change of its code would
not invalidate the cache. Therefore the components that run the code have the digest of its sources as a parameter.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator

import components
import embedding_core
import pipelines.models
from pipelines.config import PipelineConfig
from pipelines.config.user_modules import source_file

_PREPROCESSING = ("pipelines.preprocessing", "pipelines.pipeline.ranges", "components.transform_graph")


def code_fingerprint(config: PipelineConfig) -> str:
    """Compute a digest of `embedding_core`, `components`, the models, and the user's own modules."""
    ours = [file for package in (embedding_core, components, pipelines.models) for file in _sources(package.__file__)]
    return digest_of_files([*ours, *_users(config)])


def preprocessing_fingerprint(config: PipelineConfig) -> str:
    """Compute a digest of the user's module with Transform's function, and of our modules that it may call."""
    modules = [] if config.preprocessing_fn is None else [config.preprocessing_fn.rpartition(".")[0]]
    files = [source_file(module, config.python_path) for module in (*modules, *_PREPROCESSING)]
    return digest_of_files([file for file in files if file is not None])


def digest_of_files(files: Iterable[str]) -> str:
    """Compute the sha256 over the contents of the files, in the order of their base names; paths are not hashed."""
    digest = hashlib.sha256()
    for file in sorted(set(files), key=lambda path: (os.path.basename(path), path)):
        with open(file, "rb") as source:
            digest.update(hashlib.sha256(source.read()).digest())
    return digest.hexdigest()


def _sources(package_file: str | None) -> Iterator[str]:
    for folder, _, names in os.walk(os.path.dirname(str(package_file))):
        yield from (os.path.join(folder, name) for name in names if name.endswith(".py"))


def _users(config: PipelineConfig) -> Iterator[str]:
    functions = [function for function in (config.preprocessing_fn, config.model.run_fn) if function]
    for module in [config.model.module, *(function.rpartition(".")[0] for function in functions)]:
        file = source_file(module, config.python_path)
        if file is not None:
            yield file
