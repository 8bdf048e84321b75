import textwrap

import pytest

from embedding_core.errors import ConfigError
from pipelines.config import load_config

MINIMAL = {"data": {"path": "rows.csv"}, "label": "bought", "features": {"categorical": ["item"]}}


@pytest.fixture(autouse=True)
def _same_sys_path(monkeypatch):
    import sys

    monkeypatch.setattr(sys, "path", list(sys.path))


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "rows.csv").write_text("item,bought\na,1\n")
    return tmp_path


@pytest.fixture
def load(folder):
    """Return a function that loads a config from YAML text and overrides."""

    def load_text(text, *overrides):
        file = folder / "my.yaml"
        file.write_text(textwrap.dedent(text))
        return load_config(file, overrides)

    return load_text


@pytest.fixture
def mistakes(load):
    """Return a function that loads invalid YAML text, and returns the lines of the error."""

    def lines(text, *overrides):
        with pytest.raises(ConfigError) as caught:
            load(text, *overrides)
        return str(caught.value).splitlines()

    return lines


@pytest.fixture
def mistake(mistakes):
    """Return a function that loads YAML text with one mistake, and returns the only line of the error."""

    def line(text, *overrides):
        (only,) = mistakes(text, *overrides)
        return only

    return line


@pytest.fixture
def minimal():
    return "data: rows.csv\nlabel: bought\nfeatures: {categorical: [item]}\n"
