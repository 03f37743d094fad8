"""One way into a run, whoever begins it: from settings, and from objects where words do not say it.

    run("fedavg", "digits", rounds=20)                  by words, as the command does
    run(fedavg(lr=0.1), load("digits"), model=Net)      by objects: their words are recorded where they have any
    resume("runs/fedavg-digits")                        the rounds that are left, bit for bit
    open("runs/fedavg-digits")                          a finished run: its models, scores and history

`described` makes settings of what was given; `prepared` makes a run of settings. The module is long because
all ways into a run stand in one place: whoever begins or goes on passes here.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..data import Federation, Pool, load
from ..data.augment import Augment
from ..data.outline import outline
from ..errors import UsageError, require
from ..language import NoWords, part_of, spell, value_of
from ..language.own_code import is_own, own_function
from ..method import Method
from ..methods import METHODS
from ..models import default
from ..parts.attack import Attack
from ..simulate.auto_executor import FirstRound
from ..simulate.clients import Simulation
from ..simulate.clock import Clock, check
from ..simulate.ranks import ALONE, Ranks, own_device
from ..stacks.draw import seed_of
from ..tasks.goal import Goal, Loss
from ..tasks.goals import goal_of
from ..tasks.metric import Metric, metric_of
from ..tasks.task import Task
from ..topology.cells.deal import compare_cells
from .checkpoint import Checkpoint, check_fits
from .folder import Folder, released_on_error
from .guarantee import asked_of, calibrated, delta_of
from .idle import refuse_idle, share_for_validation
from .loop import Callback, Run, trainer_of
from .machine import device_of, use_precision
from .observers import Observer, Remote
from .outputs import Recorder, check_the_same, environment
from .recipes import build_method, words_of
from .record import Exchanges
from .settings import Settings, unbracketed

Model = nn.Module | Callable[..., nn.Module]


@dataclass(frozen=True)
class Others:
    """What a client must know of all clients, itself among them."""

    able: int  # clients that train
    largest: int  # training examples of the one that has most


@dataclass(frozen=True, eq=False)
class Given:
    """What was given as objects of Python: taken as they are, whatever words say."""

    method: Method | None = None
    federation: Federation | None = None
    model: Model | None = None
    goal: Goal | None = None
    loss: Loss | None = None
    attack: Attack | None = None
    clock: Clock | None = None
    observers: Sequence[Observer] | None = None
    metrics: Sequence[Metric] | None = None
    nodes: Callable[[Run], Remote] | None = None  # who answers, where the examples are elsewhere
    others: Others | None = None  # at a node: what it must know of the other clients
    secret: bytes | None = None  # a key that draws the center's noise, where its seed is told to others
    sealed: bool | None = None  # True: what clients send each other is not read here


NOTHING = Given()


def run(
    method: str | Method,
    federation: str | Path | Federation | Pool,
    *,
    out: str | Path | None = None,
    callbacks: Sequence[Callback] = (),
    observers: Sequence[Observer] = (),
    **how: Any,
) -> Run:
    """Run a method on a federation and return the finished run.

    Arguments:
        method: such as `fedavg(lr=0.1, epochs=5)`, or its name.
        federation: such as `load("digits", partition=Rotations(4))`, a pool, or the name of data.
        out: a folder for metrics and checkpoints; None: nothing is written.
        callbacks: who is told how it goes: see `Callback`.
        observers: what else is measured at every evaluation: functions from a `Moment` to numbers by name.
        how: model (a name, an `nn.Module` or a factory), goal (see `Goal`), loss, metrics (see `Metric`), ranks, and
            every setting of a run: rounds, seed, evaluate_every, patience, target, fine_tune, held_out, attack,
            executor, device, clock, ...; see `Settings`.
    """
    unwritten = out is None and how.get("checkpoint_every") is not None
    require(not unwritten, "checkpoint_every needs a folder to write into: give out=, or leave it out")
    made = prepare(method, federation, **how)
    made.measures, made.given = tuple(observers), (*made.given, *(["observers"] if observers else []))
    if out is not None and made.clients.ranks.first:
        attach_folder(made, Folder.new(Path(out)))
    made.callbacks += tuple(callbacks)
    return made.go()


def prepare(
    method: str | Method,
    federation: str | Path | Federation | Pool,
    *,
    model: str | Model | None = None,
    goal: str | Goal | type[Goal] | None = None,
    loss: str | Loss | None = None,
    ranks: Ranks = ALONE,
    **settings: Any,
) -> Run:
    """A run before its first round; arguments as those of `run`."""
    dealt = _dealt(federation, settings) if isinstance(federation, Pool) else federation
    words, given, needs = described(method, dealt, model, loss, settings, goal)
    return prepared(words, given, ranks, needs)


def resume(
    folder: str | Path,
    *,
    rounds: int | None = None,
    callbacks: Sequence[Callback] = (),
    ranks: Ranks = ALONE,
    trust: bool = False,
    **given: Any,
) -> Run:
    """Resume a run from the newest intact checkpoint in its folder, bit for bit.

    Arguments:
        folder: of a run that was interrupted, or that is to take more rounds.
        rounds: as many in all, more than it was begun with; None: as it was begun.
        trust: run code that the folder names as module:attribute; a run that was begun here needs no consent.
        given: method, federation, model, goal, loss, attack, clock or observers, where the run was begun with objects
            that no words say.
    """
    there = Folder.open(Path(folder)) if ranks.first else None
    made, problems = resumed(there, Given(**given), ranks, rounds, trust)
    made.callbacks += tuple(callbacks)
    for problem in problems:
        warnings.warn(problem, stacklevel=2)
    return made.go()


def open(
    folder: str | Path, *, device: str | None = None, trust: bool = False, examples: bool = True, **given: Any
) -> Run:
    """Open a finished run as it was at its end, to look at: nothing is trained, nothing written.

    Arguments:
        folder: of a finished run.
        device: where to look at it; None: where it was run.
        trust: as in `resume`.
        examples: False: do without the run's own examples, where they were given as an object and not by a name: enough
            to predict, export, assign and evaluate.
        given: as in `resume`.
    """
    there = Folder.open(Path(folder))
    require(there.finished, f"{folder} is not a finished run: `polycentric resume {folder}` first")
    settings, needs = there.read_config(trust)
    if not examples and "federation" in needs and (told := there.read_outline()):
        given = {"federation": told} | given
    unused = ("observers", "nodes", "sealed")  # nothing is measured, nobody asked
    handed = _handed_over(there, [name for name in needs if name not in unused], Given(**given))
    made = prepared(settings if device is None else settings.changed(device=device), handed, needs=needs, begun=True)
    checkpoint = there.load_last(made.clients.task.device, check_the_same(made, there), _fits(made))
    made.state, made.tally, made.folder = checkpoint.state, checkpoint.tally, there
    made.history = list(checkpoint.history)
    made.places = there.read_places(made.federation.n_clients, len(checkpoint.state.centers["model"]))
    if settings.patience and checkpoint.tally.best_round is not None:
        made.state = there.load_best(made.clients.task.device, checkpoint.tally.best_round)
    if not made.federation.absent:
        made.scores["in_use"] = made.now.scores
    return made


# -- from what was given to settings -------------------------------------------------------------------------


def described(
    method: str | Method,
    federation: str | Path | Federation,
    model: str | Model | None = None,
    loss: str | Loss | None = None,
    options: dict[str, Any] | None = None,
    goal: str | Goal | type[Goal] | None = None,
) -> tuple[Settings, Given, tuple[str, ...]]:
    """Settings, the objects beside them, and the names of those objects that no words say."""
    values, objects, needs = dict(options or {}), dict[str, Any](), list[str]()
    if isinstance(method, Method):
        require(
            "set" not in values,
            f"set={values.get('set')} is for a method given by name: pass these settings to {method.name}(...) instead",
        )
        objects["method"] = method
        words, silent = words_of(method.recipe) if method.recipe else ({}, ["all"])
        name = method.recipe.name if method.recipe and is_own(method.recipe.name) else method.name
        values |= {"method": name, "set": words}
        needs += ["method"] if silent or (values["method"] not in METHODS and not is_own(values["method"])) else []
    else:
        values["method"] = method
    if isinstance(federation, Federation):
        dealing = ("data", "partition", "clients", "valid", "data_seed", "standardise")
        dealt = [name for name in dealing if name in values]
        require(
            not dealt, f"federation '{federation.name}' is loaded already: pass {', '.join(dealt)} to pc.load instead"
        )
        objects["federation"] = federation
        values |= {"data": federation.name} if federation.source is None else federation.source.settings(values)
        needs += [] if federation.source else ["federation"]
    else:
        values["data"] = str(federation)
    for name, thing in (("model", model), ("goal", goal), ("loss", loss)):
        if isinstance(thing, str) or thing is None:
            values[name] = thing
        else:
            objects[name] = goal_of(thing) if name == "goal" else thing
            needs.append(name)
    for name, kind in (("attack", Attack), ("clock", Clock)):
        part = values.pop(name, None)
        if isinstance(part, str):
            values[name] = part
        elif part is not None:
            require(
                isinstance(part, kind),
                f"{name} must be an instance of {kind.__name__}, or text as in --{name}, got {part!r}",
            )
            objects[name] = part
            try:
                values[name] = spell(part, kind)
            except NoWords:
                needs.append(name)
    own = values.pop("metrics", None)
    if isinstance(own, str) or own is None:
        values["metrics"] = own
    elif all(isinstance(metric, str) for metric in own):
        values["metrics"] = ", ".join(own) or None
    else:
        objects["metrics"] = [metric_of(metric) for metric in own]
        needs.append("metrics")
    words_only = values if isinstance(method, Method) else unbracketed(values)
    return Settings.of(words_only, "the arguments"), Given(**objects), tuple(needs)


def _dealt(pool: Pool, values: dict[str, Any]) -> Federation:
    """A pool dealt as the settings say; those that say it are taken out of them."""
    how = {name: values.pop(name) for name in ("partition", "clients", "valid", "standardise") if name in values}
    how |= {} if how.get("valid") or not values.get("patience") else {"valid": 0.1}
    seed = values.pop("data_seed", None)
    return load(pool, **how, seed=values.get("seed", 0) if seed is None else seed)


def built_method(settings: Settings) -> Method:
    """The method that settings describe."""
    return build_method(settings.method, settings.set)


def built_clock(settings: Settings) -> Clock:
    """The clock that settings describe."""
    clock: Clock = part_of("clock", settings.clock, Clock)
    return clock


def built_attack(settings: Settings) -> Attack | None:
    """The attack that settings describe."""
    attack: Attack | None = value_of("attack", settings.attack, Attack | None)
    return attack


def built_metrics(settings: Settings) -> list[Metric]:
    """The metrics that settings name."""
    names = [word.strip() for word in (settings.metrics or "").split(",")]
    found = [metric_of(name) for name in names if name]
    twice = {metric.name for metric in found if [m.name for m in found].count(metric.name) > 1}
    require(not twice, f"two metrics are called {', '.join(twice)}: give one another name")
    return found


def built_goal(settings: Settings) -> Goal | None:
    """The goal that settings name."""
    return None if settings.goal is None else goal_of(settings.goal)


def built_loss(settings: Settings) -> Loss | None:
    """The loss that settings name: a function, or a class that makes one, such as an `nn.Module`."""
    if settings.loss is None:
        return None
    found = own_function(settings.loss, "loss")
    loss: Loss = found() if isinstance(found, type) else found
    return loss


def built_augment(settings: Settings, method: Method) -> Augment | None:
    """What happens to images in training, where the method trains."""
    augment: Augment | None = value_of("augment", settings.augment, Augment | None)
    good = augment is None or trainer_of(method) is not None
    require(
        good, f"{method.name} takes no steps on batches, so augment={settings.augment} would do nothing: leave it out"
    )
    return augment


def check_words(settings: Settings) -> None:
    """Refuse words that build nothing, before anything is read or written."""
    built_augment(settings, built_method(settings))
    built_clock(settings)
    built_attack(settings)
    built_metrics(settings)
    built_goal(settings)
    built_loss(settings)


def load_data(settings: Settings) -> Federation:
    """The federation that settings describe."""
    valid = share_for_validation(settings)
    seed = settings.seed if settings.data_seed is None else settings.data_seed
    how: dict[str, Any] = {"partition": settings.partition, "clients": settings.clients, "seed": seed, "valid": valid}
    return load(settings.data, **how, standardise=settings.standardise)


# -- from settings to a run ----------------------------------------------------------------------------------


def prepared(
    settings: Settings,
    given: Given = NOTHING,
    ranks: Ranks = ALONE,
    needs: Sequence[str] = (),
    beside: int = 1,
    begun: bool = False,
) -> Run:
    """The run that settings describe, before its first round.

    `beside`: runs that share the device with it. `begun`: the settings are those of a folder, which says how blocks are
    cut; where it says nothing, as many clients as fit make a block, however long the run is to be.
    """
    # Before the data are read: a mistake costs nothing.
    unsaid = set(needs) - {"method", "federation", "observers"} if settings.alone else set()
    require(not unsaid, f"alone=True needs {', '.join(sorted(unsaid))} by name (module:attribute): drop one of them")
    method = given.method or built_method(settings)
    clock = given.clock or built_clock(settings)
    attack = given.attack or built_attack(settings)
    augment = built_augment(settings, method)
    check(clock, method)
    federation = given.federation if given.federation is not None else load_data(settings)
    compare_cells(method.exchanges[-1].topology.geometry, federation, settings.seed)
    if settings.patience is not None and not len(federation.valid):
        raise UsageError("patience needs a validation split: load the data with valid=0.1 (--valid 0.1)")
    device, ranks = own_device(settings.device, ranks)
    where = device_of(device)
    if ranks.size > 1 and where.type == "cuda":
        torch.cuda.set_device(where)  # where what others send is received
    use_precision(settings.precision, where, settings.dtype)
    fits = federation.shape, federation.n_outputs, federation.symbols, federation.kind
    model = given.model or settings.model or default(*fits)
    federation = federation.to(where) if where.type != "cpu" else federation
    metrics = given.metrics if given.metrics is not None else built_metrics(settings)
    how: dict[str, Any] = {"dtype": getattr(torch, settings.dtype), "device": where, "precision": settings.precision}
    how |= {"metrics": metrics, "augment": augment, "loss": given.loss or built_loss(settings)}
    how |= {"goal": given.goal or built_goal(settings)}
    build = partial(Task.of, federation, model, cut=method.cut, around=method.around, **how)
    task = build(seed=settings.seed)
    others = range(1, method.starts(federation.n_clients))
    starts = [task.start(), *(build(seed=seed_of(settings.seed, "center", j)).start() for j in others)]
    require(
        not others or not torch.equal(starts[0]["model"], starts[1]["model"]),
        f"{method.name} needs centers that begin differently, but a module instance fixes the initial weights: give "
        "the model's name, its class, or a function that makes it",
    )
    start = {name: torch.cat([rows[name] for rows in starts]) for name in starts[0]}
    method = method.fitted(task.layouts["model"], start["model"][:1], federation.n_clients)
    largest = given.others.largest if given.others else int(federation.train.sizes.max())
    first = method.begin(start, federation.n_clients, largest, federation.n_outputs)
    same = ("seed", "executor", "block", "held_out", "held_out_seed", "workers")
    asked = {name: getattr(settings, name) for name in same}
    asked["workers"] = None if settings.workers == "auto" else settings.workers
    asked["block"] = "fits" if begun and settings.block is None else settings.block
    ahead = FirstRound(method.at(0), first, settings.rounds, beside)
    clients = Simulation(federation, task, **asked, attack=attack, ranks=ranks, first=ahead)
    refuse_idle(settings, federation, clients)
    able = given.others.able if given.others else len(clients.everyone(0))
    method = calibrated(method, settings.rounds, able, delta_of(settings.delta, federation.n_clients))
    method = method.secured(given.secret) if given.secret is not None else method
    name = model if isinstance(model, str) else getattr(model, "__name__", type(model).__name__)
    made = Run(settings, method, clients, first, clock, name, tuple(needs), measures=tuple(given.observers or ()))
    made.objects, made.remote = given, given.nodes(made) if given.nodes else None
    if "nodes" in needs:  # what clients keep is there
        made.state = replace(first, kept={})
    return made


def again(run: Run, federation: Federation | None = None, **settings: Any) -> Run:
    """A run made like another one, before its first round: on other examples, or with some settings changed."""
    objects = replace(run.objects, federation=federation or run.federation, observers=None)
    return prepared(run.settings.changed(**settings), objects)


@released_on_error
def attach_folder(made: Run, folder: Folder) -> Run:
    """Give a run its folder, which nobody else may write until it ends, and write there what it was made from."""
    folder.claim_new()
    # `auto` is resolved, so that a resumed run does what this one does whatever it finds later.
    found: dict[str, Any] = {"executor": made.clients.executor, "device": str(made.clients.task.device)}
    if made.settings.patience and not made.settings.valid and made.federation.source:  # as it was loaded
        found |= {"valid": made.federation.source.valid}
    if made.clients.block is not None:  # it goes on with the same blocks, however long it will be
        found |= {"block": made.clients.block}
    if made.clients.ranks.size > 1:  # and with any number of ranks
        found |= {"device": made.clients.task.device.type}
    folder.write_config(made.settings.changed(**found), made.given)
    if "federation" in made.given:  # no words load it again
        folder.write_text("outline.json", json.dumps(outline(made.federation)) + "\n")
    facts = environment(made)
    folder.write_environment(facts)
    return _recorded(made, folder, facts["identity"])


def _recorded(made: Run, folder: Folder, identity: str) -> Run:
    made.folder = folder
    made.callbacks = (Recorder(folder, identity), *made.callbacks)
    if made.settings.record:  # before the checkpoint of a round
        made.record = Exchanges(folder)
        made.callbacks = (made.record, *made.callbacks)
    return made


def _fits(made: Run) -> Callable[[Checkpoint], None]:
    """What a checkpoint must be, to be gone on from."""
    n_clients, topology = made.federation.n_clients, made.method.exchanges[-1].topology

    def check(found: Checkpoint) -> None:
        check_fits(found, made.state, n_clients, made.settings.rounds)
        known = {row["round"] for row in found.history}
        if lost := [r for r in range(found.state.round + 1) if made.settings.evaluates(r) and r not in known]:
            raise ValueError(f"the line of round {lost[0]} in metrics.jsonl is lost")
        places = topology.assignment(made.state.memory | found.state.memory)
        n = len(found.state.centers["model"])
        begun = found.state.round > 0  # before that centers may be fewer: the first round makes them
        if begun and places is not None and len(places) and not 0 <= int(places.min()) <= int(places.max()) < n:
            raise ValueError("clients are assigned to centers that there are not")

    return check


@released_on_error
def resumed(
    folder: Folder | None,
    given: Given = NOTHING,
    ranks: Ranks = ALONE,
    rounds: int | None = None,
    trust: bool = False,
) -> tuple[Run, list[str]]:
    """A run from its folder as its newest whole checkpoint left it, and what was found damaged.

    It goes on with as many threads as it began with: sums depend on them. Of several ranks only the first has the
    folder: it tells the others what is in it.
    """
    told = ""
    with ranks.together():
        if folder:
            settings, needs = folder.read_config(trust)
            _handed_over(folder, needs, given)
            folder.require_begun()
            threads = folder.read_environment().get("threads")
            told = json.dumps([_longer(settings, rounds, folder, given).model_dump(), needs, threads])
            folder.claim()  # now: a mistake touches nothing
            require((settings, needs) == folder.read_config(trust), f"{folder.path} was resumed just now: try again")
    values, needs, threads = json.loads(ranks.text(told))
    with ranks.together():
        settings = Settings.of(values)
        if ranks.size > 1:  # every rank takes its own
            settings = settings.changed(device=settings.device.partition(":")[0])
        made = prepared(settings, given, ranks, needs, begun=True)
        if threads is not None and threads != torch.get_num_threads():
            torch.set_num_threads(threads)
    problems = continued(made, folder)
    if folder and rounds is not None:
        folder.write_config(settings, needs)
    return made, problems


def continued(made: Run, folder: Folder | None) -> list[str]:
    """Put a run where the newest whole checkpoint of a folder left off; returns what was found damaged.

    `made` must be built from the same method, data, model and settings as the run that was interrupted.
    """
    ranks, problems, checkpoint, known = made.clients.ranks, list[str](), None, ""
    with ranks.together():
        if folder:
            folder.claim()
            known = check_the_same(made, folder)
            checkpoint, problems = folder.load(made.clients.task.device, known, _fits(made))
            made.folder = folder
    made.scores["initial"] = made.now.scores
    if text := ranks.text(json.dumps(checkpoint.to_json()) if checkpoint else ""):
        state = checkpoint.state if checkpoint else made.state
        state = replace(state, memory=made.state.memory | state.memory)  # what was not remembered yet, as it begins
        checkpoint = Checkpoint.from_json(json.loads(text), made.shared(state))
        made.state, made.tally = checkpoint.state, checkpoint.tally
        # A run that ended evaluated its last round in any case; one that was begun with more rounds would not have.
        made.history = [row for row in checkpoint.history if made.settings.evaluates(row["round"])]
    if folder:
        folder.rewind_metrics(made.history)
        then, digest = (checkpoint.history, checkpoint.places) if checkpoint else ((), "")
        known_then, now = ({row["round"] for row in rows} for rows in (then, made.history))
        made.places, lost = folder.rewind_places(known_then, digest, now)
        problems += lost + folder.rewind_sketches(now)
        for line in [*problems, f"resumed after round {made.state.round}"]:
            folder.log(line)
        if made.state.round < made.settings.rounds and not made.stopped:
            folder.unfinish()
        _recorded(made, folder, known)
    return problems


def _longer(settings: Settings, rounds: int | None, folder: Folder, given: Given) -> Settings:
    """The settings with more rounds; how often it evaluates stays as it was."""
    if rounds is None or rounds == settings.rounds:
        return settings
    begun = f"{folder.path} was started with {settings.rounds} rounds"
    require(
        rounds >= settings.rounds, f"{begun}, and rounds={rounds} is fewer: give a larger number, or leave rounds out"
    )
    for asked in asked_of(given.method or built_method(settings)):
        raise UsageError(
            f"{begun}, and its noise was found for epsilon={asked:g} over these: {rounds} need more from the first one "
            f"on. Start a new run with --rounds {rounds}; one that may take more rounds later needs --set noise=... in "
            "place of epsilon, and can have a budget, --epsilon"
        )
    every = settings.evaluate_every or max(1, settings.rounds // 50)
    return settings.changed(rounds=rounds, evaluate_every=every)


def _handed_over(folder: Folder, needs: Sequence[str], given: Given) -> Given:
    """Refuse a run that was begun with objects, where they are not handed over."""
    missing = [name for name in needs if getattr(given, name, None) is None]
    if missing:
        wanted = ", ".join(f"{name}=..." for name in missing)
        raise UsageError(
            f"{folder.path} was started in Python with objects that cannot be written as text ({', '.join(missing)}): "
            f"resume it there, pc.resume({str(folder.path)!r}, {wanted}), or use pc.open for a finished run"
            + (", with examples=False to predict or export without its data" if missing == ["federation"] else "")
        )
    return given
