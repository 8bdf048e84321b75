"""Tests the name look-up of `make tfx-next` on the installed TFX, which has every name that the project imports."""

import importlib.util
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))
import try_newest  # a script beside this file

pytestmark = pytest.mark.light

INSTALLED = Path(importlib.util.find_spec("tfx").submodule_search_locations[0]).parent


def test_every_name_is_found_in_the_installed_version():
    names = try_newest.imported_names()
    assert ("tfx.orchestration.portable.launcher", "Launcher") in names
    assert [key for key in names if not try_newest.exists(INSTALLED, *key)] == []


def test_a_name_that_is_not_there_is_not_found():
    assert not try_newest.exists(INSTALLED, "tfx.types.artifact_utils", "get_nothing")
    assert not try_newest.exists(INSTALLED, "tfx.nowhere", "get_nothing")


def test_overridden_methods_take_the_same_arguments():
    assert {state for _, state in try_newest.overridden(INSTALLED)} == {"same"}
