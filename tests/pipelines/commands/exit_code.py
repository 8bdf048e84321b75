"""Runs the command line in this process."""

import pytest

from pipelines.commands import cli


def exit_code(*arguments):
    """Run `tfx-embeddings` with the arguments, and return its exit code."""
    with pytest.raises(SystemExit) as caught:
        cli.main([str(argument) for argument in arguments])
    return caught.value.code or 0
