"""The front door: one command, `polycentric`."""

from __future__ import annotations

import gc
import os
import signal
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, cast

import typer

from ..errors import Diverged, Lost, OtherRankFailed, UsageError, synonym
from .options import Interrupted

SHARED = ("run", "resume", "bench")  # commands that several ranks can do together
TRAIN = (*SHARED, "compare", "sweep", "demo")
# typer carries a copy of click in newer versions, so click's exceptions are found through typer's own.
CLICK_ERROR = cast("type[Exception]", typer.BadParameter.__mro__[2])
OF_TORCH = ("(Triggered internally at", "batching rule for aten", "github.com/pytorch")  # in torch's own warnings
NO_MEMORY = ("can't allocate memory", "out of memory")  # how torch says it, on the host and on a GPU


def main(arguments: list[str] | None = None) -> None:
    """Run the command; an error that the user can fix is printed in one line, with exit code 2."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a terminal that lacks a sign shows its code instead
            stream.reconfigure(errors="backslashreplace")
    signal.signal(signal.SIGTERM, _told_to_end)
    if arguments is None and len(sys.argv) > 1 and sys.argv[1] in TRAIN:
        _load_torch()
    code = outcome(sys.argv[1:] if arguments is None else arguments)
    if arguments is None:  # the process ends: to look for cycles in all that torch has loaded would take a second
        gc.freeze()
    sys.exit(code)


def _load_torch() -> None:
    """Torch, without hundreds of looks for cycles in what is being loaded, which stays: 0.2 s of every start."""
    gc.disable()
    try:
        import torch  # noqa: F401
    finally:
        gc.freeze()
        gc.enable()


def _told_to_end(*_: object) -> None:
    """SIGTERM is as Ctrl-C: the last whole round is kept."""
    raise KeyboardInterrupt("SIGTERM")


def outcome(arguments: list[str]) -> int:
    """The exit code of a command."""
    from ..runs.machine import keep_freed_memory
    from .app import app

    if _ranks()[1] > 1 and (not arguments or arguments[0] not in SHARED):
        what = f"'{arguments[0]}'" if arguments else "no command"
        said = f"torchrun works with {', '.join(SHARED)} only, got {what}: leave torchrun out"
        return _said(said, 2) if _ranks()[0] == 0 else 2
    keep_freed_memory()
    if "" not in sys.path:  # `--model mynet:Net` finds mynet.py here; last, so that it hides nobody else's module
        sys.path.append("")
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _noting()  # type: ignore[assignment]
            result = app(arguments, standalone_mode=False, prog_name="polycentric")
            if sys.stdout:
                sys.stdout.flush()
        if result == 130:  # how newer versions of typer tell of Ctrl-C
            raise KeyboardInterrupt
        return result if isinstance(result, int) else 0
    except KeyboardInterrupt:
        return _said("interrupted", 130) if _ranks()[0] == 0 else 130
    except OSError as error:
        return _unwritten(error)
    except Exception as error:
        return _explained(error, arguments)


def _ranks() -> tuple[int, int]:
    """Which of how many ranks this is, without waiting for torch; see `polycentric.simulate.ranks`."""
    rank, size = os.environ.get("RANK", ""), os.environ.get("WORLD_SIZE", "")
    return (int(rank), int(size)) if rank.isdigit() and size.isdigit() else (0, 1)


def _quiet(error: Exception) -> bool:
    """Whether another rank says it: what happens to all is said by the first; what happens to one, by that one."""
    rank, _ = _ranks()
    if isinstance(error, Lost) or (isinstance(error, Interrupted) and error.__cause__ and error.__cause__.args):
        return rank > 1  # the second speaks, too: the first may be the one that is lost, and torchrun ends the others
    of_all = isinstance(error, Interrupted | typer.Abort | Diverged | CLICK_ERROR)
    return isinstance(error, OtherRankFailed) or (rank > 0 and of_all)


def _explained(error: Exception, arguments: Sequence[str]) -> int:
    """What can be mended in one line; anything else is a fault of ours, and shown whole."""
    if _quiet(error):
        return 1
    if isinstance(error, typer.Exit):
        return error.exit_code
    if isinstance(error, Interrupted | typer.Abort):
        return _said(f"interrupted; {error}", 130)
    if isinstance(error, UsageError):
        return _said(str(error), 2)
    if isinstance(error, Diverged | Lost):
        return _said(str(error), 1)
    if isinstance(error, CLICK_ERROR):
        return _said_usage(error, arguments)
    if isinstance(error, ValueError) and "null byte" in str(error):  # some versions of typer look at a path too early
        strange = next((word for word in arguments if "\0" in word), "a word")
        before = arguments[arguments.index(strange) - 1] if strange in arguments[1:] else ""
        return _said(f"{before} {strange!r} has a null byte in it, which no file name can have", 2)
    if isinstance(error, MemoryError) or any(word in str(error) for word in NO_MEMORY):
        return _said("not enough memory: try fewer clients at once (--block 1) or a smaller model", 2)
    raise error


def _unwritten(error: OSError) -> int:
    """A disk that is full, a folder that is closed to us, or a reader of our output that has gone."""
    if error.filename is None:
        _forget(sys.stdout)
    if isinstance(error, BrokenPipeError):  # nothing to say, nobody to say it to
        return 1
    where = f"'{error.filename}'" if error.filename else "the output"
    return _said(
        f"cannot read or write {where}: {error.strerror or error}; free some space, or choose another folder", 2
    )


def _said(message: str, code: int) -> int:
    if sys.stderr:  # None where it was closed, and print would take stdout
        who = f"rank {_ranks()[0]}: " if _ranks()[0] else ""
        print(f"error: {who}{_line(message)}", file=sys.stderr)
    return code


def _said_usage(error: Exception, arguments: Sequence[str]) -> int:
    """What is wrong with the words of a command."""
    message = str(getattr(error, "format_message", error.__str__)())
    if type(error).__name__ == "NoArgsIsHelpError":  # the message is the help
        print(message, file=sys.stderr)
        return 2
    given = _given(arguments, getattr(getattr(error, "param", None), "opts", ()))
    got = f", got '{given}'" if given is not None and given not in message else ""
    context = getattr(error, "ctx", None)
    hint = f" (see {context.command_path} --help)" if context else ""
    option = getattr(error, "option_name", None)  # of one that there is not
    return _said(f"{message}{got}{_meant(option) if option else ''}{hint}", 2)


def _meant(option: str) -> str:
    """What somebody meant by an option that there is not: another one, or a setting of the method."""
    from dataclasses import fields

    from ..learn import Train
    from ..runs.settings import Settings

    name = synonym(option) or option.lstrip("-").replace("-", "_")
    if name in Settings.model_fields and synonym(option):
        return f"; did you mean --{name.replace('_', '-')}?"
    return f"; did you mean --set {name}=...?" if name in {field.name for field in fields(Train)} else ""


def _given(arguments: Sequence[str], names: Sequence[str]) -> str | None:
    """The value that was typed for an option, which typer leaves out of its message."""
    for word, after in zip(arguments, [*arguments[1:], ""], strict=True):
        name, equals, value = word.partition("=")
        if name in names and name.startswith("-"):
            return value if equals else after
    return None


def _forget(stream: IO[str] | None) -> None:
    """Let what a stream still holds go nowhere, so that it is not tried again at the end."""
    try:
        if stream:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    except (OSError, ValueError):  # no file behind it
        pass


def _noting() -> Callable[..., None]:
    """Warnings as notes, each of them once: two parts of a method may have the same to say.

    What torch says to those who develop it is left out: nobody who types a command can do anything about it.
    """
    said: set[str] = set()

    def note(message: Warning | str, category: object = None, filename: str = "", *_: object) -> None:
        line = _line(str(message))
        if line not in said and _ranks()[0] == 0 and not _for_developers(line, filename):
            print(f"note: {line}", file=sys.stderr)
        said.add(line)

    return note


def _for_developers(line: str, filename: str) -> bool:
    """Whether torch speaks: from a file of its own, or from its C++ code, which is put down to whoever called it."""
    return "torch" in Path(filename).parts or any(words in line for words in OF_TORCH)


def _line(message: str) -> str:
    """One printable line: no break, no code that a terminal would obey."""
    return "".join(letter if letter.isprintable() else "?" for letter in " ".join(message.split()))
