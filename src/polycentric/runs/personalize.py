"""After training: what a few steps of its own do for every client.

    steps        0     1     2     5    10    ...
    accuracy   86.9  86.1  ...                       mean over clients, and the share of clients that got worse

Every point starts from the model in use, trains on the client's own training examples in the way the method's
clients train, and is scored on its own test examples. Nothing is mixed and the run stays as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..errors import UsageError, require
from ..learn import Train
from .evaluate import evaluate
from .loop import Run, trainer_of
from .metrics import Scores, share_below


@dataclass(frozen=True, eq=False)
class Point:
    """Every client after so many steps of its own."""

    steps: int
    scores: Scores
    share_worse: float  # clients whose accuracy is below that of the model they started from


def personalize(run: Run, steps: Sequence[int] = (0, 1, 2, 5, 10, 20, 50), train: Train | None = None) -> list[Point]:
    """Accuracy against steps of fine-tuning, from the model in use at the end of a run.

    Arguments:
        run: a finished run.
        steps: how many steps each point takes; 0 is the model as it is.
        train: how clients train; None: as in the method.
    """
    require(all(s >= 0 for s in steps), f"steps must be >= 0, got {min(steps, default=0)}")
    how = train or trainer_of(run.method)
    if how is None:
        raise UsageError(f"method {run.method.name} does not say how its clients train: pass train=Train(lr=0.1)")
    how = replace(how, terms=(), decay=1.0)
    test = run.federation.test
    before = evaluate(run.method, run.state, run.clients, test)
    out = []
    for s in steps:
        after = before if s == 0 else evaluate(run.method, run.state, run.clients, test, replace(how, steps=s))
        out.append(Point(s, after, share_below(after, before)))
    return out
