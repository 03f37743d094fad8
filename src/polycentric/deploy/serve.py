"""A center between organisations: wait for nodes, agree on terms, run, go on after whatever happened.

The run itself is the one of `runs.loop`; only who answers differs. What every exchange came to stands in the run's
folder (`exchanges.jsonl`), written before the round counts, so a center that was killed knows which replies were used.
"""

from __future__ import annotations

import hashlib
import time
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from .. import __version__
from ..data import Federation
from ..errors import UsageError, require
from ..round import Trip
from ..runs.folder import Folder
from ..runs.loop import Callback, Run
from ..runs.record import last_used
from ..runs.settings import Settings
from ..runs.start import Given, attach_folder, prepared, resumed
from .center import BOUND, Nodes
from .letters import LastUsed, packed
from .post import Carrier, Mail, Roster
from .relay import Relay, check_relayed
from .roster import Present, distances, federation_of
from .secret import secret_of
from .store import Store
from .terms import SAFE, Terms, deployable

NODES_OWN = {
    "data",
    "partition",
    "clients",
    "data_seed",
    "valid",
    "standardise",
    "device",
    "workers",
    "checkpoint_every",
}
NODES_OWN |= {
    "evaluate_every",
    "patience",
    "monitor",
    "target",
    "record",
    "sketch",
    "state",
}  # and what is the center's alone


@dataclass(frozen=True)
class Waiting:
    """How a center waits.

    Arguments:
        nodes: how many must be there before the run begins.
        wait: seconds that they are waited for.
        deadline: seconds that replies of an exchange are waited for.
        least: replies without which an exchange does not end; it is asked again until they come.
        bound: the longest (by its 2-norm) that anything a client sends may be; longer ones are refused.
        sealed: clients that are beside each other seal what they send, and mix it themselves (`relay`).
    """

    nodes: int
    wait: float = 3600.0
    deadline: float = 600.0
    least: int = 1
    bound: float = BOUND
    sealed: bool = False

    def __post_init__(self) -> None:
        require(self.nodes >= 1, f"--min-nodes must be at least 1, got {self.nodes}")
        require(self.deadline > 0, f"--deadline must be above 0 seconds, got {self.deadline}; try 600")
        require(self.least >= 1, f"--least must be at least 1, got {self.least}")
        require(
            not self.sealed or self.bound == BOUND,
            f"--bound {self.bound:g} looks at what clients send, and --sealed hides it: leave one of them out",
        )
        require(self.bound > 0, f"--bound must be above 0, got {self.bound}; leave it out for {BOUND:g}")
        require(
            self.least <= self.nodes,
            f"--least {self.least} replies are more than --min-nodes {self.nodes}: the run might never go on",
        )


def terms_of(made: Run, name: str, settings: Settings, sealed: bool = False) -> Callable[[int], Terms]:
    """Of a prepared run: what each client, by its number, is told."""
    federation, train = made.federation, made.federation.train.sizes
    words = settings.model_dump(mode="json", exclude_defaults=True, exclude=NODES_OWN)
    able, largest = int((train > 0).sum()), int(train.max())
    classes = list(federation.classes)
    names = {str(k): each for k, each in enumerate(federation.clients)} if sealed else None

    def terms(client: int) -> Terms:
        return Terms(
            run=name,
            client=client,
            clients=federation.n_clients,
            able=able,
            largest=largest,
            classes=classes,
            settings=words,
            names=names,
        )

    return terms


def serve(
    settings: Settings,
    carrier: Carrier,
    folder: Path,
    how: Waiting,
    *,
    names: Sequence[str] = (),
    callbacks: Sequence[Callback] = (),
    told: Callable[[Roster], None] = lambda roster: None,
    log: Callable[[str], None] = lambda line: None,
    trust: bool = False,
    clock: Callable[[], float] = time.monotonic,
    rest: Callable[[float], None] = time.sleep,
) -> Run:
    """Run a method with the nodes of a carrier, or go on with the run in the folder.

    Arguments:
        settings: of the run; without data, which every node brings.
        carrier: the engine.
        folder: of the run: a new one, or one in which the same run was begun.
        how: how long it waits.
        names: of nodes that may join; those that are not there when the run begins can come later. Empty: whoever is
            there when it begins.
        callbacks: who is told how it goes.
        told: shown who is there, while nodes are waited for.
        log: told what happens.
        trust: go on with a run whose folder names code.
        clock, rest: for tests, which have a time of their own.
    """
    settings = deployable(settings)
    require(
        not (how.sealed and settings.sketch), "sketch looks at what clients send, and --sealed hides it: leave one out"
    )
    require(bool(SAFE.fullmatch(folder.name)), f"--out {folder.name}: a run's name has letters, digits, . _ - only")
    roster, secret = Roster(carrier, log, clock, rest), _secret(folder)
    begun = Folder(folder).begun  # one that was killed before it had written that begins anew
    there = Folder.open(folder) if begun else Folder.new(folder)
    known = _begun(there, settings, how.sealed, trust) if begun else None
    if begun and there.finished and not there.damaged():  # one that was killed amid its last files writes them again
        raise UsageError(f"{folder} is finished: choose another --out for a new run")
    wanted = set(known.clients) if known else set(names)
    roster.wait(lambda r: len(r.present.keys() & wanted if wanted else r.present) >= how.nodes, how.wait, told)
    present = {name: roster.present.get(name) for name in known.clients} if known else _clients(roster, names)
    federation = known or federation_of(present)
    _say_versions(present, log)
    _say_distances(present, log)
    given = Given(
        federation=federation,
        nodes=lambda made: _nodes(made, folder, settings, roster, how, secret, log),
        secret=secret,
        sealed=how.sealed or None,
    )
    log(f"{len([p for p in present.values() if p])} of {len(present)} clients are here: {', '.join(present)}")
    if begun:
        made, problems = resumed(there, given, trust=trust)
        for problem in problems:
            warnings.warn(problem, stacklevel=2)
    else:
        needs = ("federation", "nodes", *(["sealed"] if how.sealed else []))
        made = attach_folder(prepared(settings, given, needs=needs), there)
    assert isinstance(made.remote, Nodes)
    for client, name in enumerate(federation.clients):
        if name in roster.present:
            made.remote.meet(client, **roster.present[name].facts.sizes.model_dump())
    last = last_used(folder, made.state.round).items()  # before anything is written
    used = {client: LastUsed(round=r, turn=t, letter=letter) for client, (r, t, letter) in last}
    made.callbacks += (Watch(used, federation.clients, roster, log), *callbacks)
    return made.go()


class Watch(Callback):
    """Puts a center where its record left it, and tells who was left out and why; nodes.json says it to a page."""

    def __init__(
        self, used: dict[int, LastUsed], names: Sequence[str], roster: Roster, log: Callable[[str], None]
    ) -> None:
        self.used, self.names, self.roster, self.log = used, names, roster, log
        self.counts: dict[int, Counter[str]] = {k: Counter() for k in range(len(names))}

    def on_start(self, run: Run) -> None:
        """Which replies were used before, and from now on ask ahead."""
        assert isinstance(run.remote, Nodes)
        run.remote.used, run.remote.ahead = dict(self.used), True

    def on_round(self, run: Run, trips: Sequence[Trip]) -> None:
        """Who was left out in the round."""
        assert isinstance(run.remote, Nodes)
        out = [f"{self.names[note.client]} ({note.what})" for note in run.remote.notes if note.what != "used"]
        if out:
            self.log(f"round {run.state.round - 1}: left out: {', '.join(out)}")
        for note in run.remote.notes:
            self.counts[note.client][note.what] += 1
        run.remote.notes.clear()
        if run.folder is not None:
            nodes = [self._node(run.remote, client, name) for client, name in enumerate(self.names)]
            run.folder.write_json("nodes.json", {"round": run.state.round, "nodes": nodes})

    def _node(self, remote: Nodes, client: int, name: str) -> dict[str, Any]:
        """Of this process's time: whether it is there, when it answered last, and what became of its replies."""
        last = remote.used.get(client)
        here = {"name": name, "online": name in self.roster.online, "last": None if last is None else last.round}
        return here | {"counts": dict(self.counts[client])}

    def on_end(self, run: Run) -> None:
        """What came of the last exchanges is not needed any more."""
        assert isinstance(run.remote, Nodes)
        if run.remote.store is not None and not run.remote.blind:
            run.remote.store.forget(recent=0)


def _nodes(
    made: Run,
    folder: Path,
    settings: Settings,
    roster: Roster,
    how: Waiting,
    secret: bytes,
    log: Callable[[str], None],
) -> Nodes:
    name = folder.name
    terms, clients = terms_of(made, name, settings, how.sealed), made.federation.clients
    mail = Mail(roster, clients, lambda client: packed(terms(client), {}), how.deadline)
    waits: dict[str, Any] = {"deadline": how.deadline, "least": how.least, "log": log}
    waits |= {"clock": roster.clock, "rest": roster.rest}
    hides = any(learner.hides for exchange in made.method.exchanges for learner in exchange.chain)
    private = any(exchange.private for exchange in made.method.exchanges)
    if hides or private:  # a client answers an exchange once, and a sum is told once
        waits["store"] = Store(folder / "came")
    if private:  # who takes part, and the noise, are nobody else's
        waits["draws"] = int.from_bytes(hashlib.sha256(secret + b" draws").digest()[:7])
    if how.sealed:
        check_relayed(made.method)
        nodes: Nodes = Relay.of(made, name, mail, **waits | {"store": Store(folder / "relay")})
    else:
        nodes = Nodes.of(made, name, mail, **waits, bound=how.bound)
    nodes.ahead = False  # until it is known where the run stands
    require(
        settings.patience is None or not nodes.begins,
        f"patience={settings.patience} goes back to the best round in the end, and nodes do not have what they kept "
        f"then any more: leave it out, or use a method without parts of the clients' own, not {settings.method}",
    )

    def joined(client: int, node: Present) -> None:
        nodes.meet(client, **node.facts.sizes.model_dump())

    mail.joined = joined
    return nodes


def _secret(folder: Path) -> bytes:
    """What draws the center's noise: beside the run's folder, which may be shown to others."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    return secret_of(folder.parent / f"{folder.name}.secret")


def _begun(folder: Folder, settings: Settings, sealed: bool, trust: bool) -> Federation:
    """The clients of a run that was begun, where it is the one that is asked for."""
    then, needs = folder.read_config(trust)
    if "nodes" not in needs:
        raise UsageError(f"{folder.path} holds a run that was simulated: choose another --out")
    same = sealed == ("sealed" in needs)
    require(same, f"{folder.path} was begun {'without' if sealed else 'with'} --sealed: say the same, or another --out")
    known = folder.read_outline()
    if known is None:
        raise UsageError(f"{folder.path} has no outline.json: restore it, or choose another --out")
    own = {"device", "data", "record", "executor", "block", "checkpoint_every"}
    mine, theirs = (each.model_dump(exclude=own) for each in (settings, then))
    changed = sorted(key for key in mine if mine[key] != theirs[key])
    require(
        not changed,
        f"{folder.path} was begun with other settings ({', '.join(changed)}): restore them, or choose another --out",
    )
    return known


def _clients(roster: Roster, names: Sequence[str]) -> dict[str, Present | None]:
    """Everybody who may join, in the order of their names; without such a list, everybody who is there."""
    return {name: roster.present.get(name) for name in sorted(names or roster.present)}


def _say_versions(present: dict[str, Present | None], log: Callable[[str], None]) -> None:
    """Who has other versions than this machine."""
    here = (str(__version__), str(torch.__version__))
    for name, node in present.items():
        if node is not None and (there := (node.facts.library, node.facts.torch)) != here:
            log(
                f"{name} has polycentric {there[0]} and torch {there[1]}, and this machine {here[0]} and {here[1]}: "
                "install the same on both"
            )


def _say_distances(present: dict[str, Present | None], log: Callable[[str], None]) -> None:
    """Whether machines compute alike."""
    apart = {name: far for name, far in distances(present).items() if far > 0}
    threads = {node.facts.threads for node in present.values() if node is not None}
    if not apart and len(threads) == 1:
        log(f"all machines compute alike: a simulation here with OMP_NUM_THREADS={threads.pop()} gives the same bits")
    for name, far in apart.items():
        log(f"{name} computes otherwise: a fixed short training ends {far:.2g} from ours, so bits may differ")
