"""What a module can and does, tried on a few examples: executors ask before they begin."""

import warnings
from contextlib import suppress

import torch
from torch import Tensor

from ...data import Split
from ...errors import require
from ...tasks.task import Batch, Task
from ..gradient import grad, vmap


def runs_stacked(task: Task, split: Split) -> bool:
    """Whether vmap can take this model, where it learns and where it is scored; tried on two rows and two examples.

    Torch has recurrences that it can batch where gradients are wanted, and cannot where none are.
    """
    rows = {name: row.repeat(2, 1) for name, row in task.start().items()}
    x = task.inputs(split.x[:1]).expand(2, 2, *split.x.shape[1:]).contiguous()
    y = task.targets(split.y[:1]).expand(2, 2, *split.y.shape[1:]).contiguous()
    batch = Batch(x, y, torch.full((2, 2), 0.5, dtype=task.dtype, device=x.device))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for loss in (task.mean_loss, task.quiet_loss):
                vmap(grad(loss), (0, batch.axes), randomness="different")(rows, batch)
            with torch.no_grad():
                vmap(task.predict, randomness="different")(rows, x)
    except (RuntimeError, ValueError, TypeError, IndexError):
        return False
    return True


def check_buffers(task: Task, x: Tensor) -> None:
    """Refuse a module that changes its own buffers while it reads: tried on a few examples, which it forgets again.

    A buffer is one for all clients, so what one learns would depend on who was trained before it, and where.
    """
    before = {name: buffer.clone() for name, buffer in task.module.named_buffers()}
    if not before:
        return
    with suppress(Exception), torch.random.fork_rng(devices=[]), torch.no_grad():  # what else is wrong is said later
        task.outputs({name: row[0] for name, row in task.start().items()}, task.inputs(x.to(task.device)))
    after = dict(task.module.named_buffers())
    moved = [name for name, was in before.items() if not torch.equal(was, after.get(name, was[..., None]))]
    require(
        not moved,
        f"the model {type(task.module).__name__} changes its buffer '{''.join(moved[:1])}' while it reads examples: "
        "all clients share buffers, so that what one learns would depend on the others; make it a parameter, or leave "
        "it as it is in forward",
    )


def draws(task: Task, x: Tensor) -> bool:
    """Whether the module takes random numbers of torch's own generators while it trains: tried on a few examples."""
    cuda = task.device.type == "cuda"
    generators = [torch.default_generator, *([torch.cuda.default_generators[task.device.index or 0]] if cuda else [])]
    with torch.random.fork_rng(devices=[task.device] if cuda else []), torch.no_grad():
        before = [generator.get_state() for generator in generators]
        task.outputs({name: row[0] for name, row in task.start().items()}, task.inputs(x.to(task.device)))
        return not all(torch.equal(a, g.get_state()) for a, g in zip(before, generators, strict=True))
