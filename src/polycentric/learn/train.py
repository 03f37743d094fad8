"""Local training: minibatch steps on the client's loss plus whatever terms a method adds.

for every batch b:   g = grad [ mean loss on b  +  sum of terms ] + weight_decay w
                     w <- w - lr_t update(g),      lr_t = lr decay^t in round t, with an lr for each name if need be
at the end:          M <- inertia M + (1 - inertia) (w - start),      w <- start + M

Where every example is to be hidden (`hide`), the gradient of the mean loss is that of DP-SGD (`parts.example_noise`):
each example's is clipped, and their mean gets noise; terms and weight decay are added to that.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, Self

import torch
from torch import Tensor

from ..errors import LARGEST_FLOAT, require
from ..parts.accountant import Release
from ..parts.example_noise import ExampleNoise
from ..parts.objective import Term
from ..parts.optimizer import SGD, Adam, Momentum, Rule
from ..stacks.cohort import Cohort
from ..stacks.draw import bits
from ..stacks.stack import Stacks
from ..tasks.task import Batch, Task
from .batches import MOST_STEPS, Plan, appearances, plan_of
from .learner import Client, Learner, UpdateSpec, stepped
from .measure import examples_in

NOISE = ("noise key", "noise step")  # carried where examples are hidden


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
        part: the submodule whose loss is followed, such as "general"; empty: the whole model's.
        hide: `ExampleNoise(clip, noise)` hides every single example (DP-SGD; in the command
            `hide=dp-sgd(clip=1, noise=1)`); None: nothing is hidden.
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
    part: str = ""
    hide: ExampleNoise | None = None
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
        bare = [type(term).__name__ for term in self.terms if self.hide is not None and not term.blind]
        require(
            not bare,
            f"hide={self.hide} hides examples, but {', '.join(bare)} also reads what a client has found out about its "
            "examples without noise: leave out one of the two",
        )

    @property
    def trains_like(self) -> Train | None:
        """Itself, without what it remembers or hides: what is tuned stays at home. None for a part of a model."""
        return None if self.part else replace(self, inertia=0.0, hide=None) if self.inertia or self.hide else self

    def secured(self, key: bytes) -> Self:
        """With noise of a secret of the client's own, where examples are hidden."""
        return self if self.hide is None else replace(self, hide=self.hide.secured(key))

    def tuning(self, epochs: int) -> Train:
        """The same for so many epochs at one client alone: nothing ties it to what others have."""
        return replace(self, epochs=epochs, steps=None, terms=(), decay=1.0)

    @property
    def hides(self) -> bool:  # type: ignore[override]
        """Where examples are clipped, or noise is added."""
        return self.hide is not None and self.hide.acts

    @property
    def writes(self) -> tuple[str, ...] | None:  # type: ignore[override]
        """The names that are trained."""
        return self.trains

    def release(self, sizes: Tensor) -> Release | None:
        """What a round tells about one example, at most: noise multiplier z, so many times.

        Neighbours are federations in which one example of one client gives a gradient of zero wherever it is used; how
        many examples a client has, and which of them make up a batch, is no secret. One example then changes the sum
        of its batch by C at most, and that sum has noise N(0, (z C)^2 I): a Gaussian mechanism of multiplier z. The
        batches of an epoch share no example, and the steps on the others read it only in the model they find, so an
        epoch is one such mechanism for whichever example it may be (parallel composition, adaptive), and a round as
        many as an example has appearances (`appearances`): E epochs E, in s steps ceil(s / batches of an epoch), with
        batch=None s. T rounds are T times as many.

        The optimizer's rule, momentum, inertia, decay of weights and blind terms, and all that a center does, only
        process what was released. What is released are the models that leave the client, so this holds against the
        center too; it takes no account of who is drawn for a round or a batch, which could only lower the cost.

        None where nothing is promised: without noise, or where the loss also reads parameters that are not trained
        here (`trains` without `part`) and may have been learned from the same examples without noise.
        """
        if self.hide is None or not self.hide.noise or (self.trains is not None and not self.part):
            return None
        sizes = sizes[sizes > 0]
        if not len(sizes):
            return Release(self.hide.noise, times=0)
        index, effort = torch.arange(len(sizes)), torch.ones(len(sizes), dtype=torch.float64)
        cohort = Cohort(index, sizes, effort, len(sizes), seed=0, round=0)
        return Release(self.hide.noise, times=int(appearances(self.plan(cohort), cohort).max()))

    def rows_held(self, task: Task) -> int:
        """The gradients of single examples, where they are hidden."""
        return 1 if self.hide is None or not self.hides else self.hide.at_once(*self._room(task), self.batch)

    def _room(self, task: Task) -> tuple[int, int]:
        return sum(task.layouts[name].width for name in self.trains or task.names), task.dtype.itemsize

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
        if self.hides:
            extra = sorted(task.inside(self.part).reads - set(names)) if self.part else []
            require(
                not extra,
                f"hide hides what is trained, {', '.join(names)}, but '{self.part}' also has parameters of "
                f"{', '.join(extra)}: train them together",
            )
            key = bits(*cohort.key, "example noise", cohort.index).to(model.device)
            carry |= {NOISE[0]: key, NOISE[1]: torch.zeros_like(key)}
        return carry

    def step(self, carry: Stacks, row: Stacks, batch: Batch, client: Client) -> Stacks:
        """One step of one client."""
        task = client.task.inside(self.part)
        params = {name: carry[name] for name in (self.trains or task.names)}
        beside = {name: carry[name] for name in ("lr", *(NOISE if self.hides else ()))}
        moments = {name: value for name, value in carry.items() if name not in params and name not in beside}
        rates = tuple((name, dict(self.rates).get(name, self.lr)) for name in params) if self.rates else ()
        spec = UpdateSpec(self.rule, self.weight_decay, not self.terms, rates)

        def objective(params: Stacks) -> Tensor:
            here = row | params
            loss = self.loss(here, batch, task)
            for term in self.terms:
                loss = loss + term.penalty(here)
            return loss

        if self.hides:
            gradient = self._hidden(carry, params, row, batch, client)
            new = beside | stepped(gradient, params, moments, carry["lr"], spec)
            new[NOISE[1]] = carry[NOISE[1]] + 1
        else:
            new = beside | client.descend(objective, params, moments, carry["lr"], spec)
        if "model" in params:
            for term in self.terms:
                lr = carry["lr"] * spec.rate("model") if rates else carry["lr"]
                new["model"] = term.correct(new["model"], row, lr)
        return new

    def loss(self, row: Stacks, batch: Batch, task: Task) -> Tensor:
        """What is minimised, beside the terms."""
        return task.mean_loss(row, batch)

    def _hidden(self, carry: Stacks, params: Stacks, row: Stacks, batch: Batch, client: Client) -> Stacks:
        """The gradient of DP-SGD, and of the terms, which see no example; some examples at a time."""
        assert self.hide is not None
        task = client.task.inside(self.part)
        sizes, whole = [len(w) for w in params.values()], torch.cat(list(params.values()))

        def named(flat: Tensor) -> Stacks:
            return dict(zip(params, torch.split(flat, sizes), strict=True))

        def loss(flat: Tensor, x: Tensor, y: Tensor) -> Tensor:  # of one example alone: nothing mixes it with others
            return task.losses(row | named(flat), Batch(x[None], y[None], batch.weight[:1])).sum()

        at_once = self.hide.at_once(*self._room(task), len(batch.weight))
        total = torch.zeros_like(whole)
        for x, y, weight in zip(*(torch.split(part, at_once) for part in batch[:3]), strict=True):
            total = total + self.hide.summed(client.gradients(loss, whole, x, y), weight)
        if self.hide.noise:
            total = total + self.hide.drawn(carry[NOISE[0]], carry[NOISE[1]], whole, examples_in(batch))
        found = named(total)
        if not self.terms:
            return found

        def penalties(params: Stacks) -> Tensor:
            total = next(iter(params.values()))[:0].sum()  # a tensor, also where no term has a penalty
            for term in self.terms:
                total = total + term.penalty(row | params)
            return total

        return {name: found[name] + more for name, more in client.gradient(penalties, params).items()}

    def end(self, carry: Stacks, rows: Stacks, cohort: Cohort) -> Stacks:
        """The trained parameters; with inertia, the model that the update before still draws on."""
        new = {name: value for name, value in carry.items() if name in rows}
        if not self.inertia or "model" not in new:
            return new
        moved = torch.lerp(new["model"] - rows["model"], rows["inertia"], self.inertia)
        return new | {"model": rows["model"] + moved, "inertia": moved}
