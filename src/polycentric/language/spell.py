"""From parts back to words, the inverse of `part_of`; and the files that parts were read from."""

import dataclasses
import inspect
import typing
from collections.abc import Mapping
from typing import Any

from .build import LARGEST, NOTHING, _options
from .registry import _THEN, Entry, kinds
from .words import quoted


class NoWords(ValueError):
    """A value that the language cannot say: a class of your own, a graph or a table that is at hand."""


def spell(part: Any, wanted: Any = Any) -> str:
    """The shortest words that build an equal part; settings that have their default are left out.

    Raises `NoWords` for what cannot be said in words, or not where the type `wanted` is asked for.
    """
    return _spelled(part, wanted, False)


def _spelled(value: Any, wanted: Any, inside: bool) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        if abs(value) > LARGEST:
            raise NoWords(f"{value} is larger than words may say")
        return str(int(value))
    if isinstance(value, float):
        return repr(float(value))
    if isinstance(value, str):
        return _text(value, type(None) in _options(wanted), inside)
    if isinstance(value, tuple | list):
        lists = [option for option in _options(wanted) if typing.get_origin(option) is tuple]
        if wanted is not Any and not lists:
            raise NoWords(f"a list has no words where a {wanted} is asked for")
        return f"({', '.join(_spelled(item, Any, True) for item in value)})"
    for table in (*kinds().values(), *_THEN.values()):
        for entry in table.values():
            words = _said(entry, value)
            if words is not None:
                return words
    raise NoWords(f"a {type(value).__name__} has no words")


def _text(value: str, or_none: bool, inside: bool) -> str:
    plain = value == value.strip() and value[:1] not in ("'", '"') and not (or_none and value.lower() in NOTHING)
    if plain and not (inside and (not value or any(sign in value for sign in ",=()[]"))):
        return value
    marked = quoted(value)
    if marked is None:
        raise NoWords(f"a text with both kinds of quotation marks has no words: {value}")
    return marked


def _said(entry: Entry, part: Any) -> str | None:
    """A part in the words of an entry; None if this entry does not build it."""
    if entry.builds not in (inspect.Signature.empty, type(part)):  # without an annotation it must be tried
        return None
    if not isinstance(entry.build, type) and not entry.parameters:  # always the same part
        return entry.name if type(always := entry.build()) is type(part) and always == part else None
    if type(part) is not entry.builds:
        return None
    if entry.undo is not None:
        texts = entry.undo(part)
        return None if texts is None else f"{entry.name}({', '.join(_text(text, False, True) for text in texts)})"
    given: dict[str, str] = {}
    for name, parameter in entry.parameters.items():
        value = getattr(part, name, parameter.default)
        if value is parameter.empty or (value is None and type(None) not in _options(parameter.annotation)):
            return None
        if parameter.default is parameter.empty or value != parameter.default:
            given[name] = _spelled(value, parameter.annotation, True)
    words = entry.name
    if list(given) == [entry.short]:
        words += f"={given[entry.short]}"
    elif given:
        words += f"({', '.join(f'{name}={text}' for name, text in given.items())})"
    return f"{spell(getattr(part, entry.then))}+{words}" if entry.then else words


def files_of(thing: Any) -> tuple[str, ...]:
    """The files that a part, or all parts of a method, were read from, each once; a part names its own in `files`."""
    found: dict[str, None] = {}

    def walk(part: Any) -> None:
        if isinstance(part, tuple | list):
            for item in part:
                walk(item)
        elif isinstance(part, Mapping):
            walk(list(part.values()))
        elif dataclasses.is_dataclass(part) and not isinstance(part, type):
            found.update(dict.fromkeys(getattr(part, "files", ())))
            for field in dataclasses.fields(part):
                walk(getattr(part, field.name))

    walk(thing)
    return tuple(found)
