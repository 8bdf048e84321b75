"""Runs VocabularyGen's executor."""

import json
from pathlib import Path

from tfx.dsl.components.base.base_beam_executor import BaseBeamExecutor

from components.artifacts import Vocabularies
from components.vocabulary_gen.executor import Executor
from embedding_core.vocabulary import load_vocabularies
from pipelines.pipeline.run_target import IN_PROCESS
from tests.support.artifacts import artifact, examples_at


def feature(name, vocabulary=None, **column):
    """Return the feature of the column of its name, as the component takes it."""
    return {"name": name, "column": {"name": name, **column}, "vocabulary": vocabulary or name}


def count(
    folder, features, *, out, examples=None, rules=None, base=None, graph=None, evolution=None, beam=IN_PROCESS, **more
):
    """Count the features of the examples in a folder; return the artifact of the vocabularies, and these by name."""
    vocabularies = artifact(Vocabularies, Path(folder) / out, made=False)
    inputs = {"examples": examples or examples_at(folder), "base_vocabularies": base, "transform_graph": graph}
    properties = {
        "features": json.dumps(features),
        "vocabulary_rules": json.dumps(rules or {}),
        "evolution": json.dumps(evolution or {}),
        **more,
    }
    Executor(BaseBeamExecutor.Context(beam_pipeline_args=[*beam])).Do(
        {name: [given] for name, given in inputs.items() if given is not None},
        {"vocabularies": [vocabularies]},
        properties,
    )
    return vocabularies, load_vocabularies(vocabularies.uri)


def bytes_of(folder):
    """Return the bytes of each file of a folder by name."""
    return {path.name: path.read_bytes() for path in sorted(Path(folder).iterdir()) if path.is_file()}
