import itertools
import math

import pytest
import yaml

from embedding_core.errors import ConfigError
from embedding_core.storage import bounds
from pipelines.config.loading import parse_value, parse_yaml, yaml_of

pytestmark = pytest.mark.light
NAMES = [f"n{number}" for number in range(30)]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 0.001),
        ("NO", "NO"),
        ("on", "on"),
        ("true", True),
        ("2011-10-31", "2011-10-31"),
        ("1:30", "1:30"),
        ("010", "010"),
        ("-7", -7),
        (".5", 0.5),
        ("1_000", "1_000"),
        ("null", None),
        ("", None),
        ("[1, a]", [1, "a"]),
        (".inf", float("inf")),
        ("-.Inf", float("-inf")),
        ("+.INF", float("inf")),
    ],
)
def test_scalar_is_read_as_yaml_1_2_does(text, value):
    assert parse_value(text, "here") == value


@pytest.mark.parametrize("text", [".nan", ".NaN", ".NAN"])
def test_not_a_number_is_read_as_yaml_1_2_does(text):
    assert math.isnan(parse_value(text, "here"))


@pytest.mark.parametrize("text", ["0E0", "1e3", "-1E+5", ".5", "7", "010", "no", "1:30", "2011-10-31", "~", ".nan", ""])
def test_texts_that_look_like_other_values_are_quoted(text):
    written = yaml_of({"a": text, "b": [text], text or "c": 1})
    assert parse_yaml(written, "here").values == yaml.safe_load(written) == {"a": text, "b": [text], text or "c": 1}


@pytest.mark.parametrize("value", [0.0, -0.0, 1e-05, 1e16, 1e300, 5e-324, 3, -(2**63), True, None, float("inf")])
def test_plain_values_are_written_as_themselves(value):
    written = yaml_of({"a": value})
    assert repr(parse_yaml(written, "here").values) == repr(yaml.safe_load(written)) == repr({"a": value})


def test_duplicate_keys_are_found_at_any_depth():
    parsed = parse_yaml("a: 1\nb:\n  - {c: 1, d: 2, c: 3}\na: 2\n", "f.yaml")
    assert parsed.duplicates == [
        "f.yaml:3: `b.0.c` is a duplicate of line 3: keep one of the two.",
        "f.yaml:4: `a` is a duplicate of line 1: keep one of the two.",
    ]


def test_duplicate_keys_with_aliases_are_each_reported_once():
    levels = "".join(f"{name}: &{name} {{x: *{before}, x: *{before}}}\n" for before, name in itertools.pairwise(NAMES))
    parsed = parse_yaml(f"{NAMES[0]}: &{NAMES[0]} {{x: 1}}\n{levels}", "f.yaml")
    assert len(parsed.duplicates) == sum(range(len(NAMES)))


def test_duplicate_keys_and_other_mistakes_come_together(mistakes, minimal):
    lines = mistakes(minimal + "seed: 1\nseed: -2\n")
    assert len(lines) == 2


def test_merge_keys_are_no_duplicates():
    parsed = parse_yaml("x: &x {a: 1}\ny:\n  <<: *x\n  b: 2\n", "f")
    assert parsed.values["y"] == {"a": 1, "b": 2}
    assert not parsed.duplicates


@pytest.mark.parametrize(
    "text", ["a: [1", "a: 'x", "a: *b", "a: &a [*a]", "a: !!python/object:os.system x", "a\tb: \0"]
)
def test_text_that_is_no_yaml_is_one_line(text):
    with pytest.raises(ConfigError, match="not YAML") as caught:
        parse_yaml(text, "f.yaml")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["a: !!int x", "a: !!binary é", "? [a]\n: 1", "!!timestamp x"])
def test_odd_tags_never_escape_as_another_error(text):
    with pytest.raises(ConfigError):
        parse_yaml(text, "f.yaml")


ALIASES_OF_ALIASES = "a: &a [1,1,1,1,1,1,1,1,1,1]\n" + "".join(
    f"{name}: &{name} [{','.join(['*' + before] * 10)}]\n" for before, name in zip("abcdef", "bcdefg", strict=True)
)


MERGES_OF_MERGES = "n0: &n0 {x: 1}\n" + "".join(
    f"{name}: &{name} {{{', '.join([f'<<: *{before}'] * 10)}}}\n" for before, name in itertools.pairwise(NAMES[:7])
)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (ALIASES_OF_ALIASES, "more than 100,000 values: use fewer aliases"),
        (MERGES_OF_MERGES, "more than 100,000 values: use fewer aliases"),
        ("[" * 3000, "nested too deeply: at most 50 levels"),
        ("a: " + "{b: " * 100 + "1" + "}" * 100, "nested too deeply: at most 50 levels"),
    ],
)
def test_text_that_explodes_is_one_error(text, words):
    with pytest.raises(ConfigError, match=words):
        parse_yaml(text, "f.yaml")


def test_list_beyond_the_bound_is_not_read_to_its_end(monkeypatch):
    monkeypatch.setattr(bounds, "SETTINGS_VALUES", 100)
    assert len(parse_yaml("[a" + ", a" * 98 + "]", "f.yaml").values) == 99
    with pytest.raises(ConfigError, match=r"f\.yaml: .*more than 100 values: shorten its lists"):
        parse_yaml("[a" + ", a" * 200 + ", not: [yaml", "f.yaml")


def test_nesting_that_a_person_writes_is_read():
    assert parse_yaml("[" * 40 + "1" + "]" * 40, "f.yaml").values


@pytest.mark.parametrize("number", [2**63, -(2**63) - 1, 10**30, 10**400, int("9" * 4000)])
def test_number_beyond_64_bits_is_one_short_error_with_its_line(number):
    for line in (f"seed: {number}", f"training: {{learning_rate: {number}}}", f"filters: [{{min: {number}}}]"):
        with pytest.raises(ConfigError, match=r"a\.yaml: a value cannot be read: line 2: .*64 bits.*quotes") as error:
            parse_yaml(f"name: a\n{line}", "a.yaml")
        assert len(str(error.value)) < 250


def test_largest_whole_numbers_and_texts_of_digits_are_read():
    values = parse_yaml(f"[{2**63 - 1}, {-(2**63)}, '{2**64}', +7]", "a.yaml").values
    assert values == [2**63 - 1, -(2**63), str(2**64), 7]
