"""Options that commands share. Those of a run are not written here: they follow from the fields of `Settings`."""

from __future__ import annotations

import inspect
import itertools
import types
import typing
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Literal, Union

import typer

from ..errors import Lost, UsageError, require
from ..language.own_code import ask_consent
from ..runs.settings import Settings, changed, pairs, read_toml, unbracketed

SetOption = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help=Settings.model_fields["set"].description)
]
Out = Annotated[Path | None, typer.Option(help="Folder for the run. [default: a new one in runs/]")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output, nothing else.")]
Track = Annotated[
    list[str] | None,
    typer.Option("--track", metavar="NAME", help="Also log to tensorboard, mlflow or wandb, in the run's folder."),
]
Quiet = Annotated[bool, typer.Option("--quiet", help="Hide the progress bar.")]
Wait = Annotated[
    float, typer.Option(help="Under torchrun: seconds without an answer before another rank counts as lost.")
]
Trust = Annotated[
    bool, typer.Option("--trust", help="Run code that the file or folder names as module:attribute, now and later.")
]
Jobs = Annotated[int, typer.Option(min=1, help="Runs in parallel, each in a process of its own.")]
Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:1, or auto.")]
RunFolders = Annotated[
    list[Path], typer.Argument(help="Folders of runs, or folders that hold several, such as runs/compare.")
]


def of_settings(*only: str, without: tuple[str, ...] = ()) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A command that takes settings of a run as options: its `**options` are those that were typed.

    By default all of them; `only` some, or all `without` some.
    """
    chosen = [name for name in Settings.model_fields if name in only or (not only and name not in ("method", *without))]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def typed(**given: Any) -> None:
            options = {name: given.pop(_argument(name)) for name in chosen}
            command(**given, options={name: value for name, value in options.items() if value is not None})

        own = [p for p in inspect.signature(command, eval_str=True).parameters.values() if p.name != "options"]
        first = [p for p in own if _is_argument(p)]
        named = inspect.Parameter.KEYWORD_ONLY
        derived = [inspect.Parameter(_argument(n), named, default=None, annotation=_option(n)) for n in chosen]
        rest = [p.replace(kind=named) for p in own if p not in first]
        typed.__signature__ = inspect.Signature([*first, *derived, *rest])  # type: ignore[attr-defined]
        typed.__annotations__ = {p.name: p.annotation for p in (*first, *derived, *rest)}
        return typed

    return decorate


def _argument(name: str) -> str:
    """A name for Python: `set` is taken by a builtin, and the option is spelled by itself."""
    return f"{name}_"


def _option(name: str) -> Any:
    """The option that a field of `Settings` becomes; None: it was not typed."""
    field = Settings.model_fields[name]
    if name == "set":
        return SetOption
    flag = f"--{name.replace('_', '-')}"
    help, default = field.description or "", field.default
    if default is not None and not isinstance(default, bool):
        help += f" [default: {default}]"
    return Annotated[_plain(field.annotation) | None, typer.Option(flag, help=help, show_default=False)]


def _plain(annotation: Any) -> Any:
    """The type an option is read as; what words are allowed is checked, and said, by `Settings`."""
    kinds = [annotation]
    if typing.get_origin(annotation) in (Union, types.UnionType):
        kinds = [kind for kind in typing.get_args(annotation) if kind is not type(None)]
    return str if any(typing.get_origin(kind) is Literal for kind in kinds) else kinds[0]


def _is_argument(parameter: inspect.Parameter) -> bool:
    return any(isinstance(part, typer.models.ArgumentInfo) for part in typing.get_args(parameter.annotation)[1:])


def settings_of(method: str, options: dict[str, Any], check: bool = True, trust: bool = False) -> Settings:
    """Settings from a method's name, or from a TOML file, and from options.

    `check`: all that is wrong in their words is said now, before others are looked at; who builds them next need not.
    """
    from ..runs.start import check_words

    values: dict[str, Any] = {"method": method}
    if method.endswith(".toml"):
        values = read_toml(Path(method))
        ask_consent(values, Path(method), trust)
        check_words(Settings.of(unbracketed(values), method))  # what is wrong in the file is said of the file
    return _checked(values, options, check=check)


def _checked(
    values: dict[str, Any],
    options: dict[str, Any],
    own: dict[str, Any] | None = None,
    where: str = "the command",
    check: bool = True,
) -> Settings:
    """Values with what was typed in place of some; every mistake is found before anything is read or written."""
    from ..runs.start import check_words

    typed = options.get("set") or []
    typed = pairs(typed) if isinstance(typed, list) else typed
    rest = {key: value for key, value in options.items() if key != "set"}
    settings = Settings.of(unbracketed(changed(values | rest, (own or {}) | typed)), where)
    if check:
        check_words(settings)
    return settings


def grid_of(config: Path, options: dict[str, Any], trust: bool = False) -> tuple[list[dict[str, Any]], list[Settings]]:
    """Every combination of the lists in [grid], and its settings; options go before what the file says."""
    values, grid = read_grid(config, trust)
    for key, axis in grid.items():
        require(isinstance(axis, list), f"{key} in {config} is a range, {axis}: add --search random, or write a list")
    points = [dict(zip(grid, combination, strict=True)) for combination in itertools.product(*grid.values())]
    return points, [at_point(values, point, config, options) for point in points]


def read_grid(config: Path, trust: bool = False) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a file says for all runs, and its [grid]: lists, or ranges {low, high}."""
    values = read_toml(config)
    ask_consent(values, config, trust)
    grid = values.pop("grid", None)
    good = isinstance(grid, dict) and grid and all(isinstance(v, list | dict) and v for v in grid.values())
    if not good:
        raise UsageError(f'{config} needs a [grid] table of lists, for example "set.lr" = [0.03, 0.1]')
    return values, dict(grid or {})


def at_point(values: dict[str, Any], point: dict[str, Any], config: Path, options: dict[str, Any]) -> Settings:
    """The settings at one point of a grid; keys that begin with `set.` are settings of the method."""
    own = {key: value for key, value in point.items() if not key.startswith("set.")}
    inner = {key[4:]: value for key, value in point.items() if key.startswith("set.")}
    return _checked(values | own, options, inner, str(config))


class Interrupted(Exception):
    """Ctrl-C, with what to type to go on."""


@contextmanager
def interruptible(command: str = "") -> Iterator[None]:
    """Say after Ctrl-C how to go on: with `command`, or with the same one again. The same where a rank was lost."""
    again = f"`{command}` continues from the last complete round" if command else "the same command again continues"
    try:
        yield
    except KeyboardInterrupt as end:
        raise Interrupted(again) from end
    except Lost as end:
        raise Lost(f"{end}; {again}") from end
