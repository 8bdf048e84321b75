import ast

import pytest

from embedding_core.errors import ConfigError
from pipelines.config.user_modules import accepts, build_arguments, defines, parse_module

pytestmark = pytest.mark.light


@pytest.mark.parametrize(
    ("annotation", "good", "bad"),
    [
        ("int", 1, True),
        ("float", 1, "1"),
        ("bool", True, 1),
        ("str", "a", 1),
        ("int | None", None, "x"),
        ("Optional[int]", None, 1.5),
        ("Sequence[int]", [1, 2], [1.5]),
        ("tuple[int, ...]", [1], 1),
        ("Literal['a', 'b']", "a", "c"),
        ("typing.Union[int, str]", "x", None),
        ("'int'", 3, "x"),
    ],
)
def test_annotation_accepts_what_it_says(annotation, good, bad):
    assert accepts(annotation, good)
    assert not accepts(annotation, bad)


@pytest.mark.parametrize("annotation", ["", "Mapping[str, int]", "MyType"])
def test_unknown_annotation_accepts_anything(annotation):
    assert accepts(annotation, object())


def test_default_is_known_if_the_source_says_it_in_plain_values():
    tree = ast.parse("UNITS = (8, 4)\ndef build(c, e, d, *, units=UNITS, l2=-1e-3, width=None, rate=1 / 3, x={1}): ...")
    found = build_arguments(tree)
    assert {name: parameter.default for name, parameter in found.items() if parameter.has_plain_default} == {
        "units": [8, 4],
        "l2": -1e-3,
        "width": None,
    }


def test_open_or_imported_build_takes_anything():
    assert build_arguments(ast.parse("def build(c, e, d, **more): ...")) is None
    assert build_arguments(ast.parse("from other import build")) is None


@pytest.mark.parametrize("source", ["def f(): ...", "from a import f", "import b as f", "f = 1", "f: int = 1"])
def test_name_at_top_level_is_found(source):
    assert defines(ast.parse(source), "f")
    assert not defines(ast.parse(source), "g")


def test_module_is_found_without_running_any_code(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "__init__.py").write_text("raise SystemExit('imported')")
    (tmp_path / "mine" / "deep.py").write_text("x = 1")
    assert defines(parse_module("mine.deep", str(tmp_path)), "x")


def test_module_that_is_no_python_is_named(tmp_path):
    (tmp_path / "broken_one.py").write_text("def (")
    with pytest.raises(ConfigError, match="broken_one"):
        parse_module("broken_one", str(tmp_path))


@pytest.mark.parametrize("name", ["", "a b", "no.such", "os..path", "sys", "mine/../x"])
def test_module_without_source_is_refused(name, tmp_path):
    with pytest.raises(ConfigError, match="does not exist"):
        parse_module(name, str(tmp_path))
