"""A step of everything a method does, before its first round: what a model cannot do is found out now.

Two clients visit every exchange of the first round with two of their examples and a step each. Some modules cannot be
batched with `vmap` (recurrences, a forward pass that branches on values), some have no second derivative, which only
some methods ask for. Nothing is kept, and nothing is drawn from a generator that a run would miss.
"""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from ..errors import UsageError
from ..learn import Executor
from ..round import receive, visit
from ..stacks.stack import take

if TYPE_CHECKING:
    from .auto_executor import FirstRound
    from .clients import Simulation

LEAST = 1e-9  # of a client's usual work: one step, or one epoch


def failure(clients: Simulation, first: FirstRound, run: Executor) -> Exception | None:
    """What goes wrong with a step of an executor; None: nothing. What a learner itself refuses is said as it is."""
    few = clients.everyone(first.state.round)[:2]
    few = replace(few, sizes=few.sizes.clamp(max=2), effort=torch.full_like(few.effort, LEAST))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # said when the round is run
        for exchange in first.exchanges if len(few) else ():
            received = receive(exchange, first.state, few)
            kept = take(first.state.kept, few.index, clients.task.device)
            try:
                visit(exchange, received, kept, run, few)
            except UsageError:
                raise
            except Exception as error:  # the user's own module: anything can happen there
                return error
    return None
