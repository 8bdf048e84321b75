"""Defines the base class of all sections of the configuration, with their checks and the wording of their errors.

A section is a frozen pydantic model, which is checked when it is made. A program gets one `ConfigError`; for a YAML
file, `problems_of` lists every mistake with its path. For both, the rules and their wording are the same.
"""

from __future__ import annotations

import inspect
import json
import numbers
import re
import typing
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, NamedTuple, TypeAlias, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    TypeAdapter,
    ValidationError,
    model_validator,
)
from pydantic_core import CoreSchema, InitErrorDetails, PydanticCustomError, PydanticSerializationError, core_schema
from typing_extensions import Self

from embedding_core.errors import ConfigError, nearest
from embedding_core.rooms import MISSING, room_of, values_of

Json: TypeAlias = dict[str, Any]
"""A JSON object."""
Mistakes: TypeAlias = Iterator[tuple[str, str]]
"""Pairs of a key ("" for the whole section, dotted for a nested key) and what is wrong, worded to follow the key."""
_Item = TypeVar("_Item")
_WORDED = "worded"  # type of an error whose message is the text of a `Problem`
_WORDS = {
    "string_type": "text",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a finite number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "tuple_type": "a list",
    "mapping_type": "a mapping (`key: value` lines)",
    "dict_type": "a mapping (`key: value` lines)",
    "string_too_short": "text that is not empty",
    "too_short": "a list of at least one value",
}


class Rule:
    """Sets the error message of a type: the message about an invalid value is "it must be <words>".

    Attributes:
      words: the rule, as in "it must be <words>".
      text: whether the value is text; a number then needs quotes.
    """

    def __init__(self, words: str, *, text: bool = False) -> None:
        self.words = words
        self.text = text

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Replace every error of the type with the rule's words."""
        kind = "text_rule" if self.text else "rule"
        return core_schema.custom_error_schema(handler(source), custom_error_type=kind, custom_error_message=self.words)


class Choice(Rule):
    """Allows the words of a Literal, and those that optional rooms add.

    Attributes:
      choices: all words.
    """

    def __init__(self, key: str, *words: str) -> None:
        """Take the key's path in the YAML file, by which rooms name it, and its own words."""
        self.choices = [*words, *values_of(key)]
        super().__init__(", ".join(f'"{word}"' for word in self.choices))

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Read the field as a Literal."""
        return core_schema.literal_schema(self.choices)


class ChosenBy:
    """Chooses one of several sections by a word under one key of the mapping.

    Attributes:
      key: field that each of these sections has: a Literal of the words that choose the section. A lone string is read
        as the value of this key.
      default: values that a mapping without the key is merged into; if None, the key is required.
    """

    def __init__(self, key: str, default: Mapping[str, Any] | None = None) -> None:
        self.key = key
        self.default = default

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Read a mapping as the section that it names, and pass a section through unchanged."""
        sections = typing.get_args(source)

        def choose(value: Any, unused: Any) -> Any:
            return value if isinstance(value, sections) else self.section(sections, value)

        return core_schema.no_info_wrap_validator_function(choose, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> Json:
        """Accept the word alone, as a string."""
        return {"anyOf": [*handler(schema)["anyOf"], {"type": "string"}]}

    def section(self, sections: tuple[type[Section], ...], value: Any) -> Section:
        """Make the section that the value names."""
        value = {self.key: value} if isinstance(value, str) else value
        by_word = {word: each for each in sections for word in each.words_of(self.key)}
        if not isinstance(value, Mapping):
            text = f"is {value!r}: it must be a mapping (`key: value` lines) with `{self.key}` and what belongs to it."
            raise _worded(sections[0], [((), text, value)])
        value = {**(self.default or {}), **value} if self.key not in value else value
        given = value.get(self.key)
        word = str(given).lower()
        if word not in by_word:
            what = f"is {given!r}" if self.key in value else "is missing"
            text = f"{what}: it must be {_one_of(given, list(by_word))}"
            raise _worded(sections[0], [((self.key,), text, value)])
        return by_word[word].model_validate({**value, self.key: word})


def _python_number(value: Any) -> Any:
    """Convert a numpy number to a Python number, since sizes are often computed from data; leave other values as is.

    Refuses tensors, variables and arrays: pydantic accepts anything with `__float__`, and would not see later changes.
    """
    if isinstance(value, int | float):
        return value
    if isinstance(value, numbers.Real):
        return int(value) if isinstance(value, numbers.Integral) else float(value)
    if hasattr(value, "__float__"):
        raise PydanticCustomError("float_type", "a finite number")
    return value


def _from_list(value: Any) -> Any:
    """Convert a list, which YAML gives, to a tuple; leave a set, which has no order, for pydantic to refuse."""
    return tuple(value) if isinstance(value, list) else value


def _with_text_keys(value: Any) -> Any:
    """Convert the keys of a mapping to text: YAML reads a key such as 1 or true as another type."""
    return {str(key): item for key, item in value.items()} if isinstance(value, Mapping) else value


FROM_LIST = BeforeValidator(_from_list)
Listed: TypeAlias = Annotated[tuple[_Item, ...], FROM_LIST]
ByName: TypeAlias = Annotated[Mapping[str, _Item], BeforeValidator(_with_text_keys)]
FROM_NUMPY = BeforeValidator(_python_number)
Whole = Annotated[int, FROM_NUMPY]
Number = Annotated[float, FROM_NUMPY]
Positive = Annotated[int, Field(ge=1), FROM_NUMPY, Rule("a whole number of at least 1")]
Count = Annotated[int, Field(ge=0), FROM_NUMPY, Rule("a whole number of at least 0")]
PositiveNumber = Annotated[float, Field(gt=0), FROM_NUMPY, Rule("a number above 0")]
NonNegative = Annotated[float, Field(ge=0), FROM_NUMPY, Rule("a number of at least 0")]
Share = Annotated[float, Field(gt=0, lt=1), FROM_NUMPY, Rule("a number between 0 and 1, both excluded")]
Text = Annotated[str, Field(min_length=1)]
NAME_RULE = "letters, digits, `_`, `.` or `-`, not start with a dot or dash, and have at most 200 characters"
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.\-]*$", max_length=200), Rule(NAME_RULE, text=True)]
"""A name that is safe as a file name and as a checkpoint key."""


class Problem(NamedTuple):
    """One mistake.

    Attributes:
      path: keys and list positions from the top of what was read.
      text: what is wrong and what to do, to be read after the path.
    """

    path: tuple[str | int, ...]
    text: str


def problems_of(error: ValidationError) -> list[Problem]:
    """List every mistake that a section's `model_validate` found."""
    return [Problem(mistake["loc"], mistake["msg"]) for mistake in error.errors(include_url=False)]


class Section(BaseModel):
    """A group of settings: frozen, checked, and equal to the section that is read back from its JSON.

    Attributes:
      SHORT: key that a lone text sets (``model: ranking`` is ``model: {name: ranking}``); "" for none.
      PATHS: keys that hold paths or addresses.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        alias_generator=lambda field: field.rstrip("_"),  # `in` is a keyword of Python, so its field is `in_`
        ser_json_inf_nan="constants",  # for fields annotated Any, in which inf and NaN are not refused
    )
    SHORT: ClassVar[str] = ""
    PATHS: ClassVar[tuple[str, ...]] = ()

    def __init__(self, **fields: Any) -> None:
        keys = dict(zip(type(self).model_fields, self.keys(), strict=True))
        try:
            super().__init__(**{keys.get(name, name): value for name, value in fields.items()})
        except ValidationError as error:
            raise _config_error(type(self), fields, error) from None

    # With this flag, pydantic makes nested sections without `__init__`, so that their errors carry their paths.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]

    @model_validator(mode="wrap")
    @classmethod
    def _check(cls, value: Any, handler: Any) -> Any:
        """Check the fields, then the rules over several of them; word every error as this project does."""
        if cls.SHORT and isinstance(value, str):
            value = {cls.SHORT: value}
        try:
            section = handler(_with_text_keys(value))
        except ValidationError as error:
            raise _worded(
                cls, [(mistake["loc"], _text(cls, mistake), mistake["input"]) for mistake in error.errors()]
            ) from None
        mistakes = [(tuple(key.split(".")) if key else (), text, value) for key, text in section.mistakes()]
        if mistakes:
            raise _worded(cls, mistakes)
        return section

    def mistakes(self) -> Mistakes:
        """Yield the violations of rules that involve several fields."""
        return iter(())

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> Json:
        """Describe the section and its keys by the docstring, and accept the short form."""
        reference = handler(schema)
        section = handler.resolve_ref_schema(reference)
        docs = cls.descriptions()
        for key, words in section.get("properties", {}).items():
            words.update(description=docs[key])
            words.pop("title", None)
        section["description"] = cls.summary()
        return {"anyOf": [reference, {"type": "string"}]} if cls.SHORT else reference

    @classmethod
    def summary(cls) -> str:
        """Give the text of the docstring above `Attributes:` and `Raises:`, on one line."""
        return " ".join(re.split(r"\n(?:Attributes|Raises):\n", inspect.cleandoc(cls.__doc__ or ""))[0].split())

    @classmethod
    def descriptions(cls) -> dict[str, str]:
        """Return the docstring's description of every key, each on one line."""
        texts: dict[str, str] = {}
        for base in reversed(cls.__mro__):
            attributes = re.split(r"\nAttributes:\n", inspect.cleandoc(base.__doc__ or ""))[1:]
            for names, text in re.findall(r"^  ([\w, ]+): (.+(?:\n    .+)*)", "\n".join(attributes), re.MULTILINE):
                texts.update(dict.fromkeys(names.split(", "), " ".join(text.split())))
        return {key: texts.get(name, "") for key, name in zip(cls.keys(), cls.model_fields, strict=True)}

    def replace(self, **changes: Any) -> Self:
        """Make a copy with some fields changed, checked like any other.

        Raises:
          ConfigError: a field breaks its rule.
        """
        return type(self)(**{**{name: getattr(self, name) for name in type(self).model_fields}, **changes})

    def to_mapping(self) -> Json:
        """Give the settings as plain values of YAML and JSON, every default written out."""
        try:
            return self.model_dump(mode="json", by_alias=True)
        except PydanticSerializationError as error:
            for value in (getattr(self, name) for name in type(self).model_fields):
                for part in value if isinstance(value, tuple) else (value,):
                    if isinstance(part, Section):
                        part.to_mapping()  # raises an error that names the value, if it is in this part
            raise ConfigError(f"{self.owner({})} cannot be written as JSON: {error}") from error

    def to_json(self) -> str:
        """Give the settings as JSON, which is YAML too."""
        return json.dumps(self.to_mapping(), indent=2)

    @classmethod
    def from_mapping(cls, values: Any) -> Self:
        """Read what `to_mapping` gave.

        Raises:
          ConfigError: an unknown key, or a value that breaks its rule; a line for each.
        """
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            raise _config_error(cls, values, error) from None

    @classmethod
    def owner(cls, values: Any, path: tuple[str | int, ...] = ()) -> str:
        """Name what a message is about: "early stopping", or "table 'items'" if the section has a valid name."""
        words = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", cls.__name__.removesuffix("Config")).lower()
        name = values.get("name") if isinstance(values, Mapping) and path != ("name",) else None
        return f"{words} {name!r}" if isinstance(name, str) and "name" in cls.model_fields else words

    @classmethod
    def words_of(cls, key: str) -> tuple[str, ...]:
        """Name the words that a field may hold, if it is a Literal."""
        return typing.get_args(cls.model_fields[key].annotation) if key in cls.model_fields else ()

    @classmethod
    def keys(cls) -> tuple[str, ...]:
        """Name the keys as a user writes them."""
        return tuple(field.alias or name for name, field in cls.model_fields.items())


def read(kind: Any, value: Any, owner: str) -> Any:
    """Read plain values as a type that is not a single Section class, such as a union of sections.

    Args:
      kind: the type, as a field of a section would have it.
      value: the plain values.
      owner: name of what is read, for messages.

    Raises:
      ConfigError: the value breaks a rule; a line for each mistake.
    """
    try:
        return TypeAdapter(kind).validate_python(value)
    except ValidationError as error:
        raise ConfigError("\n".join(_sentence(owner, problem) for problem in problems_of(error))) from None


def _worded(cls: type[Section], errors: list[tuple[tuple[str | int, ...], str, Any]]) -> ValidationError:
    details = [
        InitErrorDetails(type=PydanticCustomError(_WORDED, text), loc=loc, input=value) for loc, text, value in errors
    ]
    return ValidationError.from_exception_data(cls.__name__, details)


def _text(cls: type[Section], error: Any) -> str:
    """Return what is wrong with a value, in words that follow its path."""
    kind, value = error["type"], error["input"]
    value = list(value) if isinstance(value, tuple) else value
    if kind == _WORDED:
        return str(error["msg"])
    if kind == "missing":
        return "is missing: it has no default; add it."
    if kind == "extra_forbidden":
        room = room_of(error["loc"][-1])
        remedy = nearest(error["loc"][-1], cls.keys()) if room is None else MISSING.format(room)
        return f"is not a known key: {remedy}"
    if kind == "value_error":
        return f"is {value!r}: {error['ctx']['error']}"
    if kind in ("model_type", "model_attributes_type"):
        return f"is {value!r}: it must be a mapping with keys out of {', '.join(cls.keys())}."
    if kind == "literal_error":
        room = room_of(f"{error['loc'][-1]}={value}")
        choices = re.findall(r"'([^']*)'", error["ctx"]["expected"])
        rule = f"it must be {_one_of(value, choices)}" if room is None else MISSING.format(room)
        return f"is {value!r}: {rule}"
    words = error["msg"] if kind in ("rule", "text_rule") else _WORDS.get(kind, error["msg"])
    number = isinstance(value, int | float) and not isinstance(value, bool)
    quotes = f' Put it in quotes: "{value}".' if number and kind in ("text_rule", "string_type") else ""
    return f"is {value!r}: it must be {words}.{quotes}"


def _one_of(value: Any, choices: list[str]) -> str:
    close = nearest(value, choices) if isinstance(value, str) else ""
    remedy = f" D{close[1:]}" if close.startswith("did you mean") else ""
    return (f"one of {', '.join(choices)}." if len(choices) > 1 else f"{choices[0]!r}.") + remedy


def _config_error(cls: type[Section], values: Any, error: ValidationError) -> ConfigError:
    problems = problems_of(error)
    return ConfigError("\n".join(_sentence(cls.owner(values, problem.path), problem) for problem in problems))


def _sentence(owner: str, problem: Problem) -> str:
    path = ".".join(map(str, problem.path))
    return f"`{path}` of {owner} {problem.text}" if path else f"{owner} {problem.text}"
