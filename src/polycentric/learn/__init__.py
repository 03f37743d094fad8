"""What happens at a client, and how it is run: learners and executors.

A *learner* is a scan over a client's batches, written for one client:

    carry = begin(rows)                     for each batch:  carry = step(carry, row, batch)
    rows  = end(carry)

An *executor* runs a learner at every client of a block. `Looped` takes one client after another in plain
PyTorch: the readable reference. `Stacked` takes all at once with `torch.func.vmap`, and is given a *scan*: how the
steps of a block are taken, launched one by one or captured as CUDA graphs. `Compiled` gives it one that makes programs
of them. Same batches, same mathematics; results agree to rounding.
"""

from .batches import BatchSchedule, Plan
from .choose import Choose, TryEach, candidates
from .execute.compiled import Compiled
from .execute.looped import Looped
from .execute.stacked import Stacked
from .learner import Client, Executor, Learner
from .maml import Maml
from .measure import Fisher, Forget, Gradient, MeanLoss, Value
from .sdca import Sdca
from .train import Train

__all__ = [
    "BatchSchedule",
    "Choose",
    "Client",
    "Compiled",
    "Executor",
    "Fisher",
    "Forget",
    "Gradient",
    "Learner",
    "Looped",
    "Maml",
    "MeanLoss",
    "Plan",
    "Sdca",
    "Stacked",
    "Train",
    "TryEach",
    "Value",
    "candidates",
]
