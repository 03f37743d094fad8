"""The loop over rounds: train, evaluate, record, checkpoint; and how to go on after an interruption."""

from __future__ import annotations

import csv
import io
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn

from .clients import ExecutorName, Simulation
from .clock import Traffic, traffic
from .data import Federation
from .errors import Diverged, Mistake, require
from .evaluate import all_clients, average, disagreement, dissimilarity, edge_scores, evaluate
from .learn import Maml, Train
from .machine import device_of, versions
from .method import Method, State
from .metrics import Scores, agreement, plain, share_below
from .models import default
from .record import Checkpoint, Folder, Tally
from .round import Trip, opened, receive, run_round
from .stack import take
from .task import Loss, Task

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
    tally: Tally = Tally()
    history: list[dict[str, Any]] = field(default_factory=list)
    folder: Folder | None = None
    scores: dict[str, Scores] = field(default_factory=dict)  # initial, in_use, personalised
    seconds: float = 0.0
    best: State | None = field(default=None, repr=False)  # on the validation split
    averaged: tuple[State, dict[str, float]] | None = field(default=None, repr=False)  # the newest state's

    @property
    def federation(self) -> Federation:
        """Everybody's data."""
        return self.clients.federation

    @property
    def metrics(self) -> dict[str, float]:
        """The scores of the model in use at the end, at the clients that train."""
        return self._seen(self.scores["in_use"]).summary() | self._clusters() | self._average()

    def _seen(self, scores: Scores) -> Scores:
        return scores.only(~self.clients.new.numpy()) if self.clients.held_out else scores

    def _held_out(self, scores: Scores) -> Scores:
        return scores.only(self.clients.new.numpy())

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
            "held_out": new or None,
            "bytes_up": self.tally.bytes_up,
            "bytes_down": self.tally.bytes_down,
            "simulated_seconds": None,
            "epsilon": None,
            "dropped": self.tally.dropped,
            "best_round": self.tally.best_round,
            "best_validation": self.tally.best,
            "rounds_to_target": self.rounds_to_target,
            "stopped": self.stopped or None,
            "executor": self.clients.executor,
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
        rows = take(self.state.kept, one.index) | receive(exchange, self.state, one)
        rows = opened(exchange, rows, self.clients.run, one)
        return self.clients.task.loaded({name: rows[name][0] for name in self.clients.task.names})

    # -- the loop ------------------------------------------------------------------------------------------

    def go(self, watch: Watcher | None = None) -> Run:
        """Run the rounds that are left, then score every client for the last time."""
        began, saved = time.monotonic(), time.monotonic()
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
        except (KeyboardInterrupt, Diverged):
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
        after, trips = run_round(self.method, before, self.clients)
        self._check(trips, before, after)
        moved = sum((traffic(trip) for trip in trips), start=Traffic())
        lost = sum(len(trip.cohort) - len(trip.arrived) for trip in trips)
        if lost and self.folder:
            self.folder.log(f"round {before.round}: {lost} answers were not finite and were left out")
        self.state = after
        self.tally = replace(
            self.tally,
            bytes_up=self.tally.bytes_up + moved.up,
            bytes_down=self.tally.bytes_down + moved.down,
            dropped=self.tally.dropped + lost,
        )
        row = self._evaluate(trips) if self.schedule.evaluates(after.round) else None
        if watch:
            watch(after.round, self.schedule.rounds, row)

    def _check(self, trips: list[Trip], before: State, after: State) -> None:
        for trip in trips:
            lost = len(trip.cohort) - len(trip.arrived)
            if 2 * lost > len(trip.cohort):
                raise Diverged(
                    f"round {before.round}: {lost} of {len(trip.cohort)} clients sent numbers that are not finite; "
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
        }
        row |= self._seen(scores).summary() | self._clusters() | self._average()
        if self.clients.held_out:
            row |= {f"held_out_{name}": value for name, value in self._held_out(scores).summary().items()}
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
            if self.best is None and self.folder:  # found before an interruption
                self.best = self.folder.load_best(self.clients.task.device)
            self.state = self.best or self.state
            self.scores["in_use"] = evaluate(self.method, self.state, self.clients, self.federation.test)
        elif "in_use" not in self.scores:
            self.scores["in_use"] = evaluate(self.method, self.state, self.clients, self.federation.test)
        if self.schedule.fine_tune and (train := trainer_of(self.method)):
            tune = replace(train, epochs=self.schedule.fine_tune, steps=None, terms=(), decay=1.0)
            self.scores["personalised"] = evaluate(self.method, self.state, self.clients, self.federation.test, tune)

    def _worse(self) -> dict[str, float]:
        """The share of clients that fine-tuning made worse."""
        return {"share_worse": share_below(self.scores["personalised"], self.scores["in_use"])}

    def _clusters(self) -> dict[str, float]:
        """How well clusters agree with known groups, where there are both."""
        group, assignment = self.federation.group, self.state.memory.get("assignment")
        if group is None or assignment is None:
            return {}
        return {"ari": agreement(assignment.cpu().numpy(), group.numpy())}

    def _average(self) -> dict[str, float]:
        """The mean of all centers as one model, and how far apart clients are, where centers work towards one."""
        if self.averaged is None or self.averaged[0] is not self.state:
            found = average(self.method, self.state, self.clients, self.federation.test)
            if found:
                found["disagreement"] = disagreement(self.method, self.state, self.clients)
            self.averaged = (self.state, found)
        return self.averaged[1]

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
            ]
        )
        group = self.federation.group
        for k, name in enumerate(self.federation.clients):
            values = [self.scores[c].accuracy[k] for c in columns] + [self.scores[c].loss[k] for c in columns]
            shown = ["" if math.isnan(v) else f"{v:.6g}" for v in values]
            writer.writerow([name, "" if group is None else int(group[k]), int(self.scores["in_use"].count[k]), *shown])
        self.folder.write_text("clients.csv", table.getvalue())
        if edges := edge_scores(self.method, self.state, self.clients, self.federation.test):
            lines = [
                f"{k},{a:.6g},{h:.6g}" for k, (a, h) in enumerate(zip(*map(torch.Tensor.tolist, edges), strict=True))
            ]
            self.folder.write_text("edges.csv", "\n".join(["edge,accuracy,accuracy_in_cell", *lines, ""]))
        self.folder.write_json("summary.json", self.summary())
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
    device: str = "cpu",
    dtype: str = "float32",
    folder: Folder | None = None,
) -> Run:
    """A run before its first round."""
    require(dtype in ("float32", "float64"), f"dtype must be float32 or float64, got {dtype!r}")
    require(
        schedule.patience is None or len(federation.valid) > 0,
        "patience needs a validation split: load the data with valid=0.1 (in the command: --valid 0.1)",
    )
    where = device_of(device)
    chosen = default(federation.shape, federation.n_outputs, federation.symbols) if model is None else model
    federation = federation.to(where) if where.type != "cpu" else federation
    task = Task.of(federation, chosen, cut=method.cut, seed=seed, loss=loss, dtype=getattr(torch, dtype), device=where)
    clients = Simulation(federation, task, seed, executor, block, held_out)
    state = method.begin(task.start(), federation.n_clients)
    name = chosen if isinstance(chosen, str) else getattr(chosen, "__name__", type(chosen).__name__)
    return Run(method, clients, schedule, state, name, folder=folder)


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
        evaluate_every, checkpoint_every, patience, target, fine_tune: see `Schedule`.
        how: executor, block, held_out, device, dtype, loss; see `prepare`.
    """
    schedule = Schedule(rounds, evaluate_every, checkpoint_every, patience, target, fine_tune)
    prepared = prepare(method, federation, model=model, seed=seed, schedule=schedule, **how)
    if out is not None:
        prepared.folder = Folder.new(Path(out))
        prepared.folder.write_json(
            "config.json", {"method": repr(method), "model": prepared.model, "seed": seed, "rounds": rounds}
        )
        prepared.folder.write_json("environment.json", environment(prepared))
    return prepared.go(watch)


def resume(prepared: Run, folder: Folder, watch: Watcher | None = None) -> tuple[Run, list[str]]:
    """Go on where the newest whole checkpoint left off, bit for bit; also returns what was found damaged.

    `prepared` must be built from the same method, data, model and settings as the run that was interrupted.
    """
    was = folder.read_json("environment.json")
    if was.get("fingerprint") != prepared.federation.fingerprint:
        raise Mistake(
            f"the data are not those the run began with (fingerprint {prepared.federation.fingerprint}, then "
            f"{was.get('fingerprint')}): restore them, or begin a new run"
        )
    for what, now in (("parameters", prepared.clients.task.width), ("method", repr(prepared.method))):
        if was.get(what, now) != now:
            raise Mistake(f"the {what} are not those the run began with: restore its config.json, or begin a new run")
    checkpoint, problems = folder.load(prepared.clients.task.device)
    prepared.folder = folder
    prepared.scores["initial"] = evaluate(prepared.method, prepared.state, prepared.clients, prepared.federation.test)
    if checkpoint is None:
        folder.rewind_metrics(())
    else:
        prepared.state, prepared.tally = checkpoint.state, checkpoint.tally
        prepared.history = list(checkpoint.history)
        folder.rewind_metrics(checkpoint.history)
    for problem in problems:
        folder.log(problem)
    folder.log(f"resumed after round {prepared.state.round}")
    return prepared.go(watch), problems


def environment(prepared: Run) -> dict[str, Any]:
    """What a number depends on besides the settings."""
    return versions() | {
        "device": str(prepared.clients.task.device),
        "threads": torch.get_num_threads(),
        "executor": prepared.clients.executor,
        "block": prepared.clients.block_size,
        "fingerprint": prepared.federation.fingerprint,
        "parameters": prepared.clients.task.width,
        "method": repr(prepared.method),
    }
