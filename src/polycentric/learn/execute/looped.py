"""One client after another, in plain PyTorch: the readable reference that every other executor must equal."""

from functools import cached_property, partial

import torch
from torch import Tensor, nn

from ...data import Split
from ...models.auxiliary import WithAuxiliary
from ...parts.optimizer import SGD
from ...stacks.cohort import Cohort
from ...stacks.draw import seeded
from ...stacks.stack import Stacks
from ...tasks.task import Batch, Task, parameter_key
from ..batches import BatchSchedule, batch_at
from ..learner import Client, Executor, Learner, LossOfOne, Objective, UpdateSpec, gradients_at_once, stepped
from .stackable import draws, runs_stacked

SMALL = 1 << 18  # numbers in a convolution's weight up to which channels had better come last
FREE = (nn.Conv2d, nn.ReLU, nn.MaxPool2d, nn.AvgPool2d, nn.Dropout, nn.Flatten, nn.Linear, nn.Identity)


class Looped(Executor):
    """Runs a learner with a Python loop over clients and steps; an error names the client and the step."""

    def __init__(self, task: Task, split: Split) -> None:
        self.task, self.split = task, split
        self.client = Client(task, gradient, partial(descent, task), self._gradients)
        self.drawing = task.device if draws(task, split.x[:2]) else None
        self.last = task.device.type == "cpu" and split.x.dim() == 4 and likes_channels_last(task.module)

    def __call__(self, learner: Learner, rows: Stacks, cohort: Cohort) -> Stacks:
        """Every client in turn, each on a copy of its own of what it carries."""
        schedule = BatchSchedule(self.split, cohort, learner.plan(cohort), self.task.augment)
        carry = learner.begin(rows, cohort, self.task)
        done = {name: torch.empty_like(value, memory_format=torch.contiguous_format) for name, value in carry.items()}
        for k, (client, n_steps) in enumerate(zip(cohort.index.tolist(), schedule.steps, strict=True)):
            row, place = {n: v[k] for n, v in rows.items()}, {n: v[k] for n, v in done.items()}
            mine = {n: place[n].copy_(v[k]) for n, v in carry.items()}
            counts = schedule.counts[:, k].tolist()
            with seeded(self.drawing, cohort.seed, cohort.round, client, "modules"):  # dropout and the like
                for s in range(n_steps):
                    try:
                        mine = learner.step(mine, row, self._batch(schedule, s, k, counts[s]), self.client)
                    except Exception as error:
                        error.add_note(f"at client {client}, step {s} of round {cohort.round}")
                        raise
            for n, value in mine.items():
                if value is not place[n]:
                    place[n].copy_(value)
        return learner.end(done, rows, cohort)

    def _batch(self, schedule: BatchSchedule, s: int, k: int, count: int) -> Batch:
        index, weight = schedule.index[s, k, :count], schedule.weight[s, k, :count]
        batch = batch_at(self.task, self.split, schedule.augment, index, weight)
        return batch._replace(x=channels_last(batch.x)) if self.last else batch

    @cached_property
    def _stackable(self) -> bool:
        return runs_stacked(self.task, self.split)

    def _gradients(self, loss: LossOfOne, model: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Batched over the examples of a client where the module can be, one after another where it cannot."""
        if self._stackable:
            return gradients_at_once(loss, model, x, y)

        def one(x: Tensor, y: Tensor) -> Tensor:
            return gradient(lambda params: loss(params["model"], x, y), {"model": model})["model"]

        return torch.stack([one(*example) for example in zip(x, y, strict=True)])

    def outputs(self, rows: Stacks, x: Tensor, part: str = "") -> Tensor:
        """Every client's model, or a part of it, on its own examples."""
        task = self.task.inside(part)
        with torch.no_grad():
            each = [task.predict({n: v[k] for n, v in rows.items()}, mine) for k, mine in enumerate(x)]
        return torch.stack(each)


def descent(task: Task, objective: Objective, params: Stacks, moments: Stacks, lr: Tensor, spec: UpdateSpec) -> Stacks:
    """A plain step in place, a layer at a time: the gradient is never put together to a row, and no row is copied.

    An objective depends on the row through the module, of which the layers are differentiated by themselves, and
    perhaps also on the row as such, in a penalty: the gradient is the sum of the two.
    """
    if spec.weight_decay or not isinstance(spec.rule, SGD):
        return stepped(gradient(objective, params), params, moments, lr, spec)
    whole = {name: w.detach().requires_grad_() for name, w in params.items()}
    layouts = task.layouts
    places = {k: v for name, w in params.items() if name in layouts for k, v in layouts[name].views(w).items()}
    rates = [spec.rate(name) for name in params if name in layouts for _ in layouts[name].names]
    rates += [spec.rate(name) for name in params]
    layers = {parameter_key(k): v.detach().requires_grad_() for k, v in places.items()}
    with torch.enable_grad():
        value = objective(whole | layers)
    grads = torch.autograd.grad(value, [*layers.values(), *whole.values()], allow_unused=True)
    rate = float(lr)
    with torch.no_grad():
        for w, g, factor in zip([*places.values(), *params.values()], grads, rates, strict=True):
            if g is not None:
                w.sub_(g, alpha=rate * factor)
    return params


def likes_channels_last(module: nn.Module) -> bool:
    """Whether a module is a row of layers that take images stored either way, with small convolutions among them.

    Anybody's own module may count on the order of memory (`view`), and torch's GroupNorm crashes in 2.13 when channels
    come last and the gradient of its input is not wanted.
    """
    parts = list(module.modules())
    layers = [part for part in parts if not list(part.children())]
    sizes = [layer.weight.numel() for layer in layers if isinstance(layer, nn.Conv2d)]
    plain = all(type(part) in (nn.Sequential, WithAuxiliary) for part in parts if part not in layers)
    return plain and all(type(layer) in FREE for layer in layers) and 0 < max(sizes, default=0) <= SMALL


def channels_last(x: Tensor) -> Tensor:
    """The same images, stored pixel by pixel: a processor's pools are vectors over channels then, and much faster.

    Layers keep the order they find. Images of one channel are stored so already, and only seen in another way; torch
    itself takes them for stored channel by channel. Large weights would be put in order at every step: not for those.
    """
    n, c, h, w = x.shape
    return x.contiguous(memory_format=torch.channels_last).as_strided((n, c, h, w), (h * w * c, 1, w * c, c))


def gradient(objective: Objective, params: Stacks) -> Stacks:
    """The gradient by ordinary autograd."""
    leaves = {name: value.detach().requires_grad_() for name, value in params.items()}
    with torch.enable_grad():
        value = objective(leaves)
    grads = torch.autograd.grad(value, list(leaves.values()), allow_unused=True, materialize_grads=True)
    return dict(zip(leaves, grads, strict=True))
