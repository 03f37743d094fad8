"""Local training: minibatch steps on the client's loss plus whatever terms a method adds.

for every batch b:   g = grad [ mean loss on b  +  sum of terms ] + weight_decay w
                     w <- w - lr_t update(g),      lr_t = lr decay^t in round t, with an lr for each name if need be
at the end:          M <- inertia M + (1 - inertia) (w - start),      w <- start + M
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from ..errors import LARGEST_FLOAT, require
from ..parts.objective import Term
from ..parts.optimizer import SGD, Adam, Momentum, Rule
from ..stacks.cohort import Cohort
from ..stacks.stack import Stacks
from ..tasks.task import Batch, Task
from .batches import MOST_STEPS, Plan, plan_of
from .learner import Client, Learner, UpdateSpec


@dataclass(frozen=True)
class Train(Learner):
    """E epochs (or a number of steps) of SGD, momentum or Adam; moments begin at zero every round.

    Arguments:
        lr: learning rate of the clients.
        epochs: passes over the client's examples.
        steps: exactly so many steps, instead of epochs.
        batch: examples in a step; None (in the command: `batch=all`) takes all of the client's at once.
        momentum: of the clients' SGD.
        optimizer: "sgd" or "adam".
        decay: factor on the learning rate from round to round.
        inertia: share of its last update M in the one a client sends, kept from round to round (worker momentum): what
            an attacker changes in a round is not what all have long agreed on (Karimireddy et al., ICML 2021).
        weight_decay: added to the gradient, times w.
        terms: added to the loss, such as `Prox(0.1)`.
        trains: names that are trained; None: all of the model's.
        rates: learning rates of names that have another than `lr`, as (name, rate).
    """

    lr: float = 0.1
    epochs: int = 1
    steps: int | None = None
    batch: int | None = 10
    momentum: float = 0.0
    optimizer: Literal["sgd", "adam"] = "sgd"
    decay: float = 1.0
    inertia: float = 0.0
    weight_decay: float = 0.0
    terms: tuple[Term, ...] = ()
    trains: tuple[str, ...] | None = None
    rates: tuple[tuple[str, float], ...] = ()

    def __post_init__(self) -> None:
        require(0 <= self.lr <= LARGEST_FLOAT, f"lr must be >= 0, got {self.lr}; try 0.1")
        require(self.epochs >= 1, f"epochs must be at least 1, got {self.epochs}; for single steps use steps=1")
        require(self.steps is None or self.steps >= 1, f"steps must be at least 1, got {self.steps}; None: use epochs")
        most = max(self.epochs, self.steps or 0)
        require(most <= MOST_STEPS, f"a round has at most {MOST_STEPS:,} epochs or steps, got {most}; use more rounds")
        require(self.batch is None or self.batch >= 1, f"batch must be at least 1 or None (all), got {self.batch}")
        require(0 <= self.momentum < 1, f"momentum must be in [0, 1), got {self.momentum}; try 0.9")
        require(self.optimizer in ("sgd", "adam"), f"optimizer must be sgd or adam, got {self.optimizer!r}")
        plain = self.optimizer == "sgd" or self.momentum == 0
        require(plain, "momentum goes with optimizer=sgd; adam has its own moments")
        require(
            0 < self.decay <= 1, f"decay must be in (0, 1], got {self.decay}; 1 keeps lr, 0.99 lowers it by 1 % a round"
        )
        require(0 <= self.inertia < 1, f"inertia must be in [0, 1), got {self.inertia}; try 0.9")
        good = 0 <= self.weight_decay <= LARGEST_FLOAT
        require(good, f"weight_decay must be >= 0, got {self.weight_decay}; try 1e-4")
        for name, rate in self.rates:
            require(0 <= rate <= LARGEST_FLOAT, f"the lr of {name} must be >= 0, got {rate}; try 0.1")

    @property
    def trains_like(self) -> Train | None:
        """Itself, without what it remembers."""
        return replace(self, inertia=0.0) if self.inertia else self

    def keeps(self, like: Tensor) -> Stacks:
        """The last update, where it has inertia."""
        return {"inertia": torch.zeros_like(like)} if self.inertia else {}

    @property
    def rule(self) -> Rule:
        """The step rule, with the learning rate taken out: it changes from round to round."""
        if self.optimizer == "adam":
            return Adam(lr=1.0)
        return Momentum(lr=1.0, beta=self.momentum) if self.momentum else SGD(lr=1.0)

    def plan(self, cohort: Cohort) -> Plan:
        """Epochs or steps; stragglers do less."""
        return plan_of(cohort, self.epochs, self.steps, self.batch)

    def begin(self, rows: Stacks, cohort: Cohort, task: Task) -> Stacks:
        """The parameters that are trained, their moments, and this round's learning rate."""
        names = self.trains or task.names
        model = rows[names[0]]
        for term in self.terms:
            term.check(rows, self.lr * self.decay**cohort.round)
        base = 1.0 if self.rates else self.lr  # every name then has a rate of its own
        lr = torch.full((len(cohort),), base * self.decay**cohort.round, dtype=model.dtype, device=model.device)
        carry = {name: rows[name] for name in names} | {"lr": lr}
        for name in names:
            carry |= {f"{name}.{moment}": zero for moment, zero in self.rule.moments(rows[name]).items()}
        return carry

    def step(self, carry: Stacks, row: Stacks, batch: Batch, client: Client) -> Stacks:
        """One step of one client."""
        params = {name: carry[name] for name in (self.trains or client.task.names)}

        def objective(params: Stacks) -> Tensor:
            here = row | params
            loss = self.loss(here, batch, client.task)
            for term in self.terms:
                loss = loss + term.penalty(here)
            return loss

        moments = {name: value for name, value in carry.items() if name not in params and name != "lr"}
        rates = tuple((name, dict(self.rates).get(name, self.lr)) for name in params) if self.rates else ()
        spec = UpdateSpec(self.rule, self.weight_decay, not self.terms, rates)
        new = {"lr": carry["lr"]} | client.descend(objective, params, moments, carry["lr"], spec)
        if "model" in params:
            for term in self.terms:
                lr = carry["lr"] * spec.rate("model") if rates else carry["lr"]
                new["model"] = term.correct(new["model"], row, lr)
        return new

    def loss(self, row: Stacks, batch: Batch, task: Task) -> Tensor:
        """What is minimised, beside the terms."""
        return task.mean_loss(row, batch)

    def end(self, carry: Stacks, rows: Stacks, cohort: Cohort) -> Stacks:
        """The trained parameters; with inertia, the model that the update before still draws on."""
        new = {name: value for name, value in carry.items() if name in rows}
        if not self.inertia or "model" not in new:
            return new
        moved = torch.lerp(new["model"] - rows["model"], rows["inertia"], self.inertia)
        return new | {"model": rows["model"] + moved, "inertia": moved}
