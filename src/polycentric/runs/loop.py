"""The loop over rounds: train, measure, tell whoever wants to know, stop.

    until the last round, or until a rule says stop:
        run_round                       the round itself, `polycentric.round`
        account                         bytes, simulated seconds, who took part
        observers -> a row              `runs.observers`: what is measured, and its names
        callbacks                       files, checkpoints, progress bars, trackers
    score every client for the last time

A run does not know who listens. Writing its folder is a callback (`runs.outputs.Recorder`), and so are a progress bar,
TensorBoard, and whatever a user brings.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..data import Federation, Split
from ..errors import Diverged, Lost, unknown
from ..learn import Train
from ..method import Method, State
from ..round import Clients, Trip, run_round
from ..simulate.clients import Simulation
from ..simulate.clock import Clock, Load, Punctual, Traffic, load_of, traffic
from ..simulate.disk_state import Shelf
from ..simulate.homes import away, centers_away, gathered, hidden, spread
from ..simulate.share_out import one_math_thread
from ..stacks.stack import Stacks
from ..tasks.metric import better_of
from .checkpoint import Tally
from .evaluate import evaluate
from .folder import Folder
from .guarantee import check_promise, so_far
from .idle import warn_idle
from .machine import undisturbed
from .metrics import Scores, lower_is_better, plain
from .models_apart import optimistic
from .observers import Moment, Observer, Remote, in_use, observers
from .serving import holder, personal, warn_held_out
from .settings import Settings
from .sketch import Sketched
from .stopping import Target, check_finite, rules
from .unseen import Unseen, unseen

if TYPE_CHECKING:
    from .audit import Audit
    from .export import Exported
    from .newcomers import Elsewhere, Fits
    from .predict import Predictions
    from .record import Exchanges


class Callback:
    """Listens to a run: files, progress bars, trackers. Every hook may be left out; all are given the run itself.

    `sees_kept`: `on_round` may look at what clients keep (`run.state.kept`), and at centers that live with them, which
    are brought together from all ranks for it, where there are several.
    """

    sees_kept = True

    def on_start(self, run: Run) -> None:
        """Before the first round of this process: of a new run, or of one that is resumed."""

    def on_round(self, run: Run, trips: Sequence[Trip]) -> None:
        """After every round; `trips`: who was asked in each exchange, and who answered."""

    def on_evaluation(self, run: Run, row: dict[str, Any]) -> None:
        """After every evaluation; `row` is the newest of `run.history`."""

    def on_stop(self, run: Run) -> None:
        """The rounds are over, or were interrupted: the run is as it was after its last whole round."""

    def on_end(self, run: Run) -> None:
        """After the last scores: the run is finished."""


@dataclass(eq=False)
class Run:
    """A run: finished, or one that can continue."""

    settings: Settings
    method: Method
    clients: Simulation
    state: State
    clock: Clock
    model: str
    given: tuple[str, ...] = ()  # what must be handed over to resume it: no words say it
    folder: Folder | None = None
    callbacks: tuple[Callback, ...] = ()
    measures: tuple[Observer, ...] = ()  # of the user's own, behind ours
    tally: Tally = Tally()
    history: list[dict[str, Any]] = field(default_factory=list)
    scores: dict[str, Scores] = field(default_factory=dict)  # initial, in_use, personalised, ...
    places: dict[int, list[int]] = field(default_factory=dict, repr=False)  # round: every client's center
    sketches: dict[int, Stacks] = field(default_factory=dict, repr=False)  # round: of the models that clients sent
    seconds: float = 0.0
    best: State | None = field(default=None, repr=False)  # on the validation split
    objects: Any = field(default=None, repr=False)  # of Python that it was made of: `runs.start.Given`
    unseen: Unseen | None = field(default=None, repr=False)  # how devices that were never seen are served, at the end
    remote: Remote | None = field(default=None, repr=False)  # who answers, where the examples are elsewhere
    record: Exchanges | None = field(default=None, repr=False)  # what every exchange comes to, where it is written

    @property
    def federation(self) -> Federation:
        """Everybody's data."""
        return self.clients.federation

    @property
    def now(self) -> Moment:
        """The run as observers see it; what they have found out about one state is kept with it."""
        if self._moment is None or self._moment.state is not self.state:
            self._moment = Moment(self.method, self.clients, self.state, self.tally, remote=self.remote)
        return self._moment

    _moment: Moment | None = field(default=None, init=False, repr=False)
    _since: float = field(default=0.0, init=False, repr=False)  # when the last round ended
    _stays: bool = field(default=False, init=False, repr=False)  # whether centers may stay with their clients
    _saw_all: float = field(default=0.0, init=False, repr=False)  # when all that clients keep was last here

    @property
    def metrics(self) -> dict[str, float]:
        """The scores of the model in use at the end, at the clients that train and do not attack."""
        shown = self.now.exchange.topology.shows(self.now.view())
        return in_use(self.now) | shown | self.now.histograms | self.now.average | self.now.probe

    def model_of(self, client: int | str | None = None, center: int | None = None) -> nn.Module:
        """The trained module of a client, by its number or name, or of a center, with its parameters loaded.

        It takes examples as the run has them: of a standardised run `run.federation.scaling(x)`, of images numbers from
        0 to 1. `run.predict` and what `run.export` writes take them as they are before.
        """
        center = 0 if client is None and center is None else center
        return self.clients.task.loaded(holder(self, client, center).rows)

    def export(self, **how: Any) -> list[Exported]:
        """Models as files for other programs; arguments as those of `runs.export.export`."""
        from .export import export

        return export(self, **how)

    def predict(self, what: Any, **whose: Any) -> Predictions:
        """Answers to new examples; arguments as those of `runs.predict.predict`."""
        from .predict import predict

        return predict(self, what, **whose)

    def assign(self, data: Any, **how: Any) -> Fits:
        """Which center fits every client of other data; arguments as those of `runs.newcomers.assign`."""
        from .newcomers import assign

        return assign(self, data, **how)

    def evaluate(self, data: Any, **how: Any) -> Elsewhere:
        """Scores on other data, nothing is trained; arguments as those of `runs.newcomers.evaluate_on`."""
        from .newcomers import evaluate_on

        return evaluate_on(self, data, **how)

    def audit(self, **how: Any) -> Audit:
        """What attackers learn of its members; arguments as those of `runs.audit.audit`."""
        from .audit import audit

        return audit(self, **how)

    def report(self, path: str | Path | None = None, *, examples: bool = True) -> Path:
        """One HTML file on this run, by default report.html in its folder; `examples`: single ones may be shown."""
        from ..report.page import report_of  # the one arrow that points up: nobody who runs needs it

        return report_of(self, path, examples=examples)

    def _repr_html_(self) -> str:
        """The run in a notebook: what was run, and its scores before training, in use and after fine-tuning."""
        from .outputs import in_notebook

        return in_notebook(self)

    def summary(self) -> dict[str, Any]:
        """The run in one JSON object."""
        from .outputs import summary

        return summary(self)

    # -- stopping ------------------------------------------------------------------------------------------

    @property
    def stopped(self) -> str:
        """Why the run ended before its last round; empty if it did not."""
        return next((reason for rule in rules(self.settings) if (reason := rule.reason(self))), "")

    @property
    def rounds_to_target(self) -> int | None:
        """The first evaluated round that reached the target accuracy."""
        target = self.settings.target
        return None if target is None else Target(target).reached(self.history)

    # -- the loop ------------------------------------------------------------------------------------------

    def go(self) -> Run:
        """Run the rounds that are left, then score every client for the last time."""
        with nullcontext() if self.folder is None else self.folder.alone():
            shared = self.clients.by_work or self.clients.n_workers > 1
            with one_math_thread(shared, self.clients.n_workers):
                try:
                    return self._go()
                finally:
                    self.clients.close()

    def _go(self) -> Run:
        began = self._since = self._saw_all = time.monotonic()
        self.state = gathered(self.state, self.clients.ranks)  # after a round that was left in its middle
        if self.state.round < self.settings.rounds:
            warn_idle(self)
            check_promise(self)
        self.state = self.stored(self.state)
        self._tell("on_start")
        self._stays = self.method.at_home and not self.clients.ranks.anybody(self._sees_centers())
        if not self.history:
            self._evaluate(())
        whole = self._whole()
        try:
            while self.state.round < self.settings.rounds and not self.stopped:
                trips = self._round()
                whole = whole if away(self.state) else self._whole()
                self._tell("on_round", trips)
                del trips  # they know the state before the round, which may be large
        except (KeyboardInterrupt, Diverged, Lost):
            with undisturbed():  # where one rank is lost, the others are told to end
                self.state, self.tally, self.best, lines = whole
                del self.history[lines:]
                self._tell("on_stop")  # the last whole round, with its evaluation
            raise
        self.state = gathered(self.state, self.clients.ranks)
        self._tell("on_stop")
        self._finish()
        self.seconds += time.monotonic() - began
        self._tell("on_end")
        return self

    def _tell(self, hook: str, *what: Any) -> None:
        for callback in self.callbacks:
            getattr(callback, hook)(self, *what)

    def _whole(self) -> tuple[State, Tally, State | None, int]:
        return self.state, self.tally, self.best, len(self.history)

    def _round(self) -> tuple[Trip, ...]:
        before, width = self.state, self.clients.task.width
        here = self.clients if self.clock.deadline is None else Punctual(self.clients, self.clock, width)
        heard: Clients = self.remote or here
        heard = heard if self.record is None else self.record.over(heard)
        if self.record is None and self.settings.record and self.clients.ranks.size > 1:
            from .record import Listening

            heard = Listening(heard)  # as the first rank does, which is told all rows by the others
        sketched = Sketched(heard) if self.settings.sketch and self.settings.evaluates(before.round + 1) else None
        ranks = self.clients.ranks
        stays = self._stays and not self.settings.evaluates(before.round + 1)
        after, made = run_round(self.method, spread(before, ranks, stays), sketched or heard)
        trips = tuple(made)
        if centers_away(after):
            hidden(before, after, ranks)
        ranks.check(after)
        after = self._at_hand(after)
        since, self._since = self._since, time.monotonic()
        tally, late = self._account(trips, self._since - since)
        check_finite(trips, late, before, after, self.clients.attackers, ranks)  # last, since it waits for a GPU
        self.state, self.tally = self.stored(after), tally
        if sketched is not None and sketched.found:
            self.sketches[after.round] = sketched.found
        if self.settings.evaluates(after.round):
            self._evaluate(trips)
        return trips

    def _at_hand(self, state: State) -> State:
        """What is at home, from all ranks, in rounds that are scored, saved or looked at by somebody's callback."""
        ranks, now = self.clients.ranks, time.monotonic()
        due = ranks.first and self.settings.saves(state.round, now - self._saw_all)  # the first rank has the clock
        wanted = due or self._looks() or self.settings.evaluates(state.round)
        found = gathered(state, ranks, wanted)
        self._saw_all = self._saw_all if away(found) else now
        return found

    def _looks(self) -> bool:
        """Whether somebody's callback may look at the state after every round."""
        return any(c.sees_kept and type(c).on_round is not Callback.on_round for c in self.callbacks)

    def _sees_centers(self) -> bool:
        """Whether somebody may look at all centers of any round: of a trip's state before it, too."""
        attack = self.clients.attack
        return self._looks() or bool(self.measures) or self.settings.record or (attack is not None and attack.knows)

    def _account(self, trips: Sequence[Trip], seconds: float) -> tuple[Tally, list[int]]:
        """What a round of so many seconds adds to the tally; and how many were late in each of its exchanges."""
        loads = [load_of(trip, self.clients.task.width) for trip in trips]
        late = [int(self.clock.late(load).sum()) for load in loads]
        late = late if self.remote is None else [self.remote.silent(trip) for trip in trips]
        moved = [traffic(trip, self.clock.broadcast, load) for trip, load in zip(trips, loads, strict=True)]
        total, tally = sum(moved, start=Traffic()), self.tally
        times = tally.clients_times(self.federation.n_clients)
        times = self._simulated(times, loads) if self.remote is None else times + seconds  # time is real there
        took = torch.zeros(self.federation.n_clients, dtype=torch.int64) if tally.took is None else tally.took.clone()
        took[torch.cat([trip.arrived.index for trip in trips])] += 1
        grown = replace(
            tally.at(times),
            bytes_up=tally.bytes_up + total.up,
            bytes_down=tally.bytes_down + total.down,
            links={name: tally.links.get(name, 0) + n for name, n in total.links.items()},
            dropped=tally.dropped + sum(len(trip.cohort) - len(trip.arrived) for trip in trips) - sum(late),
            late=tally.late + sum(late),
            steps=tally.steps + sum(float(load.steps.mean()) for load in loads if len(load.cohort)),
            examples=tally.examples + sum(float(load.examples.mean()) for load in loads if len(load.cohort)),
            counted=tally.counted + 1,
            took=took,
        )
        return grown, late

    def _simulated(self, times: Tensor, loads: Sequence[Load]) -> Tensor:
        """When every client is done, by the clock of a simulation."""
        for load in loads:
            times = self.clock.advance(times, load)
        if not any(len(load.cohort) for load in loads):
            everyone = self.clients.everyone(self.state.round)
            times = self.clock.pause(times, [replace(load, cohort=everyone) for load in loads])
        return times

    def _evaluate(self, trips: tuple[Trip, ...]) -> None:
        now = self._moment = Moment(self.method, self.clients, self.state, self.tally, trips, self.remote)
        row: dict[str, Any] = {}
        for measure in (*observers(self.settings.dissimilarity), *self.measures):
            row |= measure(now)
        if self.settings.unseen:
            row |= unseen(self, self.clients, self.federation.test).row(self)
        row |= so_far(self)
        self.scores |= {"in_use": now.scores} if trips else {"in_use": now.scores, "initial": now.scores}
        judged = self._monitored(row) if "valid_micro_loss" in row else None  # what it cannot find, it says at once
        if trips and judged is not None:
            self.tally = self.tally.judged(judged, self.state.round)  # only validation has a say
            self.best = self.state if self.tally.best_round == self.state.round else self.best
        row = plain(row)
        self.history.append(row)
        assignment = now.exchange.topology.assignment(self.state.memory)
        if assignment is not None and self.state.round:  # before the first round nobody has a center
            self.places[self.state.round] = assignment.cpu().tolist()
        self._moment = now.settled()
        self._tell("on_evaluation", row)

    def _monitored(self, row: dict[str, Any]) -> float:
        """What early stopping goes by, more is better."""
        name, less = self._watched(row)
        return -row[name] if less else float(row[name])

    def _watched(self, row: dict[str, Any]) -> tuple[str, bool]:
        """The validation metric that choices are made by, and whether less of it is better."""
        found = next((each for each in self.clients.task.goal.leads if f"valid_{each}" in row), "micro_loss")
        asked = self.settings.monitor or found
        name = f"valid_{asked.removeprefix('valid_')}"
        if name not in row:
            known = [key.removeprefix("valid_") for key in row if key.startswith("valid_")]
            raise unknown("metric to monitor", asked, known)
        own = better_of(self.clients.task.metrics, re.sub("^valid_(micro|macro|worst_decile)_", "", name))
        return name, lower_is_better(name) if own is None else own

    @property
    def validation(self) -> dict[str, Any] | None:
        """The validation score of the models in use, which choices between runs go by; None: there are no examples."""
        row = next((row for row in self.history if row["round"] == self.state.round), {})
        if "valid_micro_loss" not in row:
            return None
        name, less = self._watched(row)
        return {"metric": name, "value": row[name], "lower_is_better": less}

    def _finish(self) -> None:
        """The best state where one was kept, and the last scores."""
        warn_held_out(self)
        test = self.federation.test
        if self.settings.patience and self.tally.best_round is not None:
            if self.best is None:  # found before an interruption
                device, round = self.clients.task.device, self.tally.best_round
                saved = self.folder.load_best(device, round) if self.folder else self.state
                self.best = self.stored(self.shared(saved))
            self.state = self.best
            self.scores.pop("in_use", None)
        self.scores.setdefault("in_use", self.now.scores)
        self.unseen = self._unseen()
        self.scores |= self.unseen.scores if self.unseen else {}
        if self.settings.optimistic and (found := optimistic(self.method, self.state, self.clients, test)):
            self.scores |= dict(zip(("optimistic", "one_center"), found, strict=True))
        if self.settings.fine_tune and (train := trainer_of(self.method)):
            self.scores["personalised"] = (
                evaluate(self.method, self.state, self.clients, test, train.tuning(self.settings.fine_tune))
                if self.remote is None
                else self.remote.scores(self.state, "test", self.settings.fine_tune)
            )
        if self.settings.alone:
            from .alone import trained_alone

            self.scores["alone"] = trained_alone(self).scores["in_use"]

    def _unseen(self) -> Unseen | None:
        """How devices that were never seen are served, where it is asked for or some have no part of their own."""
        test, out = self.federation.test, self.clients.held_out_mask
        if self.settings.unseen:
            return unseen(self, self.clients, test)
        if not bool(out.any()) or not personal(self):
            return None
        mine = out[test.owner.cpu()]
        here = mine.to(test.x.device)
        only = Split.gathered(test.x[here], test.y[here], test.owner.cpu()[mine], self.federation.n_clients)
        return unseen(self, self.clients, only)

    # -- where states are held -----------------------------------------------------------------------------

    @cached_property
    def shelf(self) -> Shelf | None:
        """Where stacks are held that are not in memory; a folder that vanishes, where the run has none."""
        on_disk = self.settings.state == "disk"
        return Shelf(self.folder.path / "state" if self.folder else None) if on_disk else None

    def shared(self, state: State) -> State:
        """The first rank's state, which it has read, at all ranks."""
        return self.clients.ranks.state(state, None if self.shelf is None else self.shelf.empty)

    def stored(self, state: State) -> State:
        """The same state; what clients keep, and what is remembered in more than one number a client, is on disk."""
        if (shelf := self.shelf) is None:
            return state
        wide = {name: rows for name, rows in state.memory.items() if rows.numel() > self.federation.n_clients}
        put = [{name: shelf.put(rows) for name, rows in stacks.items()} for stacks in (state.kept, wide)]
        return replace(state, kept=put[0], memory=state.memory | put[1])


def trainer_of(method: Method) -> Train | None:
    """How a method's clients train, for fine-tuning in the same way."""
    learners = (learner.trains_like for exchange in reversed(method.exchanges) for learner in exchange.learn)
    return next((train for train in learners if isinstance(train, Train)), None)
