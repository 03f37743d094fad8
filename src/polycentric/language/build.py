"""From words to parts: every value becomes what the annotation of its setting asks for, or is refused in one line."""

import inspect
import types
import typing
from collections.abc import Mapping
from typing import Any, Literal, Union

from ..errors import LARGEST_FLOAT, UsageError, held, require, unknown
from . import words
from .registry import Entry, additions, is_kind, kinds, look_up

LARGEST = 1 << 40  # whole numbers beyond it are slips of the finger, and would not fit a tensor
TRUTH = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
NOTHING = ("none", "all")  # what None is called, where it is allowed


def value_of(key: str, value: Any, wanted: Any, beside: Mapping[str, Any] | None = None) -> Any:
    """A text, or a value of a TOML file, as the type a setting wants; `beside` as in `part_of`."""
    options = _options(wanted)
    text = value.strip() if isinstance(value, str) else value
    if type(None) in options and (text is None or (isinstance(text, str) and text.lower() in NOTHING)):
        return None
    lists = [option for option in options if typing.get_origin(option) is tuple]
    others = [option for option in options if option not in (*lists, type(None))]
    listed = isinstance(text, list | tuple) or (isinstance(text, str) and words.is_list(text))
    wrong: UsageError | None = None
    for option in (lists if listed or not others else []) or others:
        try:
            return _one_of(key, text, option, beside)
        except UsageError as error:
            wrong = wrong or error
    raise wrong or _not_in_words(key)


def _options(wanted: Any) -> tuple[Any, ...]:
    return typing.get_args(wanted) if typing.get_origin(wanted) in (Union, types.UnionType) else (wanted,)


def _not_in_words(key: str) -> UsageError:
    return UsageError(f"{key} cannot be set from a config; set it in Python")


def _one_of(key: str, value: Any, wanted: Any, beside: Mapping[str, Any] | None) -> Any:
    if typing.get_origin(wanted) is tuple and typing.get_args(wanted)[1:] == (...,):
        return tuple(value_of(key, item, typing.get_args(wanted)[0]) for item in _items(key, value))
    if typing.get_origin(wanted) is Literal:
        choices = typing.get_args(wanted)
        word = words.unquoted(value) if isinstance(value, str) else value
        for said in (word, word.lower() if isinstance(word, str) else word):
            if said in choices:
                return said
        raise unknown(key, shown(value), map(str, choices))
    if is_kind(wanted):
        return part_of(key, value, wanted, beside)
    if wanted in (bool, int, float, str):
        return _scalar(key, value, wanted)
    raise _not_in_words(key)


def _items(key: str, value: Any) -> list[Any]:
    if isinstance(value, list | tuple):
        return list(value)
    call = words.read(key, str(value)) if words.is_list(str(value)) else None
    if call is None:
        return words.split(key, str(value))
    return [f"{name}={text}" if name else text for name, text in call.given]


def part_of(
    key: str,
    value: Any,
    kind: object,
    beside: Mapping[str, Any] | None = None,
    unless_said: Mapping[str, Any] | None = None,
) -> Any:
    """A text such as `uniform(n=10)` as the part it names.

    Arguments:
        key: where it was written, for messages.
        value: the text.
        kind: of the part, a class such as `Select`.
        beside: settings given beside the text; they win.
        unless_said: settings that count where the text does not say them.
    """
    text = shown(value) if not isinstance(value, str) else value
    first, *others = words.chain(key, text) if additions(kind) else [text]
    call = _called(key, first, kind)
    entry = look_up(key, kind, call.name)
    given = _bound(key, entry, call)
    filled = {name: v for name, v in (unless_said or {}).items() if name in entry.parameters}
    part = _made(key, entry, filled | given | dict(beside or {}))
    for other in others:
        call = _called(key, other, kind)
        entry = look_up(key, kind, call.name, then=True)
        part = _made(key, entry, _bound(key, entry, call), {entry.then: part})
    return part


def _called(key: str, text: str, kind: object) -> words.Call:
    call = words.read(key, text)
    if call is None or not call.name:
        if not text.strip():
            return words.Call("")
        raise UsageError(f"{key} must be one of {', '.join(sorted(kinds()[kind]))}, got '{text.strip()}'")
    return call


def _bound(key: str, entry: Entry, call: words.Call) -> dict[str, Any]:
    """What a call gives, by the names of the settings; a list where any number may be given."""
    known, given = entry.parameters, {}
    if call.short:
        value, write = call.given[0][1], next((f"{entry.name}({name}=...)" for name in known), entry.name)
        require(bool(entry.short), f"{entry.name} takes no value after =, got '{value}'; write {key}={write}")
        return {entry.short: value}
    several = next((name for name, p in known.items() if p.kind is p.VAR_POSITIONAL), None)
    if several:
        return {several: [f"{name}={text}" if name else text for name, text in call.given]}
    for place, (name, text) in enumerate(call.given):
        got = f"got '{name and f'{name}='}{text}'"
        require(bool(known), f"{entry.name} has no settings, {got}; write {key}={entry.name}")
        if not name:
            hint = "; a text with commas goes between quotation marks" * (len(known) == 1)
            too_many = f"{entry.name} takes {', '.join(known)}, and '{text}' is one too many{hint}"
            require(place < len(known), too_many)
            name = list(known)[place]
        require(name not in given, f"{entry.name} is given {name} twice in {key}")
        given[name] = text
    return given


def _made(key: str, entry: Entry, given: Mapping[str, Any], parts: Mapping[str, Any] | None = None) -> Any:
    known, name = entry.parameters, entry.name
    for field in given:
        if field not in known:
            require(bool(known), f"{name} has no settings, got '{field}'; write {key}={name}")
            raise unknown(f"setting of {name}", str(field), known)
    one = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    missing = [n for n, p in known.items() if p.default is p.empty and p.kind not in one and n not in given]
    require(not missing, f"{name} needs {', '.join(missing)}: write {key}={name}({'=..., '.join(missing)}=...)")
    several: list[Any] = []
    values = dict(parts or {})
    for field, value in given.items():
        if known[field].kind is inspect.Parameter.VAR_POSITIONAL:
            several = [value_of(f"{key}.{field}", item, known[field].annotation) for item in _items(key, value)]
        else:
            values[field] = value_of(f"{key}.{field}", value, known[field].annotation)
    try:
        return entry.build(*several, **values)
    except UsageError:
        raise
    except (ValueError, OverflowError) as error:
        raise UsageError(f"{key}={name}: {error}") from error


def _scalar(key: str, value: Any, wanted: type) -> Any:
    if wanted is str:
        require(isinstance(value, str | int | float), f"{key} must be a text, got '{shown(value)}'")
        return words.unquoted(str(value))
    if wanted is bool:
        word = str(value).lower() if isinstance(value, str | int) else ""
        require(word in TRUTH, f"{key} must be true or false, got '{shown(value)}'")
        return TRUTH[word]
    try:
        if isinstance(value, bool):
            raise ValueError
        number = wanted(value)
        if wanted is int and isinstance(value, float) and value != number:
            raise ValueError
    except (ValueError, TypeError, OverflowError) as error:
        kind = "a whole number" if wanted is int else "a number"
        raise UsageError(f"{key} must be {kind}, got '{shown(value)}'") from error
    good, most = (held(number), f"{LARGEST_FLOAT:.3g}") if wanted is float else (abs(number) <= LARGEST, f"{LARGEST:,}")
    require(good, f"{key} must be at most {most}, got {shown(value)}")
    return number


def shown(value: Any) -> str:
    """A value as a message shows it."""
    try:
        return str(value)[:200]
    except (RecursionError, ValueError):  # tables in tables without end; whole numbers of thousands of digits
        return f"a {type(value).__name__} that is too large to be shown"
