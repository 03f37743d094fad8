"""How a part is written: a name, and perhaps settings in parentheses, which may be parts themselves.

    uniform(n=10)                        a name and its settings
    by-cell(2, of=active(n=1))           a setting by its place, and a part within a part
    dirichlet=0.5                        short for the one setting that a part is known by
    iid+rotations=2+sample=600           what else is done, one after another
    (1e9, 2e9) or [1e9, 2e9]             several values
    table('cells (1), new.csv')          a text may stand between quotation marks, and must where it has commas

A text is read one level at a time, and what is inside is left as it was written: only the type of a setting says
whether `0+1:5` is a text, `yes` a truth value or `ring` a part. Nothing that is read is ever executed.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

from ..errors import UsageError, require

DEEPEST = 20  # parentheses within parentheses
_CLOSING = {"(": ")", "[": "]"}


class Call(NamedTuple):
    """A name and what it is given."""

    name: str  # "" for a list
    given: tuple[tuple[str, str], ...] = ()  # (key, text); the key is "" where the place says which setting is meant
    short: bool = False  # NAME=value


def read(key: str, text: str) -> Call | None:
    """A text as a call; None if it has the form of none.

    >>> read("select", "by-cell(2, of=active(n=1))")
    Call(name='by-cell', given=(('', '2'), ('of', 'active(n=1)')), short=False)
    """
    text = text.strip()
    match = re.match(r"([A-Za-z][\w-]*)?\s*", text)
    assert match is not None  # it may be empty
    name, rest = (match[1] or "").lower(), text[match.end() :]
    if not rest and name:
        return Call(name)
    if name and rest.startswith("="):
        return Call(name, (("", rest[1:].strip()),), True)
    if not rest.startswith(("(", "[") if not name else "("):
        return None
    scanned = [(place, depth) for place, _, depth in _scanned(key, text)]  # refuses what is not closed
    if next(place for place, depth in scanned if depth == 0 and place > match.end()) != len(text) - 1:
        return None
    return Call(name, tuple(_keyed(word) for word in split(key, rest[1:-1])))


def _keyed(word: str) -> tuple[str, str]:
    match = re.fullmatch(r"([A-Za-z_]\w*)\s*=\s*(.*)", word, re.DOTALL)
    return (match[1], match[2]) if match else ("", word)


def settings_in(key: str, text: str) -> tuple[str, dict[str, str]]:
    """A name, which may be one of the user's own, and its settings in parentheses, all by name.

    >>> settings_in("method", "mine:ditto(mu=1, select=uniform(n=5))")
    ('mine:ditto', {'mu': '1', 'select': 'uniform(n=5)'})
    """
    text = text.strip()
    name, opens, _ = text.partition("(")
    if not opens:
        return text, {}
    closes = next((place for place, _, depth in _scanned(key, text) if place > len(name) and not depth), -1)
    require(closes == len(text) - 1, f"{key} {text}: nothing may follow the settings of {name}")
    found: dict[str, str] = {}
    for word in split(key, text[len(name) + 1 : -1]):
        match = re.fullmatch(r"([A-Za-z_][\w.]*)\s*=\s*(.*)", word, re.DOTALL)
        require(match is not None, f"{key} {text}: settings have names, got '{word}'; write {name}(KEY={word})")
        assert match is not None
        require(match[1] not in found, f"{key} {text} is given {match[1]} twice")
        found[match[1]] = match[2]
    return name.strip(), found


def split(key: str, text: str, at: str = ",") -> list[str]:
    """What is between commas at the outermost level; after the last one there may be nothing.

    >>> split("terms", "prox(mu=1, implicit=yes), prox(2),")
    ['prox(mu=1, implicit=yes)', 'prox(2)']
    """
    words, start = [], 0
    for place, letter, depth in _scanned(key, text):
        if letter == at and depth == 0:
            words.append(text[start:place].strip())
            start = place + 1
    return [*words, last] if (last := text[start:].strip()) else words


def chain(key: str, text: str) -> list[str]:
    """What is between plus signs that a name follows: not those of 1e+3.

    >>> chain("partition", "dirichlet=1e+3+rotations=2")
    ['dirichlet=1e+3', 'rotations=2']
    """
    first, *others = [*split(key, text, "+"), *[""] * (not text.strip() or text.rstrip().endswith("+"))]
    links = [first]
    for word in others:
        if word[:1].isalpha():
            links.append(word)
        else:
            links[-1] += f"+{word}"
    return links


def _scanned(key: str, text: str) -> Iterator[tuple[int, str, int]]:
    """Letters outside of quotation marks: place, letter, and how deep it is in parentheses, themselves outside."""
    closing: list[str] = []
    quote, fresh = "", True  # a mark opens only where a word begins: o'brien.csv is a name
    for place, letter in enumerate(text):
        if quote:
            quote = "" if letter == quote else quote
            continue
        if fresh and letter in "'\"":
            quote = letter
            continue
        if letter in _CLOSING:
            closing.append(_CLOSING[letter])
            require(len(closing) <= DEEPEST, f"{key}={text[:40]}...: parts are nested more than {DEEPEST} deep")
        elif letter in ")]":
            require(bool(closing) and closing.pop() == letter, f"{key}={text}: '{letter}' closes nothing")
        yield place, letter, len(closing)
        fresh = letter in "([,=+" or (fresh and letter.isspace())
    if closing or quote:
        raise UsageError(f"{key}={text}: {quote or closing[-1]} is missing at the end")


def is_list(text: str) -> bool:
    """Whether a text is a list in parentheses or brackets."""
    return text.lstrip()[:1] in ("(", "[")


def unquoted(text: str) -> str:
    """A text without the quotation marks around it."""
    text = text.strip()
    return text[1:-1] if len(text) > 1 and text[0] in "'\"" and text[-1] == text[0] else text


def quoted(text: str) -> str | None:
    """A text between quotation marks it does not have; None if it has both."""
    return next((f"{mark}{text}{mark}" for mark in "'\"" if mark not in text), None)
