"""Learners that look and do not train: gradients, values, curvature at the client's data."""

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from ..errors import require
from ..stacks.cohort import Cohort
from ..stacks.draw import bits, uniform
from ..stacks.stack import Stacks
from ..tasks.task import Batch, Task
from .batches import Plan, plan_of
from .learner import Client, Learner

CHUNK = 256  # examples looked at together; sums over chunks are exact, so this changes nothing but memory


def examples_in(batch: Batch) -> Tensor:
    """How many examples a batch holds."""
    return (batch.weight > 0).sum().to(batch.weight.dtype)


class OnceOver(Learner):
    """Looks at every example once, in order; stragglers too, since looking is cheap."""

    def plan(self, cohort: Cohort) -> Plan:
        """Every example once."""
        everyone = replace(cohort, effort=torch.ones_like(cohort.effort))
        return replace(plan_of(everyone, 1, None, CHUNK), shuffle=False)


@dataclass(frozen=True)
class Gradient(OnceOver):
    """The gradient of the client's mean loss over all its examples, at the model it has."""

    into: str = "gradient"

    def begin(self, rows: Stacks, cohort: Cohort, task: Task) -> Stacks:
        """A sum of zero."""
        model = rows["model"]
        return {"sum": torch.zeros_like(model), "seen": model.new_zeros(len(model))}

    def step(self, carry: Stacks, row: Stacks, batch: Batch, client: Client) -> Stacks:
        """Add the gradients of some examples."""
        found = client.gradient(lambda p: client.task.quiet_loss(row | p, batch), {"model": row["model"]})["model"]
        n = examples_in(batch)
        return {"sum": carry["sum"] + n * found, "seen": carry["seen"] + n}

    def end(self, carry: Stacks, rows: Stacks, cohort: Cohort) -> Stacks:
        """The mean."""
        return {self.into: carry["sum"] / carry["seen"][:, None]}


@dataclass(frozen=True)
class Value(OnceOver):
    """How much a client is worth asking: v_k = sqrt(n_k) F_k(w) at the model it has (Active FL).

    The paper writes 1/sqrt(n_k) times the *sum* of the losses, which is the same number.
    """

    passes = 1 / 3  # no way back

    def begin(self, rows: Stacks, cohort: Cohort, task: Task) -> Stacks:
        """A sum of zero."""
        return {name: rows["model"].new_zeros(len(cohort)) for name in ("sum", "seen")}

    def step(self, carry: Stacks, row: Stacks, batch: Batch, client: Client) -> Stacks:
        """Add the losses of some examples."""
        n, loss = examples_in(batch), client.task.quiet_loss(row, batch).detach()
        return {"sum": carry["sum"] + n * loss, "seen": carry["seen"] + n}

    def end(self, carry: Stacks, rows: Stacks, cohort: Cohort) -> Stacks:
        """sqrt(n) times the mean."""
        return {"value": (carry["sum"] / carry["seen"].sqrt())[:, None]}


@dataclass(frozen=True)
class MeanLoss(Value):
    """The client's mean loss at the model it has, under the name `loss`."""

    def end(self, carry: Stacks, rows: Stacks, cohort: Cohort) -> Stacks:
        """The mean."""
        return {"loss": (carry["sum"] / carry["seen"])[:, None]}


@dataclass(frozen=True)
class Fisher(OnceOver):
    """The diagonal of the Fisher information at the learned model, and that times the model (FedCurv).

        I_k = 1/n_k sum_i (grad l_i)^2     element by element, example by example

    `labels="true"` takes the given labels (the empirical Fisher), `"model"` labels drawn from the model's own
    predictions. Dropout is switched off. The gradient of a batch squared would be too small by about the batch
    size. The client keeps its own share, so that it can leave it out of the sums it hears next.
    """

    labels: Literal["true", "model"] = "true"

    def __post_init__(self) -> None:
        require(self.labels in ("true", "model"), f"labels must be 'true' or 'model', got {self.labels!r}")

    def keeps(self, like: Tensor) -> Stacks:
        """Its own share of the sums, and the round that is from."""
        zero = torch.zeros_like(like)
        return {"own_fisher": zero, "own_pull": zero, "stamp": like.new_full((1, 1), -2.0)}

    def begin(self, rows: Stacks, cohort: Cohort, task: Task) -> Stacks:
        """A sum of zero, and a key for drawing labels."""
        model = rows["model"]
        key = bits(cohort.seed, cohort.round, "labels", cohort.index).to(model.device)
        return {"sum": torch.zeros_like(model), "seen": model.new_zeros(len(model)), "key": key}

    def step(self, carry: Stacks, row: Stacks, batch: Batch, client: Client) -> Stacks:
        """Add the squared gradients of some examples, one by one."""
        y = batch.y
        if self.labels == "model":
            require(
                not y.is_floating_point(), "labels='model' draws classes, but this is a regression: use labels='true'"
            )
            counter = torch.arange(len(y), device=y.device)[:, None]
            logits = client.task.predict(row, batch.x).detach()
            classes = torch.arange(logits.shape[-1], device=y.device)
            noise = uniform(carry["key"] + carry["seen"].long(), counter, classes)
            y = (logits - (-noise.log()).log()).argmax(-1)

        def loss(model: Tensor, x: Tensor, y: Tensor) -> Tensor:
            outputs = client.task.predict(row | {"model": model}, x[None])
            return client.task.loss(outputs, y[None]).sum()

        each = client.gradients(loss, row["model"], batch.x, y)  # (batch, width)
        there = (batch.weight > 0).to(each.dtype)
        total, seen = carry["sum"] + there @ each.square(), carry["seen"] + examples_in(batch)
        return {"sum": total, "seen": seen, "key": carry["key"]}

    def end(self, carry: Stacks, rows: Stacks, cohort: Cohort) -> Stacks:
        """The mean, and the mean times the model; both are kept too."""
        fisher = carry["sum"] / carry["seen"][:, None]
        pull = fisher * rows["model"]
        stamp = torch.full_like(rows["stamp"], float(cohort.round))
        return {"fisher": fisher, "pull": pull, "own_fisher": fisher, "own_pull": pull, "stamp": stamp}


@dataclass(frozen=True)
class Forget(Learner):
    """A client that was not there in the round before has no share in the sums it hears."""

    def plan(self, cohort: Cohort) -> Plan:
        """Nothing to look at."""
        return Plan(torch.zeros_like(cohort.sizes), CHUNK, shuffle=False)

    def begin(self, rows: Stacks, cohort: Cohort, task: Task) -> Stacks:
        """The shares as they are."""
        return {name: rows[name] for name in ("own_fisher", "own_pull")}

    def step(self, carry: Stacks, row: Stacks, batch: Batch, client: Client) -> Stacks:
        """Never taken."""
        return carry

    def end(self, carry: Stacks, rows: Stacks, cohort: Cohort) -> Stacks:
        """Zero where they are older than the last round."""
        there = (rows["stamp"] == cohort.round - 1).to(rows["own_fisher"].dtype)
        return {name: value * there for name, value in carry.items()}
