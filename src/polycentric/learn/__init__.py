"""What happens at a client, and how it is run: learners and executors.

A *learner* is a scan over a client's batches, written for one client:

    carry = begin(rows)                     for each batch:  carry = step(carry, row, batch)
    rows  = end(carry)

An *executor* runs a learner at every client of a block. `Looped` takes one client after another in plain
PyTorch: the readable reference. `Stacked` takes all at once with `torch.func.vmap`. Same batches, same
mathematics; results agree to rounding.
"""

from .batches import Plan, Schedule
from .choose import Choose, candidates
from .executor import Client, Executor, Learner
from .look import Fisher, Forget, Gradient, MeanLoss, Value
from .looped import Looped
from .meta import Maml
from .stacked import Stacked
from .train import Train

__all__ = [
    "Choose",
    "Client",
    "Executor",
    "Fisher",
    "Forget",
    "Gradient",
    "Learner",
    "Looped",
    "Maml",
    "MeanLoss",
    "Plan",
    "Schedule",
    "Stacked",
    "Train",
    "Value",
    "candidates",
]
