"""Code of the user's own by its name, `module:attribute`, and the consent that running it needs.

A name typed on the command line, or given in Python, is consent by itself. A name that stands in a file, a TOML
config or the config.json of a run, is not: whoever wrote the file would decide what runs here. `ask_consent` refuses
it, unless `--trust` is said, or was said before of the same file, or the run in that folder was begun here.
"""

from __future__ import annotations

import importlib
import inspect
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from operator import attrgetter
from pathlib import Path
from typing import Any

from ..errors import UsageError
from .files import append, parsed, read_text, sha256_of

_NAME = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
_WITHIN = re.compile(rf"(?<![\w.:]){_NAME.pattern}")


def is_own(word: object) -> bool:
    """Whether a word names code of the user's own.

    >>> is_own("mynet:Net"), is_own("mlp"), is_own("C:/data.npz")
    (True, False, False)
    """
    return isinstance(word, str) and _NAME.fullmatch(word) is not None


def own_names(values: Any) -> set[str]:
    """All names of code in the values of a config, however deep they lie.

    >>> sorted(own_names({"method": "mine:ditto(mu=1)", "set": {"metrics": ["a:b, c.d:e"]}, "data": "C:/x.npz"}))
    ['a:b', 'c.d:e', 'mine:ditto']
    """
    if isinstance(values, str):
        return set(_WITHIN.findall(values))
    inner = values.values() if isinstance(values, Mapping) else values if isinstance(values, list | tuple) else ()
    return set[str]().union(*map(own_names, inner))


def ask_consent(values: Any, path: Path, trust: bool = False) -> None:
    """Refuse the values of a file that name code which nobody has allowed."""
    names = own_names(values)
    if trust:
        remember(path, names)
        return
    for name in sorted(names - remembered(path)):
        if _agreed_on_terminal(name, path):
            remember(path, [name])
            continue
        raise UsageError(
            f"{path} names code, {name}, and code that a file names is not run by itself: look at it, and say --trust "
            "if you know whose it is (in Python trust=True)"
        )


def imported(name: str, what: str) -> Any:
    """What 'module:attribute' names; `what` it is meant to be, for messages."""
    path, _, attribute = name.partition(":")
    if not is_own(name):
        example = {"model": "mynet:Net"}.get(what, f"mine:{what}")
        raise UsageError(
            f"{what} '{name}' is neither a known name nor 'module:attribute'; write for example '{example}'"
        )
    try:
        module = importlib.import_module(path)
    except (Exception, SystemExit) as error:  # importing runs the user's file, where anything can happen
        raise UsageError(
            f"{what} '{name}' cannot be imported: {_said(error)}; `python -c 'import {path}'` must work, "
            "so install it or put its folder on PYTHONPATH"
        ) from error
    try:
        found: Any = attrgetter(attribute)(module)
    except AttributeError as error:
        raise UsageError(
            f"{what} '{name}' cannot be imported: {_said(error)}; write '{path}:' and a name that is in it"
        ) from error
    return found


def own_function(name: str, what: str) -> Any:
    """A function or class that 'module:attribute' names, defined there and not somewhere else: not `os:abort`."""
    found, path = imported(name, what), name.partition(":")[0]
    if not (inspect.isfunction(found) or inspect.isclass(found)):
        raise UsageError(f"{what} '{name}' is a {type(found).__name__}, not a function or class written in Python")
    home = str(getattr(found, "__module__", ""))
    if home != path and not home.startswith(f"{path}."):
        raise UsageError(f"{what} '{name}' is defined in {home}, not in {path}: write '{home}:{found.__qualname__}'")
    return found


def digest_of(name: str) -> str:
    """A digest of the file that code is written in: where it has changed, results are not the same any more."""
    source = inspect.getsourcefile(importlib.import_module(name.partition(":")[0]))
    return sha256_of(source) if source else ""


# -- what was allowed --------------------------------------------------------------------------------------------


def remember(path: Path, names: Iterable[str]) -> None:
    """Allow names of code in a file or folder from now on: a line more, so that runs may begin beside each other."""
    if new := set(names) - remembered(path):
        place = _place()
        place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        append(place, json.dumps([_key(path), *sorted(new)]) + "\n")


def remembered(path: Path) -> set[str]:
    """The names of code that were allowed in a file or folder."""
    return {name for line in _record() if line[0] == _key(path) for name in line[1:]}


def _record() -> Iterator[list[str]]:
    """Lines of a path and names; a line that was only begun says nothing."""
    with suppress(OSError, ValueError):
        for line in read_text(_place()).splitlines():
            with suppress(ValueError):
                said = parsed(line)
                if isinstance(said, list) and said and all(isinstance(word, str) for word in said):
                    yield said


def _key(path: Path) -> str:
    return str(Path(path).resolve())


def _place() -> Path:
    return Path(os.environ.get("XDG_STATE_HOME") or "~/.local/state").expanduser() / "polycentric" / "trusted.jsonl"


def _agreed_on_terminal(name: str, path: Path) -> bool:
    """Ask once, where somebody is there to answer."""
    try:
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            return False
        print(f"{path} asks to run code on this machine: {name}. Run it? [y/N] ", end="", file=sys.stderr, flush=True)
        return sys.stdin.readline().strip().lower() in ("y", "yes")
    except (AttributeError, ValueError, OSError):
        return False


def _said(error: BaseException) -> str:
    """An error on one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
