"""Settings that would do nothing in a run: refused before it begins, or said where a method has no use for them.

What never acts, whatever the method, is refused: a target accuracy where numbers are predicted. What a method has no
use for is said, so that several methods can be compared under the same settings.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import torch

from ..data import Federation
from ..errors import require
from ..simulate.clients import Simulation
from .settings import Settings

if TYPE_CHECKING:
    from .loop import Run

PATIENT = 0.1  # share for validation where patience asks for some and nobody says how much


def share_for_validation(settings: Settings) -> float:
    """Of every client's training examples: patience needs some to go by."""
    if settings.valid or not settings.patience:
        return settings.valid
    warnings.warn(
        f"patience without valid: {PATIENT:.0%} of every client's training examples are taken for validation; --valid "
        "sets the share",
        stacklevel=3,
    )
    return PATIENT


def refuse_idle(settings: Settings, federation: Federation, clients: Simulation) -> None:
    """Refuse settings that can do nothing with these data and clients."""
    goal = clients.task.goal
    what = "numbers to predict" if federation.kind == "numbers" else "answers that are not right or wrong"
    require(
        settings.target is None or "micro_accuracy" in goal.leads,
        f"target={settings.target} is an accuracy, and '{federation.name}' has {what}: leave it out",
    )
    require(
        not settings.unseen or goal.averages,
        f"unseen averages what several models say, which means nothing for {type(goal).__name__}: leave it out",
    )
    require(
        not settings.optimistic or goal.votes == "class",
        f"optimistic chooses centers by their accuracy, and '{federation.name}' has no classes: leave it out",
    )
    require(
        settings.monitor is None or len(federation.valid) > 0,
        f"monitor={settings.monitor} needs a validation split: use --valid 0.1 (pc.load(..., valid=0.1))",
    )
    require(
        settings.held_out_seed is None or settings.held_out > 0,
        f"held_out_seed={settings.held_out_seed} draws nobody without held_out: use --held-out 0.2, or leave it out",
    )
    require(
        settings.held_out == 0 or bool(clients.held_out_mask.any()),
        f"held_out={settings.held_out:g} of {federation.n_clients} clients is nobody: use a larger share",
    )
    trains = len(clients.everyone(0)) > 0
    require(
        settings.held_out == 0 or trains,
        f"held_out={settings.held_out:g} of {federation.n_clients} clients leaves nobody to train: use a smaller share",
    )
    share = 0.0 if clients.attack is None else clients.attack.share
    able = len(clients.everyone(0))
    require(
        share == 0 or bool(clients.attackers.any()),
        f"attack with share={share:g} of {able} clients is nobody: use a larger share, or leave it out",
    )
    require(
        share == 0 or not bool(clients.attackers.sum() == able),
        f"attack with share={share:g} of {able} clients is everybody, and nobody is left to score: use a smaller share",
    )
    counts = ~clients.held_out_mask & ~clients.attackers
    require(  # who hands over a federation without test examples wants its models, and knows it
        bool(federation.test.sizes[counts].any()) or (federation.source is None and not len(federation.test)),
        f"none of the {int(counts.sum())} clients whose scores count has test examples, so nothing would be measured: "
        "use fewer clients, or smaller shares of held-out clients and attackers",
    )


def warn_idle(run: Run) -> None:
    """Say what this method, in so many rounds, has no use for."""
    from .loop import trainer_of

    for exchange in run.method.exchanges:
        if said := exchange.topology.beware(run.settings.rounds):
            warnings.warn(f"{run.method.name}: {said}", stacklevel=3)
    if said := _outnumbered(run):
        warnings.warn(said, stacklevel=3)
    if run.settings.fine_tune > 1 and trainer_of(run.method) is None:
        warnings.warn(
            f"fine_tune={run.settings.fine_tune} does nothing in {run.method.name}, whose clients take no training "
            "steps that could go on alone: there are no fine-tuned scores",
            stacklevel=3,
        )
    if run.settings.sketch and not any("model" in exchange.sends + exchange.told for exchange in run.method.exchanges):
        warnings.warn(f"sketch keeps nothing in {run.method.name}, whose clients send no models", stacklevel=3)
    if said := _one_valued(run):
        warnings.warn(said, stacklevel=3)
    if run.settings.dissimilarity and not run.clients.task.layouts["model"].width:
        warnings.warn(
            f"dissimilarity compares gradients of what clients share, and in {run.method.name} all of '{run.model}' is "
            "their own: it is not measured; try --model mlp",
            stacklevel=3,
        )


def _one_valued(run: Run) -> str:
    """Where most clients have one value of a protected attribute, which teaches a second model nothing."""
    train = run.federation.train
    if not run.clients.task.auxiliary or train.protected is None or train.piece is not None:
        return ""
    owner, z, n = train.owner.cpu(), train.protected.cpu(), run.federation.n_clients
    low, high = (
        torch.zeros(n, dtype=torch.int64).scatter_reduce(0, owner, z, how, include_self=False)
        for how in ("amin", "amax")
    )
    able = run.clients.everyone(0).index
    alike = int((low == high)[able].sum())
    if 2 * alike <= len(able):
        return ""
    return (
        f"{alike} of {len(able)} clients have examples of one value of the protected attribute only, and their own "
        "models of it learn nothing from them: deal the examples anew, such as --partition iid"
    )


def _outnumbered(run: Run) -> str:
    """What a robust rule will not stand, at the center that is worst off; empty: nothing."""
    clients, said = run.clients, ""
    everyone = clients.everyone(0)
    liar = clients.attackers[everyone.index]
    for exchange in run.method.exchanges:
        if exchange.aggregate.linear or not exchange.sends or not len(everyone):
            continue
        counts = {(len(everyone), int(liar.sum()))}  # who is where is not known yet
        if not exchange.topology.reads_updates:
            receiver, sender, _ = exchange.up(run.state.memory, everyone, exchange.sends[0]).links
            heard, lies = receiver.bincount(), receiver.bincount(liar[sender].double())
            counts = {(n, int(bad)) for n, bad in zip(heard.tolist(), lies.tolist(), strict=True) if n}
        told = [exchange.aggregate.beware(n, bad) for n, bad in sorted(counts, key=lambda it: it[1] / it[0])]
        said = said or next((each for each in reversed(told) if each), "")
    return said
