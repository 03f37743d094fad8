"""From words to a run: names, TOML files and `--set key=value` become methods, data and models.

A setting is reached by its name wherever it lives: `lr` of the clients' training, `select` of the method,
`select.n` of the selection. Parts are written as they are built: `uniform(n=10)`, `momentum(lr=1, beta=0.9)`.
Nothing that is read is ever executed.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ..data import Federation, load
from ..errors import UsageError, unknown
from ..language import LARGEST, part_of, value_of
from ..method import Method
from ..methods.recipes import build_method
from ..parts.attack import Attack
from ..simulate.clock import Clock
from ..simulate.ranks import ALONE, Ranks
from .loop import Run, Schedule, prepare


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
        clock: Clock = part_of("clock", self.clock, Clock)
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


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())
