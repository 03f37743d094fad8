"""What happens at a client, and how it is run: learners and executors.

A *learner* is a scan over a client's batches, written for one client:

    carry = begin(rows)                     for each batch:  carry = step(carry, row, batch)
    rows  = end(carry)

An *executor* runs a learner at every client of a block. `Looped` takes one client after another in plain
PyTorch: the readable reference. `Stacked` takes all at once with `torch.func.vmap`, and is given a *scan*: how the
steps of a block are taken, launched one by one or captured as CUDA graphs. `Traced` gives it one that records
a step and replays it. Same batches, same mathematics; results agree to rounding.
"""

from .batches import BatchSchedule as BatchSchedule, Plan as Plan
from .choose_center import Choose as Choose, TryEach as TryEach, candidates as candidates
from .execute.looped import Looped as Looped
from .execute.stacked import Stacked as Stacked
from .execute.traced import Traced as Traced
from .half import HALVES as HALVES, GainOnHalf as GainOnHalf, TrainOnHalf as TrainOnHalf
from .learner import Client as Client, Executor as Executor, Learner as Learner
from .measure import Fisher as Fisher, Forget as Forget, Gradient as Gradient, MeanLoss as MeanLoss, Value as Value
from .meta_gradient import Maml as Maml
from .sdca import Sdca as Sdca
from .train import Train as Train
from .with_auxiliary import TrainWithAuxiliary as TrainWithAuxiliary
