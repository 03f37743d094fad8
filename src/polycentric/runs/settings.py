"""Everything a run is made from: one frozen, checked object.

An option of a run is written here and nowhere else. The options of the command and their `--help`, the keys of a TOML
file, the arguments of `pc.run`, `config.json` and the names of finished runs all follow from the fields of `Settings`.
What they mean is built in `runs.start`; this module needs no tensors, so that `--help` answers at once.
"""

from __future__ import annotations

import hashlib
import json
import shlex
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ..errors import UsageError, require, unknown
from ..language import LARGEST, settings_in
from ..language.files import read_bytes, why

CHECKPOINT_SECONDS = 30.0  # between two checkpoints, where nobody says in how many rounds


def option(default: Any, help: str, *, matters: bool = True, bound: bool = True, **bounds: Any) -> Any:
    """A field of `Settings`, explained.

    `matters`: results depend on it, so it is part of a run's name. `bound`: a checkpoint belongs to one value of it;
    not so where a run may go on with another, or where what it comes to is compared itself: data, method, clock, ...
    """
    return Field(
        default, description=help, json_schema_extra={"matters": matters, "bound": matters and bound}, **bounds
    )


class Settings(BaseModel):
    """All settings of a run; `config.json` in its folder holds them."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())

    method: str = option(..., "A method (`polycentric methods`).", bound=False)
    data: str = option("digits", "A data set by name or path; `polycentric data list` shows them.", bound=False)
    partition: str | None = option(
        None,
        "How examples are partitioned among clients: natural, iid, dirichlet=0.5, shards=2, classes=2, quantity=1.5, "
        "rotations=4, cells=c, skewed=10; then +rotations=2 or +sample=10000.",
        bound=False,
    )
    clients: int | None = option(None, "How many clients.", ge=1, le=LARGEST, bound=False)
    valid: float = option(
        0.0, "Validation split: share of every client's training examples held out for it.", ge=0, lt=1, bound=False
    )
    data_seed: int | None = option(
        None, "Seed of the partition of the data. [default: the seed]", ge=0, lt=1 << 63, bound=False
    )
    standardise: Literal["no", "train"] = option(
        "no", "train: every feature gets mean 0 and deviation 1 over all training examples.", bound=False
    )
    augment: str | None = option(
        None,
        "Images change at random in training, never when scored: flip, crop(4), scale(1.5), colour(0.3), flip+crop(4).",
    )
    model: str | None = option(
        None, "A model by name (`polycentric methods` lists them) or your own as module:attribute."
    )
    goal: str | None = option(
        None, "What is learned, where it is a goal of your own: module:attribute. [default: what the targets say]"
    )
    loss: str | None = option(
        None, "A loss of your own as module:attribute: a function of outputs and targets, one number for each example."
    )
    rounds: int = option(50, "How many rounds.", ge=0, le=LARGEST, bound=False)
    seed: int = option(0, "Seed of everything random.", ge=0, lt=1 << 63)
    set: dict[str, Any] = option(
        {}, "A setting of the method or its parts: lr=0.1, epochs=5, select=uniform(n=10), select.n=20.", bound=False
    )
    evaluate_every: int | None = option(
        None, "Rounds between evaluations. [default: about 50 in a run]", ge=1, le=LARGEST, bound=False
    )
    checkpoint_every: int | None = option(
        None, "Rounds between checkpoints. [default: every 30 seconds]", matters=False, ge=1, le=LARGEST
    )
    patience: int | None = option(
        None,
        "Early stopping: end after this many evaluations without a better validation score, and keep the best model.",
        ge=1,
        le=LARGEST,
        bound=False,
    )
    monitor: str | None = option(
        None,
        "The validation metric that patience and the best model go by, such as macro_f1. [default: micro_accuracy; of "
        "boxes pooled_map50; of numbers micro_loss]",
        bound=False,
    )
    metrics: str | None = option(
        None, "Metrics of your own, as module:attribute; several with commas.", matters=True, bound=False
    )
    target: float | None = option(
        None, "Stop once the test accuracy over all examples reaches this value.", gt=0, le=1, bound=False
    )
    epsilon: float | None = option(
        None, "Privacy budget: stop before the epsilon of a private method would be larger.", gt=0, bound=False
    )
    delta: float | None = option(
        None, "The delta of a private method's guarantee. [default: m^-1.1 for m clients]", gt=0, lt=1, bound=False
    )
    fine_tune: int = option(
        1, "Epochs of local fine-tuning before the last evaluation; 0 leaves it out.", ge=0, le=1 << 20, bound=False
    )
    dissimilarity: bool = option(False, "Also measure how much the clients' gradients differ.", bound=False)
    sketch: bool = option(
        False,
        "Also keep a sketch of the models that clients send, at every evaluation: what `polycentric report` needs to "
        "draw them on a map over the rounds.",
        bound=False,
    )
    unseen: bool = option(
        False,
        "Also score the models as a device that was never seen would use them: their mean, and the mean and the vote "
        "of their answers, on everybody's test examples.",
        bound=False,
    )
    optimistic: bool = option(
        False, "Also score centers chosen by the test labels: shows a bias, is not a result.", bound=False
    )
    alone: bool = option(
        False,
        "Also train every client alone, and report the share of clients that do better alone (share_below_alone).",
        bound=False,
    )
    held_out: float = option(0.0, "Share of the clients held out of training; they are scored separately.", ge=0, lt=1)
    held_out_seed: int | None = option(
        None, "Seed of which clients are held out. [default: the seed]", ge=0, lt=1 << 63
    )
    attack: str | None = option(
        None,
        "Simulate attackers, such as sign-flip(share=0.2) or alie(share=0.2); `polycentric methods` names them all.",
        bound=False,
    )
    executor: Literal["auto", "looped", "stacked", "traced", "compiled"] = option(
        "auto", "How clients are run: looped, stacked, traced or auto.", bound=False
    )
    block: Annotated[int, Field(ge=1, le=LARGEST)] | Literal["work"] | None = option(
        None,
        "Clients trained at once; work: as many as have a 32nd of a round's work. [default: work in a long run on a "
        "CPU, else what fits the cache]",
        bound=False,
    )
    workers: Literal["auto"] | Annotated[int, Field(ge=1, le=1024)] = option(
        "auto",
        "Processes that train clients beside each other, on a CPU only; the results are those of one. auto: one for "
        "each core, where a run is long enough.",
        matters=False,
    )
    device: str = option("auto", "cpu, cuda, cuda:1, or auto.", matters=False)
    dtype: Literal["float32", "float64"] = option("float32", "float32 or float64.")
    precision: Literal["float32", "tf32", "bf16"] = option(
        "float32", "Precision of local training: float32, bf16, or on a GPU tf32."
    )
    clock: str = option(
        "physical",
        "How simulated seconds are counted: physical(distance=200), normalised(t_c=10), delays(link=0.3); with "
        "deadline=5 in the brackets, late clients are left out.",
        bound=False,
    )
    state: Literal["memory", "disk"] = option(
        "memory", "Where client state is held: memory, or disk for files in the run's folder.", matters=False
    )

    record: bool = option(
        False, "Also write a digest of all that every client sends, for `polycentric verify`.", matters=False
    )

    @staticmethod
    def of(values: Mapping[str, Any], where: str = "the command") -> Settings:
        """Checked settings; the first thing that is wrong is said in one line."""
        for key in values:
            if key not in Settings.model_fields:
                raise unknown(f"key in {where}", str(key), Settings.model_fields)
        try:
            return Settings(**values)
        except ValidationError as error:
            first, *others = error.errors()
            same = [first, *(each for each in others if each["loc"][0] == first["loc"][0])]  # a word, or a number
            key = ".".join(str(part) for part in (first["loc"] if len(same) == 1 else first["loc"][:1]))
            wrong = " or ".join(dict.fromkeys(each["msg"].removeprefix("Input should be ") for each in same))
            wrong = (
                f"input should be {wrong}"
                if first["msg"].startswith("Input should be")
                else wrong[0].lower() + wrong[1:]
            )
            got = "" if first["type"] == "missing" else f", got {first['input']!r}"
            raise UsageError(f"{key} in {where}: {wrong}{got}") from error

    def changed(self, **values: Any) -> Settings:
        """The same with some values replaced, checked again."""
        return Settings.of(self.model_dump() | values)

    def evaluates(self, round: int) -> bool:
        """Whether the models are scored after this round."""
        every = self.evaluate_every or max(1, self.rounds // 50)
        return round % every == 0 or round == self.rounds

    def saves(self, round: int, since: float) -> bool:
        """Whether a checkpoint is due after this round, so many seconds after the last one."""
        every = self.checkpoint_every
        return round % every == 0 if every else since > CHECKPOINT_SECONDS

    def name(self, files: Mapping[str, str]) -> str:
        """A short name for these settings: equal settings, equal names; `files`: digests of files that they name."""
        # Defaults are left out, so that an option added later does not orphan the runs there are.
        said = self.model_dump(exclude=without("matters"), exclude_defaults=True)
        text = json.dumps(said | ({"files": dict(files)} if files else {}), sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:12]


def digest_of_values(values: Mapping[str, Any]) -> str:
    """A digest of what a config.json holds, but for settings that a run may go on with another value of."""
    said = {key: value for key, value in values.items() if key not in without("matters")}
    return hashlib.sha256(json.dumps(said, sort_keys=True, default=str).encode()).hexdigest()[:16]


def without(how: str) -> set[str]:
    """The settings that are not `matters`, or not `bound`: see `option`."""
    extra = {name: field.json_schema_extra for name, field in Settings.model_fields.items()}
    return {name for name, said in extra.items() if isinstance(said, dict) and not said[how]}


def read_toml(path: Path) -> dict[str, Any]:
    """A TOML file as a dictionary."""
    try:
        return tomllib.loads(read_bytes(path, 1 << 20).decode("utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        reason = " ".join(why(error).split())
        raise UsageError(f"'{path}' cannot be read as TOML: {reason}") from error


def changed(values: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """A config with some settings of its method replaced."""
    own = values.get("set", {})
    return {**values, "set": {**own, **settings} if isinstance(own, Mapping) else own}  # what is wrong stays so


def unbracketed(values: Mapping[str, Any]) -> dict[str, Any]:
    """A config whose method may be written with its settings, `fesem(k=4)`: they go where the others are."""
    method, own = values.get("method"), values.get("set", {})
    if not isinstance(method, str) or "(" not in method or not isinstance(own, Mapping):
        return dict(values)
    name, settings = settings_in("method", method)
    for key in settings.keys() & own.keys():
        require(False, f"{key} is set twice, in {method} and as {key}={own[key]}: drop one of them")
    return {**values, "method": name, "set": {**settings, **own}}


def pairs(settings: list[str]) -> dict[str, Any]:
    """`["lr=0.1", "select=uniform(n=10)"]` as a dictionary."""
    out: dict[str, Any] = {}
    for text in settings:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise UsageError(f"--set takes key=value, got '{text}'; for example --set lr=0.1")
        out[key.strip()] = value.strip()
    return out


def command_of(settings: Settings) -> str:
    """The command that runs such settings."""
    words, defaults = ["polycentric", "run", settings.method], Settings(method=settings.method)
    for name, value in settings.model_dump().items():
        flag = f"--{name.replace('_', '-')}"
        if name in ("method", "set") or value == getattr(defaults, name):
            continue
        words += [flag] if isinstance(value, bool) else [flag, str(value)]
    for key, value in settings.set.items():
        table = dict(value) if isinstance(value, dict) else {"name": value}  # { name = "uniform", n = 10 }
        words += ["--set", f"{key}={_typed(table.pop('name'))}"] if "name" in table else []
        words += [word for field, inner in table.items() for word in ("--set", f"{key}.{field}={_typed(inner)}")]
    return shlex.join(words)


def _typed(value: Any) -> str:
    """A value of a TOML file as it is typed."""
    if isinstance(value, list | tuple):
        return f"({', '.join(map(_typed, value))})"
    return str(value).lower() if isinstance(value, bool) else "none" if value is None else str(value)
