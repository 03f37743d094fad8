"""What the JSON files of a run hold: everything that is read of them has passed one of these forms.

A file may be damaged, or written by somebody who knows how digests are made; whatever is in it, the rest of the
package meets numbers where numbers are meant, in the ranges that they can have.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ..language import LARGEST

Number = float | Annotated[int, Field(ge=-(1 << 63), lt=1 << 63)] | None
Count = Annotated[int, Field(ge=0, lt=1 << 63)]
Round = Annotated[int, Field(ge=0, le=LARGEST)]
Row = dict[str, Number]  # a line of metrics.jsonl
Digest = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class Form(BaseModel):
    """An object of a file; keys that a form does not name are nobody's."""

    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False, protected_namespaces=())


class LineForm(Form):
    """A line of metrics.jsonl: numbers by name."""

    round: Round
    clients: Count = 0
    bytes_up: Count = 0
    bytes_down: Count = 0
    simulated_seconds: float = 0.0
    __pydantic_extra__: dict[str, Number]


class StackForm(Form):
    """A stack in a file of its own, beside a checkpoint's."""

    key: str
    dtype: str
    shape: list[Count]
    sha256: Digest


class LayerForm(Form):
    """Which columns of a row are a layer."""

    name: str
    shape: list[Count]
    first: Count
    last: Count


class TallyForm(BaseModel):
    """What adds up over a run: the fields of `Tally`."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
    bytes_up: Count = 0
    bytes_down: Count = 0
    dropped: Count = 0
    best: float | None = None
    best_round: Round | None = None
    since_best: Count = 0
    links: dict[str, Count] = {}
    seconds: float = 0.0
    times: list[float] = []
    late: Count = 0
    steps: float = 0.0
    examples: float = 0.0
    counted: Round = 0
    took: list[Count] | None = None


class StateForm(Form):
    """The manifest of a state: of a checkpoint, or of the best one."""

    round: Round
    sha256: Digest
    bytes: Count | None = None
    run: str = ""
    check: str = ""
    disk: list[StackForm] = []
    layout: dict[str, list[LayerForm]] = {}


class LinesForm(Form):
    """Which lines of metrics.jsonl belong to a checkpoint, with their digest, and that of all but the last of them."""

    lines: Round
    sha256: Digest
    but_last: Digest | Literal[""]


class ManifestForm(StateForm):
    """The manifest of a checkpoint."""

    check: str
    tally: TallyForm
    metrics: LinesForm | None = None
    history: list[LineForm] = []  # of earlier versions
    places: str = ""


class EnvironmentForm(Form):
    """What a number depends on besides the settings."""

    threads: Annotated[int, Field(ge=1, le=1024)] | None = None
    settings: list[str] = []  # digests of the settings, those of before `resume --rounds` among them
    identity: str | None = None
    fingerprint: str | None = None
    executor: str | None = None
    check: str = ""


class DigestsForm(Form):
    """The length and the digest of every file of a finished run."""

    files: dict[str, Annotated[list[Count | Digest], Field(min_length=2, max_length=2)]]
    check: str


class WorkForm(Form):
    """What a client does in a round."""

    steps: float
    examples: float


class SummaryForm(Form):
    """A run in one object; of one that diverged only what could be said."""

    method: str
    seed: Count
    run_dir: str | None = None
    diverged: str | None = None
    data: str = ""
    model: str = ""
    clients: Count = 0
    rounds: Round = 0
    seconds: float = 0.0
    metrics: Row = {}
    initial: Row | None = None
    personalised: Row | None = None
    optimistic: dict[str, Number | Row] | None = None
    unseen: dict[str, Row | str | None] | None = None
    held_out: dict[str, Row | list[str]] | None = None
    bytes_up: Count = 0
    bytes_down: Count = 0
    bytes_by_link: dict[str, Count] = {}
    work: WorkForm | None = None
    simulated_seconds: float | None = None
    late: Count = 0
    epsilon: float | None = None
    privacy: dict[str, dict[str, str | Number]] | None = None
    dropped: Count = 0
    attackers: Count = 0
    validation: dict[str, str | bool | Number] | None = None
    stopped: str | None = None
    fingerprint: str | None = None


NEEDED = ("data", "model", "clients", "rounds", "seconds", "run_dir", "bytes_up", "bytes_down", "dropped", "stopped")


def held(form: type[BaseModel], value: Any) -> dict[str, Any]:
    """The same value, which passes a form; a ValueError says in one line what does not."""
    try:
        form.model_validate(value)
    except ValidationError as error:
        first = error.errors()[0]
        at = ".".join(map(str, first["loc"]))[:80]
        got = "" if first["type"] == "missing" else f", got {str(first['input'])[:60]!r}"
        raise ValueError(f"{at or 'it'}: {first['msg'][0].lower()}{first['msg'][1:]}{got}") from error
    return dict(value)


def held_summary(value: Any) -> dict[str, Any]:
    """A summary: of a run that came to its end with all that is told of it."""
    found = held(SummaryForm, value)
    if "metrics" in found:
        missing = [name for name in NEEDED if name not in found]
        if missing:
            raise ValueError(f"{missing[0]} is missing")
        if found.get("optimistic") is not None and not isinstance(found["optimistic"].get("one_center"), dict):
            raise ValueError("optimistic.one_center is missing")
    return found


def check_of(value: Mapping[str, Any]) -> str:
    """A digest of an object, whatever the order of its keys; `check` itself does not count."""
    said = {key: inner for key, inner in value.items() if key != "check"}
    return hashlib.sha256(json.dumps(said, sort_keys=True, default=str).encode()).hexdigest()
