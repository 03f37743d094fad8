"""The loop over rounds: train, evaluate, record, checkpoint; and how to go on after an interruption."""

from __future__ import annotations

import csv
import io
import math
import re
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn

from ..parts.attack import Attack
from ..simulate.auto import ExecutorName, compiling_pays, shared_block
from ..simulate.clients import Simulation
from ..simulate.clock import traffic
from ..simulate.clock import Clock, Physical, Punctual, Traffic, check, load_of
from ..topology.cells.coverage import covered
from ..topology.cells.shapes import Attached
from ..data import Federation
from ..stacks.draw import seed_of
from ..topology.cells.theory import cells_of
from ..errors import Diverged, Lost, UsageError, require
from .evaluate import all_clients, average, consensus, disagreement, dissimilarity, edge_scores, evaluate, assign_newcomers, optimistic
from ..learn import Maml, Train
from .machine import device_of, undisturbed, use_precision, versions
from ..method import Method, State
from .metrics import Scores, agreement, participation, plain, share_below, shared_information
from ..models import default
from ..parts.privacy import epsilon
from ..simulate.ranks import ALONE, Ranks, own_device
from .record import Checkpoint, Folder, Tally
from ..round import Trip, opened, receive, run_round
from ..simulate.disk_state import Shelf
from ..stacks.stack import take
from ..tasks.task import Loss, Task

CHECKPOINT_SECONDS = 30.0


@dataclass(frozen=True)
class Schedule:
    """When a run evaluates, writes and stops."""

    rounds: int = 50
    evaluate_every: int | None = None  # rounds; None: about fifty times in a run
    checkpoint_every: int | None = None  # rounds; None: every half minute, and at the end
    patience: int | None = None  # evaluations without a better validation score before stopping
    target: float | None = None  # stop once the test accuracy over all examples is there: how many rounds it takes
    fine_tune: int = 1  # epochs of local training before the last evaluation; 0: leave it out
    dissimilarity: bool = False  # also measure how unlike the clients' gradients are, at every evaluation
    optimistic: bool = (
        False  # also score the centers by a rule that looks at the test labels; see `evaluate.optimistic`
    )

    def __post_init__(self) -> None:
        require(self.rounds >= 0, f"rounds must not be negative, got {self.rounds}")
        for name in ("evaluate_every", "checkpoint_every", "patience"):
            value = getattr(self, name)
            require(value is None or value >= 1, f"{name} must be at least 1, got {value}")
        require(
            self.fine_tune >= 0,
            f"fine_tune is a number of epochs and must not be negative, got {self.fine_tune}",
        )

    def evaluates(self, round: int) -> bool:
        """Whether the models are scored after this round."""
        every = self.evaluate_every or max(1, self.rounds // 50)
        return round % every == 0 or round == self.rounds


class Watcher(Protocol):
    """Somebody who wants to know how a run goes: a progress bar, a tracker."""

    def __call__(self, round: int, rounds: int, row: dict[str, Any] | None) -> None:
        """After every round; `row` holds the numbers where there was an evaluation."""


@dataclass(eq=False)
class Run:
    """A run that has ended, or can go on."""

    method: Method
    clients: Simulation
    schedule: Schedule
    state: State
    model: str
    clock: Clock = Physical()
    tally: Tally = Tally()
    history: list[dict[str, Any]] = field(default_factory=list)
    folder: Folder | None = None
    scores: dict[str, Scores] = field(default_factory=dict)  # initial, in_use, personalised, ...
    places: dict[int, list[int]] = field(default_factory=dict, repr=False)  # round: every client's center
    seconds: float = 0.0
    keeps: Literal["memory", "disk"] = "memory"  # where what clients keep is held
    best: State | None = field(default=None, repr=False)  # on the validation split
    averaged: tuple[State, dict[str, float]] | None = field(default=None, repr=False)  # the newest state's

    @property
    def federation(self) -> Federation:
        """Everybody's data."""
        return self.clients.federation

    @property
    def metrics(self) -> dict[str, float]:
        """The scores of the model in use at the end, at the clients that train and do not attack."""
        return self._seen(self.scores["in_use"]).summary() | self._clusters() | self._average()

    def _seen(self, scores: Scores) -> Scores:
        judged = self.clients.scored_mask.numpy()
        return scores if judged.all() else scores.only(judged)

    def _held_out(self, scores: Scores) -> Scores:
        return scores.only(self.clients.held_out_mask.numpy())

    def summary(self) -> dict[str, Any]:
        """The run in one JSON object."""
        personalised = self.scores.get("personalised")
        apart = self.scores if self.clients.held_out else {}
        new = {name: plain(self._held_out(scores).summary()) for name, scores in apart.items()}
        return {
            "method": self.method.name,
            "data": self.federation.name,
            "model": self.model,
            "clients": self.federation.n_clients,
            "seed": self.clients.seed,
            "rounds": self.state.round,
            "seconds": round(self.seconds, 3),
            "run_dir": str(self.folder.path) if self.folder else None,
            "metrics": plain(self.metrics),
            "initial": plain(self._seen(self.scores["initial"]).summary()) if "initial" in self.scores else None,
            "personalised": plain(self._seen(personalised).summary() | self._worse()) if personalised else None,
            **self._optimistic(),
            "held_out": new or None,
            "bytes_up": self.tally.bytes_up,
            "bytes_down": self.tally.bytes_down,
            "bytes_by_link": dict(self.tally.links),
            "simulated_seconds": self.tally.seconds,
            "late": self.tally.late,
            "participation": self._participation(),
            "epsilon": self._epsilon(),
            "dropped": self.tally.dropped,
            "attack": repr(self.clients.attack) if self.clients.attack else None,
            "attackers": int(self.clients.attackers.sum()),  # their scores count nowhere
            "best_round": self.tally.best_round,
            "best_validation": self.tally.best,
            "rounds_to_target": self.rounds_to_target,
            "stopped": self.stopped or None,
            "executor": self.clients.executor,
            "compile_seconds": round(self.clients.compiled[1], 3) if self.clients.executor == "compiled" else None,
            "fingerprint": self.federation.fingerprint,
            "note": self.federation.note or None,
        }

    def model_of(self, client: int | None = None, center: int | None = None) -> nn.Module:
        """The trained module of a client, or of a center, with its parameters loaded."""
        exchange = self.method.at(self.state.round)[-1]
        if client is None:
            rows = {"model": self.state.centers["model"][center or 0]}
            missing = [n for n in self.clients.task.names if n not in rows]
            require(
                not missing,
                f"a center has no {', '.join(missing)}: ask for a client's model, model_of(client=0)",
            )
            return self.clients.task.loaded(rows)
        one = all_clients(self.clients, self.state)[torch.tensor([client])]
        state = assign_newcomers(self.method, self.state, self.clients)
        rows = take(state.kept, one.index, self.clients.task.device) | receive(exchange, state, one)
        rows = opened(exchange, rows, self.clients.run, one)
        return self.clients.task.loaded({name: rows[name][0] for name in self.clients.task.names})

    @cached_property
    def shelf(self) -> Shelf | None:
        """Where stacks are held that are not in memory; a folder that vanishes, where the run has none."""
        return None if self.keeps == "memory" else Shelf(self.folder.path / "state" if self.folder else None)

    def _heard(self, state: State) -> State:
        """The first rank's state, which it has read, at all ranks."""
        return self.clients.ranks.state(state, None if self.shelf is None else self.shelf.empty)

    def _shelved(self, state: State) -> State:
        """The same state; what clients keep, and what is remembered in more than one number a client, is on disk."""
        if (shelf := self.shelf) is None:
            return state
        wide = {name: rows for name, rows in state.memory.items() if rows.numel() > self.federation.n_clients}
        put = [{name: shelf.put(rows) for name, rows in stacks.items()} for stacks in (state.kept, wide)]
        return replace(state, kept=put[0], memory=state.memory | put[1])

    # -- the loop ------------------------------------------------------------------------------------------

    def go(self, watch: Watcher | None = None) -> Run:
        """Run the rounds that are left, then score every client for the last time."""
        began, saved = time.monotonic(), time.monotonic()
        self.state = self._shelved(self.state)
        if not self.history:
            self._evaluate([])
        whole = (self.state, self.tally, self.best, len(self.history))
        try:
            while self.state.round < self.schedule.rounds and not self.stopped:
                self._round(watch)
                whole = (self.state, self.tally, self.best, len(self.history))
                every = self.schedule.checkpoint_every
                due = self.state.round % every == 0 if every else time.monotonic() - saved > CHECKPOINT_SECONDS
                if due:
                    self._checkpoint()
                    saved = time.monotonic()
        except (KeyboardInterrupt, Diverged, Lost):
            with undisturbed():  # where one rank is lost, the others are told to end
                self.state, self.tally, self.best, lines = whole
                del self.history[lines:]
                self._checkpoint()  # the last whole round, with its evaluation
            raise
        self._finish()
        self.seconds += time.monotonic() - began
        self._write_summary()
        return self

    def _round(self, watch: Watcher | None) -> None:
        before = self.state
        width = self.clients.task.width
        heard = self.clients if self.clock.deadline is None else Punctual(self.clients, self.clock, width)
        after, trips = run_round(self.method, before, heard)
        self.clients.ranks.check(after)
        loads = [load_of(trip, width) for trip in trips]
        late = [int(self.clock.late(load).sum()) for load in loads]
        moved = [traffic(trip, self.clock.broadcast, load) for trip, load in zip(trips, loads, strict=True)]
        total = sum(moved, start=Traffic())
        lost = sum(len(trip.cohort) - len(trip.arrived) for trip in trips) - sum(late)
        times = self.tally.clients_times(self.federation.n_clients)
        for load in loads:
            times = self.clock.advance(times, load)
        self._check(trips, late, before, after)  # after what needs no GPU: it waits for one
        if lost and self.folder:
            self.folder.log(f"round {before.round}: {lost} answers were not finite and were left out")
        self.state = self._shelved(after)
        self.tally = replace(
            self.tally.at(times),
            bytes_up=self.tally.bytes_up + total.up,
            bytes_down=self.tally.bytes_down + total.down,
            links={name: self.tally.links.get(name, 0) + n for name, n in total.links.items()},
            dropped=self.tally.dropped + lost,
            late=self.tally.late + sum(late),
            took=self._took(trips),
        )
        row = self._evaluate(trips) if self.schedule.evaluates(after.round) else None
        if watch:
            watch(after.round, self.schedule.rounds, row)

    def _took(self, trips: list[Trip]) -> Tensor:
        """In how many rounds an answer of every client came, this one counted."""
        before = self.tally.took
        took = torch.zeros(self.federation.n_clients, dtype=torch.int64) if before is None else before.clone()
        took[torch.cat([trip.arrived.index for trip in trips])] += 1
        return took

    def _check(self, trips: list[Trip], late: list[int], before: State, after: State) -> None:
        for trip, left_out in zip(trips, late, strict=True):
            asked = len(trip.cohort) - left_out
            lost = asked - len(trip.arrived)
            if 2 * lost > asked:
                raise Diverged(
                    f"round {before.round}: {lost} of {asked} clients sent numbers that are not finite; "
                    "the training diverges: try a smaller learning rate, such as --set lr=0.01"
                )
        if not bool(after.centers["model"].sum(dtype=torch.float64).isfinite()):
            raise Diverged(
                f"round {before.round}: a center has moved to numbers that are not finite; try a smaller learning rate "
                "of the center, or of the clients, such as --set lr=0.01"
            )

    def _evaluate(self, trips: list[Trip]) -> dict[str, Any]:
        scores = evaluate(self.method, self.state, self.clients, self.federation.test)
        row: dict[str, Any] = {
            "round": self.state.round,
            "clients": sum(len(trip.arrived) for trip in trips),
            "dropped": self.tally.dropped,
            "bytes_up": self.tally.bytes_up,
            "bytes_down": self.tally.bytes_down,
            "simulated_seconds": self.tally.seconds,
        }
        row |= self._seen(scores).summary() | self._clusters(trips) | self._ages() | self._average()
        if self.clients.held_out:
            row |= {f"held_out_{name}": value for name, value in self._held_out(scores).summary().items()}
        if (apart := consensus(self.method, self.state, self.clients)) is not None:
            row["consensus"] = apart
        if self.schedule.dissimilarity:
            row["dissimilarity"] = dissimilarity(self.method, self.state, self.clients)
        if not trips:
            self.scores["initial"] = scores
        self.scores["in_use"] = scores
        if len(self.federation.valid):
            valid = self._seen(evaluate(self.method, self.state, self.clients, self.federation.valid)).summary()
            row |= {f"valid_{name}": value for name, value in valid.items()}
            if trips:
                self._judge(valid)
        row = plain(row)
        self._record_places()
        self.history.append(row)
        if self.folder:
            self.folder.append_metrics(row)
        return row

    def _judge(self, valid: dict[str, float]) -> None:
        """Keep the best state; stop where nothing gets better. Only the validation split has a say."""
        value = valid.get("micro_accuracy", -valid["micro_loss"])
        if self.tally.best is None or value > self.tally.best:
            self.tally = replace(self.tally, best=value, best_round=self.state.round, since_best=0)
            self.best = self.state
            if self.folder:
                self.folder.save_best(self.state)
            return
        self.tally = replace(self.tally, since_best=self.tally.since_best + 1)

    @property
    def rounds_to_target(self) -> int | None:
        """The first evaluated round that reached the target accuracy."""
        if self.schedule.target is None:
            return None
        there = (row["round"] for row in self.history if (row.get("micro_accuracy") or 0.0) >= self.schedule.target)
        return next(there, None)

    @property
    def stopped(self) -> str:
        """Why the run ended before its last round; empty if it did not."""
        if self.rounds_to_target is not None:
            return f"the target of {self.schedule.target:.4g} was reached in round {self.rounds_to_target}"
        if self.schedule.patience and self.tally.since_best >= self.schedule.patience:
            return f"no better validation score since round {self.tally.best_round}"
        return ""

    def _finish(self) -> None:
        self._checkpoint()
        if self.schedule.patience and self.tally.best_round is not None:
            if self.best is None:  # found before an interruption
                saved = self.folder.load_best(self.clients.task.device) if self.folder else self.state
                self.best = self._shelved(self._heard(saved))
            self.state = self.best
            self.scores["in_use"] = evaluate(self.method, self.state, self.clients, self.federation.test)
        elif "in_use" not in self.scores:
            self.scores["in_use"] = evaluate(self.method, self.state, self.clients, self.federation.test)
        if self.schedule.optimistic and (
            found := optimistic(self.method, self.state, self.clients, self.federation.test)
        ):
            self.scores |= dict(zip(("optimistic", "one_center"), found, strict=True))
        if self.schedule.fine_tune and (train := trainer_of(self.method)):
            tune = replace(train, epochs=self.schedule.fine_tune, steps=None, terms=(), decay=1.0)
            self.scores["personalised"] = evaluate(self.method, self.state, self.clients, self.federation.test, tune)

    def _optimistic(self) -> dict[str, Any]:
        """What centers chosen by the test labels would score: to be shown beside a result, never as one."""
        if not self.schedule.optimistic:
            return {}
        if "optimistic" not in self.scores:
            return {"optimistic": None}
        each, one = (plain(self._seen(self.scores[name]).summary()) for name in ("optimistic", "one_center"))
        return {"optimistic": {**each, "one_center": one}}

    def _worse(self) -> dict[str, float]:
        """The share of clients that fine-tuning made worse."""
        return {"share_worse": share_below(self._seen(self.scores["personalised"]), self._seen(self.scores["in_use"]))}

    def _clusters(self, trips: list[Trip] | None = None) -> dict[str, float]:
        """What the topology shows; of clusters: how many, how tight, how like known groups, and who moved."""
        memory = self.state.memory
        shown = self.method.at(self.state.round)[-1].topology.shows(memory, self.state.centers)
        if "assignment" not in memory:
            return shown
        place, trains = memory["assignment"].cpu(), (self.federation.train.sizes > 0) & ~self.clients.held_out_mask
        sizes = torch.bincount(place[trains])
        out = {"clusters": float((sizes > 0).sum()), "largest_cluster": float(sizes.max()) if len(sizes) else 0.0}
        if trips:
            before = trips[0].before.memory
            moved = place != before["assignment"].cpu()
            out["reassigned"] = float((moved & trains & before.get("placed", trains).cpu()).sum())
        if "distance" in memory and bool((placed := memory["placed"].cpu()).any()):
            out["intra_cluster"] = float(memory["distance"].cpu()[placed].mean())
        if bool(memory.get("reseeded", place[:0]).any()):
            out["reseeded"] = float(memory["reseeded"].sum())
        if "last_round" in memory and bool((known := memory["last_round"].cpu() >= 0).any()):
            out["staleness"] = float((self.state.round - 1 - memory["last_round"].cpu()[known]).double().mean())
        group = self.federation.group
        if group is not None and self.state.round:  # before the first round nobody has found a place
            honest, placed = trains & ~self.clients.attackers, memory.get("placed", trains).cpu()
            there = honest & placed if bool((honest & placed).any()) else honest
            both = place[there].numpy(), group[there].numpy()
            out |= {"ari": agreement(*both), "nmi": shared_information(*both)}
        return shown | out

    def _record_places(self) -> None:
        """Every client's center at an evaluation, where clients have one: a line of places.csv."""
        assignment = self.state.memory.get("assignment")
        if assignment is None or self.state.round == 0:  # before the first round nobody has found a place
            return
        self.places[self.state.round] = assignment.cpu().tolist()
        if self.folder:
            self.folder.append_places(self.state.round, self.places[self.state.round])

    def _ages(self) -> dict[str, float]:
        """How old the clients' values are on average, in rounds, where the selection goes by them."""
        when = self.state.memory.get("value_round")
        if when is None or not bool((when >= 0).any()):
            return {}
        return {"value_age": float((self.state.round - 1 - when[when >= 0]).double().mean())}

    def _average(self) -> dict[str, float]:
        """The mean of all centers as one model, and how far apart clients are, where centers work towards one."""
        if self.averaged is None or self.averaged[0] is not self.state:
            found = average(self.method, self.state, self.clients, self.federation.test)
            if found:
                found["disagreement"] = disagreement(self.method, self.state, self.clients)
            self.averaged = (self.state, found)
        return self.averaged[1]

    def _epsilon(self) -> float | None:
        """What the rounds so far promise every client, at delta = m^-1.1; None: nothing."""
        rounds = max([self.state.round, *(row["round"] for row in self.history[-1:])])  # also those after the best one
        rho = sum(exchange.privacy.rho for round in range(rounds) for exchange in self.method.at(round))
        return epsilon(rho, max(2, self.federation.n_clients) ** -1.1) if 0 < rho < math.inf else None

    def _participation(self) -> dict[str, Any] | None:
        """How often those who train took part, where there was a round."""
        if self.tally.took is None:
            return None
        trains = (self.federation.train.sizes > 0) & ~self.clients.held_out_mask
        return participation(self.tally.took[trains].numpy()) or None

    def _checkpoint(self) -> None:
        if self.folder:
            self.folder.save(Checkpoint(self.state, self.tally, tuple(self.history)))

    def _write_summary(self) -> None:
        if not self.folder:
            return
        table = io.StringIO()
        writer = csv.writer(table)
        columns = [name for name in ("initial", "in_use", "personalised") if name in self.scores]
        writer.writerow(
            [
                "client",
                "group",
                "test_examples",
                *(f"accuracy_{c}" for c in columns),
                *(f"loss_{c}" for c in columns),
                "took_part",
            ]
        )
        group = self.federation.group
        trains = (self.federation.train.sizes > 0) & ~self.clients.held_out_mask
        came = [""] * len(trains) if self.tally.took is None else map(str, self.tally.took.tolist())
        took = [n if there else "" for n, there in zip(came, trains.tolist(), strict=True)]
        for k, name in enumerate(self.federation.clients):
            values = [self.scores[c].accuracy[k] for c in columns] + [self.scores[c].loss[k] for c in columns]
            counts = not bool(self.clients.attackers[k])  # an attacker's scores count nowhere
            shown = [f"{v:.6g}" if counts and not math.isnan(v) else "" for v in values]
            shown.append(took[k])
            writer.writerow([name, "" if group is None else int(group[k]), int(self.scores["in_use"].count[k]), *shown])
        self.folder.write_text("clients.csv", table.getvalue())
        if edges := edge_scores(self.method, self.state, self.clients, self.federation.test):
            lines = [
                f"{k},{a:.6g},{h:.6g}" for k, (a, h) in enumerate(zip(*map(torch.Tensor.tolist, edges), strict=True))
            ]
            self.folder.write_text("edges.csv", "\n".join(["edge,accuracy,accuracy_in_cell", *lines, ""]))
        if len(self.state.memory.get("splits", ())):
            kept = ("splits", "split_alike", "parent", "assignment")
            self.folder.write_tensors("splits.safetensors", {name: self.state.memory[name] for name in kept})
        self.folder.write_json("summary.json", self.summary())
        programs, seconds = self.clients.compiled
        if programs:
            self.folder.log(f"compiled {programs} programs in {seconds:.1f} s")
        self.folder.log(f"ended after round {self.state.round}" + (f": {self.stopped}" if self.stopped else ""))


def trainer_of(method: Method) -> Train | None:
    """How a method's clients train, for fine-tuning in the same way; for MAML, its inner steps."""
    for learner in (learner for exchange in reversed(method.exchanges) for learner in exchange.learn):
        if isinstance(learner, Maml):
            return Train(lr=learner.lr, batch=learner.batch)
    found = [learner for e in reversed(method.exchanges) for learner in e.learn if isinstance(learner, Train)]
    return found[0] if found else None


def prepare(
    method: Method,
    federation: Federation,
    *,
    model: str | nn.Module | Callable[..., nn.Module] | None = None,
    loss: Loss | None = None,
    seed: int = 0,
    schedule: Schedule = Schedule(),
    executor: ExecutorName = "auto",
    block: int | None = None,
    held_out: float = 0.0,
    held_out_seed: int | None = None,
    attack: Attack | None = None,
    device: str = "cpu",
    dtype: str = "float32",
    precision: str = "float32",
    clock: Clock = Physical(),
    folder: Folder | None = None,
    workers: int = 1,
    ranks: Ranks = ALONE,
    state: Literal["memory", "disk"] = "memory",
) -> Run:
    """A run before its first round."""
    require(isinstance(clock, Clock), f"clock must be a clock such as Normalised() or Physical(), got {clock!r}")
    check(clock, method)
    _compare_cells(method, federation, seed)
    require(dtype in ("float32", "float64"), f"dtype must be float32 or float64, got {dtype!r}")
    require(state in ("memory", "disk"), f"state is kept in memory or on disk, got {state!r}; try state='disk'")
    require(
        schedule.patience is None or len(federation.valid) > 0,
        "patience needs a validation split: load the data with valid=0.1 (in the command: --valid 0.1)",
    )
    where = device_of(device if ranks.size == 1 else own_device(device))
    use_precision(precision, where, dtype)
    chosen = default(federation.shape, federation.n_outputs, federation.symbols) if model is None else model
    federation = federation.to(where) if where.type != "cpu" else federation
    how: dict[str, Any] = {"dtype": getattr(torch, dtype), "device": where, "precision": precision}
    build = partial(Task.of, federation, chosen, cut=method.cut, loss=loss, **how)
    task = build(seed=seed)
    clients = Simulation(federation, task, seed, executor, block, held_out, held_out_seed, attack, workers, ranks)
    others = range(1, method.starts(federation.n_clients))
    starts = [task.start(), *(build(seed=seed_of(seed, "center", j)).start() for j in others)]
    require(
        not others or not torch.equal(starts[0]["model"], starts[1]["model"]),
        f"{method.name} wants centers that begin differently, but this model is given with its numbers: give its name, "
        "its class, or a function that makes it",
    )
    start = {name: torch.cat([rows[name] for rows in starts]) for name in starts[0]}
    method = method.fitted(task.layouts["model"], start["model"][:1], federation.n_clients)
    largest = int(federation.train.sizes.max()) if federation.n_clients else 0
    first = method.begin(start, federation.n_clients, largest, federation.n_outputs)
    if executor == "auto" and compiling_pays(clients, method.at(0), first, schedule.rounds):
        clients = replace(clients, executor="compiled")
    if block is None and ranks.size > 1:
        clients = replace(clients, block=shared_block(clients, method.at(0), first))
    name = chosen if isinstance(chosen, str) else getattr(chosen, "__name__", type(chosen).__name__)
    return Run(method, clients, schedule, first, name, clock, folder=folder, keeps=state)


def _compare_cells(method: Method, federation: Federation, seed: int) -> None:
    """Say so where data were dealt for other cells than the method's, or for the same map drawn by another seed."""
    own = cells_of(method.exchanges[-1].topology)
    names = federation.group_names
    in_cells = bool(names) and all(re.fullmatch(r"cell \d+(\+\d+)*", name) for name in names)
    if own is None or federation.group is None or not in_cells:
        return
    apart = federation.n_clients
    for cells in {own.geometry, own.geometry.of if isinstance(own.geometry, Attached) else own.geometry}:
        regions = covered(cells, federation.n_clients, seed).regions
        known = {f"cell {name}": number for number, name in enumerate(regions.names())}
        dealt = torch.tensor([known.get(name, -1) for name in names])[federation.group.cpu()]
        apart = min(apart, int(((dealt != regions.of) & (federation.train.sizes.cpu() > 0)).sum()))
    if apart:
        warnings.warn(
            f"the data are dealt for other cells than the method's: {apart} of {federation.n_clients} clients are "
            'elsewhere; if that is not meant, give both the same, --partition "cells(setting=c, cells=...)" and --set '
            '"cells=...", and a map one seed',
            stacklevel=3,
        )


def run(
    method: Method,
    federation: Federation,
    *,
    model: str | nn.Module | Callable[..., nn.Module] | None = None,
    rounds: int = 50,
    seed: int = 0,
    out: str | Path | None = None,
    watch: Watcher | None = None,
    evaluate_every: int | None = None,
    checkpoint_every: int | None = None,
    patience: int | None = None,
    target: float | None = None,
    fine_tune: int = 1,
    optimistic: bool = False,
    **how: Any,
) -> Run:
    """Run a method on a federation and return the finished run.

    Arguments:
        method: such as `fedavg(lr=0.1, epochs=5)`.
        federation: such as `load("digits", partition=Rotations(4))`.
        model: a name, an `nn.Module` or a factory; None: a small one that fits the data.
        rounds: how many.
        seed: of everything random.
        out: a folder for metrics and checkpoints; None: nothing is written.
        watch: called after every round.
        evaluate_every, checkpoint_every, patience, target, fine_tune, optimistic: see `Schedule`.
        how: executor, workers, block, held_out, held_out_seed, attack, device, dtype, precision, loss, clock, state,
            ranks; see `prepare`.
    """
    schedule = Schedule(rounds, evaluate_every, checkpoint_every, patience, target, fine_tune, optimistic=optimistic)
    prepared = prepare(method, federation, model=model, seed=seed, schedule=schedule, **how)
    if out is not None and prepared.clients.ranks.first:
        prepared.folder = Folder.new(Path(out))
        prepared.folder.write_json(
            "config.json",
            {"method": repr(method), "model": prepared.model, "seed": seed, "rounds": rounds}
            | {"clock": repr(prepared.clock)},
        )
        prepared.folder.write_json("environment.json", environment(prepared))
    return prepared.go(watch)


def resume(prepared: Run, folder: Folder | None, watch: Watcher | None = None) -> tuple[Run, list[str]]:
    """Go on where the newest whole checkpoint left off, bit for bit; also returns what was found damaged.

    `prepared` must be built from the same method, data, model and settings as the run that was interrupted. Of several
    ranks only the first has the folder: it tells the others.
    """
    ranks, problems, checkpoint = prepared.clients.ranks, list[str](), None
    prepared.folder = folder
    with ranks.together():
        if folder:
            check_the_same(prepared, folder)
            checkpoint, problems = folder.load(prepared.clients.task.device)
    prepared.scores["initial"] = evaluate(prepared.method, prepared.state, prepared.clients, prepared.federation.test)
    if told := ranks.text(checkpoint.told() if checkpoint else ""):
        state = checkpoint.state if checkpoint else prepared.state
        state = replace(state, memory=prepared.state.memory | state.memory)  # what was not remembered yet, as it begins
        checkpoint = Checkpoint.heard(told, prepared._heard(state))
        prepared.state, prepared.tally = checkpoint.state, checkpoint.tally
        prepared.history = list(checkpoint.history)
    if folder:
        folder.rewind_metrics(checkpoint.history if checkpoint else ())
        prepared.places = folder.rewind_places(checkpoint.state.round if checkpoint else -1)
        for line in [*problems, f"resumed after round {prepared.state.round}"]:
            folder.log(line)
    return prepared.go(watch), problems


def check_the_same(prepared: Run, folder: Folder) -> None:
    """Refuse a run that is not the one in a folder: other data, another method, other cells."""
    was = folder.read_json("environment.json")
    if was.get("fingerprint") != prepared.federation.fingerprint:
        raise UsageError(
            f"the data are not those the run began with (fingerprint {prepared.federation.fingerprint}, then "
            f"{was.get('fingerprint')}): restore them, or begin a new run"
        )
    same = {"parameters": prepared.clients.task.width, "method": repr(prepared.method)}
    same |= {"attack": repr(prepared.clients.attack), "clock": repr(prepared.clock)}
    for what, now in same.items():
        if was.get(what, now) != now:
            raise UsageError(
                f"not the {what} that the run began with: restore its config.json and the files it names, or begin "
                "a new run"
            )
    if was.get("executor", prepared.clients.executor) != prepared.clients.executor:
        folder.log(f"goes on {prepared.clients.executor}, and began {was['executor']}: the same only to rounding")


def environment(prepared: Run) -> dict[str, Any]:
    """What a number depends on besides the settings."""
    return versions() | {
        "device": str(prepared.clients.task.device),
        "threads": torch.get_num_threads(),
        "executor": prepared.clients.executor,
        "block": prepared.clients.block_size,
        "ranks": prepared.clients.ranks.size,
        "fingerprint": prepared.federation.fingerprint,
        "parameters": prepared.clients.task.width,
        "precision": prepared.clients.task.precision,
        "method": repr(prepared.method),
        "clock": repr(prepared.clock),
        "attack": repr(prepared.clients.attack),
    }
