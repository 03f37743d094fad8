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

from ..parts.aggregate import Aggregate, GeometricMedian, Krum, Mean, Median, TrimmedMean
from ..parts.attack import Attack, LabelFlip, LargeNorm, NotANumber, SameValue, SignFlip
from ..simulate.clock import Clock, Delays, Normalised, Physical
from ..topology.cells.coverage import Geometry
from ..topology.cells.geometries import GEOMETRIES
from ..data import Federation, load
from ..errors import UsageError, require, unknown
from ..topology.graphs.networks import NETWORKS, Network
from ..learn import Train
from .loop import Run, Schedule, prepare
from ..method import Method
from ..methods import METHODS
from ..parts.objective import Prox, Term
from ..parts.optimizer import SGD, Adam, Average, Center, Momentum
from ..parts.privacy import Gaussian, NoPrivacy, Privacy
from ..simulate.ranks import ALONE, Ranks
from ..parts.select import Active, Churn, Everyone, Poisson, Select, Uniform
from ..topology.cells.by_cell import ByCell
from ..stacks.stack import WHOLE, Cut, KeepPrivate

# For every kind of part: what it may be called in a config, and what that builds.
PARTS: dict[object, dict[str, Callable[..., Any]]] = {
    Select: {
        "everyone": Everyone,
        "uniform": Uniform,
        "poisson": Poisson,
        "active": Active,
        "churn": Churn,
        "by-cell": ByCell,
    },
    Center: {"average": Average, "sgd": SGD, "momentum": Momentum, "adam": Adam},
    Aggregate: {
        "mean": Mean,
        "trimmed-mean": TrimmedMean,
        "median": Median,
        "krum": Krum,
        "geometric-median": GeometricMedian,
    },
    Attack: {
        "nan": NotANumber,
        "sign-flip": SignFlip,
        "large-norm": LargeNorm,
        "same-value": SameValue,
        "label-flip": LabelFlip,
    },
    Cut: {"whole": lambda: WHOLE, "private": KeepPrivate},
    Term: {"prox": Prox},
    Privacy: {"none": NoPrivacy, "gaussian": Gaussian},
    Geometry: GEOMETRIES,
    Clock: {"physical": Physical, "normalised": Normalised, "delays": Delays},
    Network: NETWORKS,
}

LARGEST = 1 << 40  # whole numbers beyond it are slips of the finger, and would not fit a tensor


class Settings(BaseModel):
    """Everything a run is made from; what `config.json` in its folder holds."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=())

    method: str
    data: str = "digits"
    partition: str | None = None
    clients: int | None = Field(default=None, ge=1, le=LARGEST)
    valid: float = Field(default=0.0, ge=0, lt=1)
    model: str | None = None
    rounds: int = Field(default=50, ge=0, le=LARGEST)
    seed: int = Field(default=0, ge=0, lt=1 << 63)
    set: dict[str, Any] = Field(default_factory=dict)
    evaluate_every: int | None = Field(default=None, ge=1)
    checkpoint_every: int | None = Field(default=None, ge=1)
    patience: int | None = Field(default=None, ge=1)
    target: float | None = Field(default=None, gt=0, le=1)
    fine_tune: int = Field(default=1, ge=0)
    dissimilarity: bool = False
    optimistic: bool = False
    held_out: float = Field(default=0.0, ge=0, lt=1)
    held_out_seed: int | None = Field(default=None, ge=0, lt=1 << 63)
    attack: str | None = None
    executor: Literal["auto", "looped", "stacked", "compiled"] = "auto"
    block: int | None = Field(default=None, ge=1)
    workers: int = Field(default=1, ge=1, le=1024)
    device: str = "auto"
    dtype: Literal["float32", "float64"] = "float32"
    precision: Literal["float32", "tf32", "bf16"] = "float32"
    clock: str = "physical"
    state: Literal["memory", "disk"] = "memory"

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
            raise UsageError(f"{key} in {where}: {first['msg'][0].lower()}{first['msg'][1:]}{got}") from error

    def build_method(self) -> Method:
        """The method these settings describe."""
        return build_method(self.method, self.set)

    def build_clock(self) -> Clock:
        """The clock these settings describe."""
        clock: Clock = part_of("clock", self.clock, PARTS[Clock])
        return clock

    def build_attack(self) -> Attack | None:
        """The attack these settings describe: `sign-flip(share=0.2)`."""
        attack: Attack | None = value_of("attack", self.attack, Attack | None)
        return attack

    def load_data(self) -> Federation:
        """The federation these settings describe."""
        valid = self.valid or (0.1 if self.patience else 0.0)  # patience needs somebody to ask
        return load(self.data, partition=self.partition, clients=self.clients, seed=self.seed, valid=valid)

    def prepare(self, federation: Federation | None = None, ranks: Ranks = ALONE) -> Run:
        """The run these settings describe, before its first round."""
        # Before the data are read: a mistake costs nothing.
        method, clock, attack = self.build_method(), self.build_clock(), self.build_attack()
        federation = federation if federation is not None else self.load_data()
        schedule = Schedule(
            self.rounds,
            self.evaluate_every,
            self.checkpoint_every,
            self.patience,
            self.target,
            self.fine_tune,
            self.dissimilarity,
            self.optimistic,
        )
        return prepare(
            method,
            federation,
            model=self.model,
            seed=self.seed,
            schedule=schedule,
            executor=self.executor,
            block=self.block,
            held_out=self.held_out,
            held_out_seed=self.held_out_seed,
            attack=attack,
            device=self.device,
            dtype=self.dtype,
            precision=self.precision,
            clock=clock,
            workers=self.workers,
            ranks=ranks,
            state=self.state,
        )


def read_toml(path: Path) -> dict[str, Any]:
    """A TOML file as a dictionary."""
    try:
        text = path.read_bytes()
        if len(text) > 1 << 20:
            raise UsageError(f"{path} has {len(text)} bytes; a config has a few hundred")
        return tomllib.loads(text.decode("utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or _one_line(error)
        raise UsageError(f"'{path}' cannot be read as TOML: {reason}") from error


def changed(values: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """A config with some settings of its method replaced."""
    own = values.get("set", {})
    return {**values, "set": {**own, **settings} if isinstance(own, Mapping) else own}  # what is wrong stays so


def pairs(settings: list[str]) -> dict[str, Any]:
    """`["lr=0.1", "select=uniform(n=10)"]` as a dictionary."""
    out: dict[str, Any] = {}
    for text in settings:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise UsageError(f"--set takes key=value, got '{text}'; for example --set lr=0.1")
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
    own, inner = _sorted_out(settings)
    values: dict[str, Any] = {}
    for key in own | inner:
        if key not in known:
            raise unknown(f"setting of {name}", key, known)
        wanted, fields = known[key].annotation, inner.get(key, {})
        if key in own:
            values[key] = value_of(key, own[key], wanted, fields)
        elif dataclasses.is_dataclass(part := known[key].default) and not isinstance(part, type):
            values[key] = _changed(key, part, fields)
        else:
            raise UsageError(f"{key} of {name} has no settings of its own, so '{key}.{next(iter(fields))}' cannot be set")
    return METHODS[name](**values)


def _sorted_out(settings: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Settings of the method, and settings of its parts: `select.n=5`, or a table {name, n}."""
    own: dict[str, Any] = {}
    inner: dict[str, dict[str, Any]] = {}
    for key, value in settings.items():
        head, dot, field = str(key).partition(".")
        if dot:
            inner.setdefault(head, {})[field] = value
        elif isinstance(value, Mapping):
            table = dict(value)
            if "name" in table:
                own[head] = table.pop("name")
            if table:
                inner.setdefault(head, {}).update(table)
        else:
            own[head] = value
    return own, inner


def _changed(key: str, part: Any, fields: Mapping[str, Any]) -> Any:
    """A part with some of its fields replaced."""
    known, name = typing.get_type_hints(type(part)), type(part).__name__.lower()
    for field in fields:
        if not known:
            raise UsageError(f"{key}={name} has no settings, so '{key}.{field}' cannot be set; choose another {key} first")
        if field not in known:
            raise unknown(f"setting of {key}={name}", str(field), known)
    return dataclasses.replace(part, **{f: value_of(f"{key}.{f}", v, known[f]) for f, v in fields.items()})


def value_of(key: str, value: Any, wanted: Any, fields: Mapping[str, Any] | None = None) -> Any:
    """A word or a TOML value as the type a setting wants."""
    options = typing.get_args(wanted) if typing.get_origin(wanted) in (Union, types.UnionType) else (wanted,)
    text = value.strip() if isinstance(value, str) else value
    if type(None) in options and (text is None or (isinstance(text, str) and text.lower() in ("none", "all"))):
        return None
    for option in options:
        if option in PARTS:
            return part_of(key, text, PARTS[option], fields)
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
    raise UsageError(f"{key} cannot be set from a config; set it in Python")


def part_of(
    key: str, value: Any, catalog: Mapping[str, Callable[..., Any]], fields: Mapping[str, Any] | None = None
) -> Any:
    """`uniform(n=10)` as the part it names; `fields` are given beside it and win."""
    match = re.fullmatch(r"([A-Za-z][\w-]*)(?:\((.*)\))?", str(value).strip(), re.DOTALL)
    if not match:
        raise UsageError(f"{key} must be one of {', '.join(catalog)}, like {next(iter(catalog))}, got '{value}'")
    name, words = match[1].lower(), _split(match[2] or "")
    if name not in catalog:
        raise unknown(key, name, catalog)
    build = catalog[name]
    if build is KeepPrivate:
        return KeepPrivate(*(_unquoted(word) for word in words))
    known = dict(inspect.signature(build, eval_str=True).parameters)
    given: dict[str, Any] = {}
    for position, word in enumerate(words):
        field, equals, rest = word.partition("=")
        if known and not equals and position >= len(known):
            hint = "; regions are separated by blanks" * (name == "regions")
            raise UsageError(f"{name} takes {', '.join(known)}, and '{word.strip()}' is one too many{hint}")
        field = field.strip() if equals else list(known)[position] if known else ""
        if field in given:
            raise UsageError(f"{name} is given {field} twice in {key}={value}")
        given[field] = rest if equals else word
    given |= fields or {}
    for field in given:
        if field not in known:
            taken = f"setting of {name}", str(field), known
            raise unknown(*taken) if known else UsageError(f"{name} has no settings, got '{value}'")
    missing = [n for n, p in known.items() if p.default is p.empty and n not in given]
    if missing:
        raise UsageError(f"{name} needs {missing[0]}: write {key}={name}({missing[0]}=...)")
    return build(**{f: value_of(f"{key}.{f}", v, known[f].annotation) for f, v in given.items()})


def _scalar(key: str, value: Any, wanted: type) -> Any:
    if wanted is bool:
        words = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
        if isinstance(value, bool) or str(value).lower() in words:
            return value if isinstance(value, bool) else words[str(value).lower()]
        raise UsageError(f"{key} must be true or false, got '{value}'")
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
        raise UsageError(f"{key} must be {kind}, got '{value}'") from error
    require(wanted is float or abs(number) <= LARGEST, f"{key} must be at most {LARGEST:,}, got {value}")
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
