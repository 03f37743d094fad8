"""What happens at a client, and how it is run: learners and executors.

A *learner* is a scan over a client's batches, written for one client:

    carry = begin(rows)                     for each batch:  carry = step(carry, row, batch)
    rows  = end(carry)

An *executor* runs a learner at every client of a block. `Looped` takes one client after another in plain
PyTorch: the readable reference. `Stacked` takes all at once with `torch.func.vmap`, and is given a *scan*: how the
steps of a block are taken, launched one by one or captured as CUDA graphs. `Compiled` gives it one that makes programs
of them. Same batches, same mathematics; results agree to rounding.
"""

from .batches import BatchSchedule as BatchSchedule
from .batches import Plan as Plan
from .choose import Choose as Choose
from .choose import TryEach as TryEach
from .choose import candidates as candidates
from .execute.compiled import Compiled as Compiled
from .execute.looped import Looped as Looped
from .execute.stacked import Stacked as Stacked
from .learner import Client as Client
from .learner import Executor as Executor
from .learner import Learner as Learner
from .measure import Fisher as Fisher
from .measure import Forget as Forget
from .measure import Gradient as Gradient
from .measure import MeanLoss as MeanLoss
from .measure import Value as Value
from .meta_gradient import Maml as Maml
from .sdca import Sdca as Sdca
from .train import Train as Train
