"""What tests of topologies share: their matrices, one exchange of averaging, and equality to rounding."""

import torch
from hypothesis import settings
from torch.testing import assert_close

from polycentric.parts.aggregate import Mean
from polycentric.stacks.cohort import Cohort
from polycentric.stacks.stack import write

LAW = settings(max_examples=50)


def close(a, b, tolerance=1e-10):
    a, b = (x.double() if isinstance(x, torch.Tensor) else exact(x) for x in (a, b))
    assert_close(a, b, rtol=tolerance, atol=tolerance)


def exact(values):
    return torch.tensor(values, dtype=torch.float64)


def everyone(sizes, round=0):
    sizes = torch.as_tensor(sizes)
    return Cohort(torch.arange(len(sizes)), sizes, torch.ones(len(sizes)), len(sizes), seed=0, round=round)


FOUR = everyone([1, 2, 3, 4])


def matrices(topology, cohort, memory=None, name="model"):
    """(down, up) as dense matrices, rows of `up` divided where it shares."""
    memory = topology.remembers(cohort.n_clients) if memory is None else memory
    down, up = topology.down(memory, cohort, name), topology.up(memory, cohort, name)
    assert down.shape == (len(cohort), topology.n_centers(cohort.n_clients))
    assert up.shape == down.shape[::-1]
    return [normalised(m) for m in (down, up)]


def normalised(mixing):
    matrix, total = mixing.to_dense(), mixing.total[:, None]
    return matrix / torch.where(total > 0, total, 1.0) if mixing.rest == "share" else matrix


def exchange(topology, memory, cohort, centers, sent):
    """One exchange of averaging: (memory, centers) after it."""
    memory = write(memory, [(cohort.index, topology.place(memory, cohort, {"model": centers}, {"model": sent}))])
    up, mean = topology.up(memory, cohort, "model"), Mean()
    total = mean.start(up, centers)
    mean.add(total, mean.part(up, sent))
    memory, stepped = topology.meet(memory, cohort, {"model": mean.settle(total, centers).values})
    return memory, stepped["model"]


def received(topology, memory, cohort, centers):
    return topology.down(memory, cohort, "model") @ centers
