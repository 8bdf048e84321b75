"""Defines components that write a line of text, for pipelines that take seconds."""

import os
from pathlib import Path

from tfx import v1 as tfx

from components import Vocabularies


def _write(uri, text):
    os.makedirs(uri, exist_ok=True)
    Path(uri, "text").write_text(text)


@tfx.dsl.components.component
def First(made: tfx.dsl.components.OutputArtifact[Vocabularies], text: tfx.dsl.components.Parameter[str]):  # noqa: N802
    _write(made.uri, text)


@tfx.dsl.components.component
def Joined(  # noqa: N802
    read: tfx.dsl.components.InputArtifact[Vocabularies],
    made: tfx.dsl.components.OutputArtifact[Vocabularies],
    text: tfx.dsl.components.Parameter[str],
):
    _write(made.uri, Path(read.uri, "text").read_text() + text)
