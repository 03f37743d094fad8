"""What every exchange came to, as digests: two runs can be compared tensor by tensor without keeping a tensor.

exchanges.jsonl     {"round": 3, "turn": 0, "sent": {"7": {"model": "9f2c..."}}, "left_out": [2]}
                    {"round": 3, "after": {"centers/model": "51ab...", "memory/assignment": "..."}}

A line for each exchange, with a digest of every name that every client sent and that was used, and one for each round,
with what the centers hold then. A simulation and a real federation write the same file, so `polycentric verify` can
say where they part; the latter also says which letters the used replies answered ("letters"). Lines are on the disk
before a checkpoint of their round is: a center that goes on after a crash knows from them which replies were used.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..errors import UsageError, require
from ..language.files import opened, parsed, why
from ..method import Exchange, State
from ..round import Answer, Clients, Trip
from ..stacks.cohort import Cohort
from .checkpoint import writing
from .folder import Folder
from .loop import Callback, Run

NAME = "exchanges.jsonl"
LINE = 256 << 20  # bytes of a line: a million clients may be in it


def digest_of(rows: Tensor) -> str:
    """A short digest of numbers, their shape and type."""
    rows = rows.detach().cpu().contiguous()
    digest = hashlib.sha256(f"{tuple(rows.shape)} {rows.dtype} ".encode())
    digest.update(rows.flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()[:16]


@dataclass(eq=False)
class Listening(Clients):
    """The same clients; what they send is noted on its way."""

    clients: Clients
    sent: dict[tuple[int, int], dict[str, dict[str, str]]] = field(default_factory=dict)

    def everyone(self, round: int, turn: int) -> Cohort:
        """All clients that have data."""
        return self.clients.everyone(round, turn)

    def answers(self, exchange: Exchange, state: State, cohort: Cohort) -> Iterable[Answer]:
        """As they come."""
        noted = self.sent.setdefault((cohort.round, cohort.turn), {})
        for answer in self.clients.answers(exchange, state, cohort):
            for at, client in enumerate(answer.block.index.tolist()):
                noted[str(client)] = {name: digest_of(rows[at : at + 1]) for name, rows in answer.sent.items()}
            yield answer


class Exchanges(Callback):
    """Writes exchanges.jsonl of a run."""

    sees_kept = False

    def __init__(self, folder: Folder) -> None:
        self.path = folder.path / NAME
        self._listening: Listening | None = None

    def over(self, clients: Clients) -> Clients:
        """The same clients, listened to for a round."""
        self._listening = Listening(clients)
        return self._listening

    def on_start(self, run: Run) -> None:
        """Of a run that goes on, the lines of rounds that are done again are taken away."""
        whole = [line for line in read_record(self.path) if line["round"] < run.state.round]
        Folder(self.path.parent).write_text(NAME, "".join(json.dumps(line) + "\n" for line in whole))

    def on_round(self, run: Run, trips: Sequence[Trip]) -> None:
        """A line for each exchange, and one for what the centers hold now; on the disk before anything else is."""
        sent = {} if self._listening is None else self._listening.sent
        lines: list[dict[str, Any]] = []
        for trip in trips:
            key = (trip.cohort.round, trip.cohort.turn)
            out = sorted(set(trip.cohort.index.tolist()) - set(trip.arrived.index.tolist()))
            asked = {} if run.remote is None else {"letters": run.remote.letters(trip)}
            lines.append({"round": key[0], "turn": key[1], "sent": sent.get(key, {}), "left_out": out, **asked})
        parts = {"centers": run.state.centers, "memory": run.state.memory}
        after = {f"{part}/{n}": digest_of(rows[:]) for part, stacks in parts.items() for n, rows in stacks.items()}
        lines.append({"round": run.state.round - 1, "after": after})
        with writing(self.path.parent), self.path.open("a", encoding="utf-8") as file:
            file.write("".join(json.dumps(line) + "\n" for line in lines))
            file.flush()
            os.fsync(file.fileno())


def read_record(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of a record; one that was cut short is the last."""
    if not path.exists():
        return
    try:
        with opened(path) as file:
            while text := file.readline(LINE):
                try:
                    line = parsed(text)
                except ValueError:
                    return
                if not text.endswith(b"\n") or not isinstance(line, dict) or not isinstance(line.get("round"), int):
                    return
                yield line
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {why(error)}") from error


def last_used(folder: Path, rounds: int) -> dict[int, tuple[int, int, str]]:
    """Round, turn and letter of every client's last reply that was used in the first so many rounds.

    A record that does not have all of them is refused: clients would go on from something older than they did.
    """
    found: dict[int, tuple[int, int, str]] = {}
    whole = 0
    try:
        for line in read_record(folder / NAME):
            whole += "after" in line and line["round"] == whole
            for client, letter in line["letters"].items() if "sent" in line and line["round"] < rounds else ():
                found[int(client)] = (line["round"], int(line["turn"]), str(letter))
    except (KeyError, TypeError, ValueError, AttributeError):
        whole = 0
    require(
        whole >= rounds,
        f"{folder / NAME} was changed or has lost lines, and without them it is not known what clients went on from: "
        "restore it, or choose another --out",
    )
    return found


class Parting(NamedTuple):
    """Where two runs part."""

    round: int
    what: str  # "client 'ward-3'", "the centers"
    tensor: str
    digests: tuple[str | None, str | None]


class Verified(NamedTuple):
    """What comparing two runs came to."""

    rounds: int  # that are equal, up to the first that differs
    compared: int  # digests
    difference: Parting | None


def verify(a: Path, b: Path) -> Verified:
    """Compare two runs tensor by tensor, and find the first that differs.

    Arguments:
        a, b: folders of runs that were recorded (`--record`; a real federation's always is).
    """
    for folder in (a, b):
        require((folder / NAME).is_file(), f"{folder} has no {NAME}: run it with --record")
    names = _names(a) or _names(b)
    rounds, compared, lines = 0, 0, zip_longest(read_record(a / NAME), read_record(b / NAME))
    for mine, theirs in lines:
        if mine is None or theirs is None:  # one is shorter: it was cut off, or ended earlier
            more = mine or theirs
            there = (None, str(more["round"])) if mine is None else (str(more["round"]), None)
            return Verified(rounds, compared + 1, Parting(more["round"], "the record", "the rest", there))
        for what, tensor, one, other in _pairs(mine, theirs):
            compared += 1
            if one != other:
                who = f"client '{names.get(what, what)}'" if what else "the centers"
                return Verified(rounds, compared, Parting(mine["round"], who, tensor, (one, other)))
        rounds = max(rounds, mine["round"] + ("after" in mine))
    return Verified(rounds, compared, None)


def _pairs(mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> Iterator[tuple[str, str, Any, Any]]:
    """(client or nothing, tensor, its digests in both), what one of them lacks as None."""
    if (mine["round"], mine.get("turn")) != (theirs["round"], theirs.get("turn")):
        yield "", "which exchange it is", f"{mine.get('turn')}", f"{theirs.get('turn')}"
        return
    one, other = mine.get("sent", {}), theirs.get("sent", {})
    for client in sorted({*one, *other}, key=int):
        there = one.get(client, {}), other.get(client, {})
        for name in sorted({*there[0], *there[1]}):
            yield client, name, there[0].get(name), there[1].get(name)
    one, other = mine.get("after", {}), theirs.get("after", {})
    for name in sorted({*one, *other}):
        yield "", name, one.get(name), other.get(name)


def _names(folder: Path) -> dict[str, str]:
    """Names of clients by their numbers, where the folder has them."""
    try:
        lines = Folder.open(folder).read_clients()
    except (UsageError, ValueError):
        return {}
    return {str(k): str(line.get("client", k)) for k, line in enumerate(lines)}
