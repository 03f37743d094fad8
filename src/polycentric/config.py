"""From words to a run: names, TOML files and `--set key=value` become methods, data and models.

A setting is reached by its name wherever it lives: `lr` of the clients' training, `select` of the method,
`select.n` of the selection. Parts are written as they are built: `uniform(n=10)`, `momentum(lr=1, beta=0.9)`.
Nothing that is read is ever executed.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import tomllib
import types
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, Union

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from .aggregate import Aggregate, Krum, Mean, Median, TrimmedMean
from .data import Federation, load, parse
from .errors import Mistake, unknown
from .learn import Train
from .loop import Run, Schedule, prepare
from .method import Method
from .methods import METHODS
from .objective import Prox, Term
from .optimizer import SGD, Adam, Average, Center, Momentum
from .select import Everyone, Poisson, Select, Uniform
from .stack import WHOLE, Cut, KeepPrivate

# For every kind of part: what it may be called in a config, and what that builds.
PARTS: dict[object, dict[str, Callable[..., Any]]] = {
    Select: {"everyone": Everyone, "uniform": Uniform, "poisson": Poisson},
    Center: {"average": Average, "sgd": SGD, "momentum": Momentum, "adam": Adam},
    Aggregate: {"mean": Mean, "trimmed-mean": TrimmedMean, "median": Median, "krum": Krum},
    Cut: {"whole": lambda: WHOLE, "private": KeepPrivate},
    Term: {"prox": Prox},
}


class Settings(BaseModel):
    """Everything a run is made from; what `config.json` in its folder holds."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=())

    method: str
    data: str = "digits"
    partition: str | None = None
    clients: int | None = Field(default=None, ge=1)
    valid: float = Field(default=0.0, ge=0, lt=1)
    model: str | None = None
    rounds: int = Field(default=50, ge=0)
    seed: int = Field(default=0, ge=0)
    set: dict[str, Any] = Field(default_factory=dict)
    evaluate_every: int | None = Field(default=None, ge=1)
    checkpoint_every: int | None = Field(default=None, ge=1)
    patience: int | None = Field(default=None, ge=1)
    target: float | None = Field(default=None, gt=0, le=1)
    fine_tune: int = Field(default=1, ge=0)
    executor: Literal["auto", "looped", "stacked"] = "auto"
    block: int | None = Field(default=None, ge=1)
    device: str = "auto"
    dtype: Literal["float32", "float64"] = "float32"

    @staticmethod
    def of(values: Mapping[str, Any], where: str = "the command") -> Settings:
        """Checked settings; the first thing that is wrong is said in one line."""
        for key in values:
            if key not in Settings.model_fields:
                raise unknown(f"key in {where}", str(key), Settings.model_fields)
        try:
            return Settings(**values)
        except ValidationError as error:
            first = error.errors()[0]
            key = ".".join(str(part) for part in first["loc"])
            got = "" if first["type"] == "missing" else f", got {first['input']!r}"
            raise Mistake(f"{key} in {where}: {first['msg'][0].lower()}{first['msg'][1:]}{got}") from error

    def build_method(self) -> Method:
        """The method these settings describe."""
        return build_method(self.method, self.set)

    def load_data(self) -> Federation:
        """The federation these settings describe."""
        valid = self.valid or (0.1 if self.patience else 0.0)  # patience needs somebody to ask
        partition = None if self.partition is None else parse(self.partition, self.clients)
        return load(self.data, partition=partition, clients=self.clients, seed=self.seed, valid=valid)

    def prepare(self, federation: Federation | None = None) -> Run:
        """The run these settings describe, before its first round."""
        method = self.build_method()  # before the data are read: a mistake here costs nothing
        federation = federation if federation is not None else self.load_data()
        schedule = Schedule(
            self.rounds,
            self.evaluate_every,
            self.checkpoint_every,
            self.patience,
            self.target,
            self.fine_tune,
        )
        return prepare(
            method,
            federation,
            model=self.model,
            seed=self.seed,
            schedule=schedule,
            executor=self.executor,
            block=self.block,
            device=self.device,
            dtype=self.dtype,
        )


def read_toml(path: Path) -> dict[str, Any]:
    """A TOML file as a dictionary."""
    try:
        text = path.read_bytes()
        if len(text) > 1 << 20:
            raise Mistake(f"{path} has {len(text)} bytes; a config has a few hundred")
        return tomllib.loads(text.decode("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise Mistake(f"{path} cannot be read as TOML: {_one_line(error)}") from error


def pairs(settings: list[str]) -> dict[str, Any]:
    """`["lr=0.1", "select=uniform(n=10)"]` as a dictionary."""
    out: dict[str, Any] = {}
    for text in settings:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise Mistake(f"--set takes key=value, got '{text}'; for example --set lr=0.1")
        out[key.strip()] = value.strip()
    return out


# -- methods -------------------------------------------------------------------------------------------------


def parameters(method: str) -> dict[str, inspect.Parameter]:
    """Every setting a method has, its own and those of its clients' training."""
    if method not in METHODS:
        raise unknown("method", method, METHODS)
    recipe = METHODS[method]
    found = dict(inspect.signature(recipe, eval_str=True).parameters)
    if any(p.kind is p.VAR_KEYWORD for p in found.values()):
        found = {name: p for name, p in found.items() if p.kind is not p.VAR_KEYWORD}
        own = inspect.signature(Train, eval_str=True).parameters
        found |= {name: p for name, p in own.items() if name not in found and name != "trains"}
    return found


def build_method(name: str, settings: Mapping[str, Any]) -> Method:
    """A method with some of its settings changed, all checked."""
    known = parameters(name)
    flat = _flat(settings)
    values: dict[str, Any] = {}
    for key in sorted(flat, key=lambda k: k.count(".")):  # a part before the fields of that part
        head, _, rest = key.partition(".")
        if head not in known:
            raise unknown(f"setting of {name}", head, known)
        if not rest:
            values[head] = value_of(head, flat[key], known[head].annotation)
            continue
        part = values.get(head, known[head].default)
        if not dataclasses.is_dataclass(part) or isinstance(part, type):
            raise Mistake(f"{head} of {name} has no settings of its own, so '{key}' cannot be set")
        fields = typing.get_type_hints(type(part))
        if rest not in fields:
            raise unknown(f"setting of {head}={type(part).__name__.lower()}", rest, fields)
        values[head] = dataclasses.replace(part, **{rest: value_of(key, flat[key], fields[rest])})
    return METHODS[name](**values)


def value_of(key: str, value: Any, wanted: Any) -> Any:
    """A word or a TOML value as the type a setting wants."""
    options = typing.get_args(wanted) if typing.get_origin(wanted) in (Union, types.UnionType) else (wanted,)
    text = value.strip() if isinstance(value, str) else value
    if type(None) in options and (text is None or (isinstance(text, str) and text.lower() in ("none", "all"))):
        return None
    for option in options:
        if option in PARTS:
            return part_of(key, text, PARTS[option])
        if typing.get_origin(option) is tuple and typing.get_args(option)[0] in PARTS:
            catalog = PARTS[typing.get_args(option)[0]]
            items = text if isinstance(text, list) else [t for t in _split(str(text)) if t]
            return tuple(part_of(key, item, catalog) for item in items)
        if typing.get_origin(option) is Literal:
            if text in typing.get_args(option):
                return text
            raise unknown(key, str(text), map(str, typing.get_args(option)))
        if option in (bool, int, float, str):
            return _scalar(key, text, option)
    raise Mistake(f"{key} cannot be set from a config; set it in Python")


def part_of(key: str, value: Any, catalog: Mapping[str, Callable[..., Any]]) -> Any:
    """`uniform(n=10)` as the part it names."""
    match = re.fullmatch(r"([A-Za-z][\w-]*)(?:\((.*)\))?", str(value).strip(), re.DOTALL)
    if not match:
        raise Mistake(f"{key} must be one of {', '.join(catalog)}, like {next(iter(catalog))}, got '{value}'")
    name, inside = match[1].lower(), match[2]
    if name not in catalog:
        raise unknown(key, name, catalog)
    build = catalog[name]
    if build is KeepPrivate:
        return KeepPrivate(*(_unquoted(item) for item in _split(inside or "")))
    hints = {n: p for n, p in inspect.signature(build, eval_str=True).parameters.items()}
    given: dict[str, Any] = {}
    for position, item in enumerate(_split(inside or "")):
        field, equals, word = item.partition("=")
        field = field.strip() if equals else (list(hints) + [""] * len(hints))[position] if hints else ""
        if field not in hints:
            raise unknown(f"setting of {name}", field or item, hints)
        given[field] = value_of(f"{key}.{field}", word if equals else item, hints[field].annotation)
    missing = [n for n, p in hints.items() if p.default is p.empty and n not in given]
    if missing:
        raise Mistake(f"{name} needs {missing[0]}: write {key}={name}({missing[0]}=...)")
    return build(**given)


def _flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables with dotted keys; a table that has a `name` is a part."""
    out: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping):
            inner = dict(value)
            if "name" in inner:
                out[f"{prefix}{key}"] = inner.pop("name")
            out |= _flat(inner, f"{prefix}{key}.")
        else:
            out[f"{prefix}{key}"] = value
    return out


def _scalar(key: str, value: Any, wanted: type) -> Any:
    if wanted is bool:
        words = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
        if isinstance(value, bool) or str(value).lower() in words:
            return value if isinstance(value, bool) else words[str(value).lower()]
        raise Mistake(f"{key} must be true or false, got '{value}'")
    if wanted is str:
        return _unquoted(str(value))
    try:
        if isinstance(value, bool):
            raise ValueError
        number = wanted(value)
        if wanted is int and isinstance(value, float) and value != number:
            raise ValueError
    except (ValueError, TypeError, OverflowError) as error:
        kind = "a whole number" if wanted is int else "a number"
        raise Mistake(f"{key} must be {kind}, got '{value}'") from error
    return number


def _split(text: str) -> list[str]:
    """Commas at the outermost level."""
    parts, depth, last = [], 0, ""
    for letter in text:
        depth += (letter == "(") - (letter == ")")
        if letter == "," and depth == 0:
            parts.append(last.strip())
            last = ""
        else:
            last += letter
    return [*parts, last.strip()] if last.strip() else parts


def _unquoted(text: str) -> str:
    return text.strip().strip("'\"")


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())
