"""Seeing who takes part: how often every client of a run was heard, and how unequal that is."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from ..errors import UsageError
from ..runs.folder import Folder
from ..runs.metrics import Integers, Reals, gini
from .figure import colour, panels


def took_part(run: Path) -> Integers:
    """In how many rounds an answer of every client that trains came; a UsageError where that was not kept."""
    path = run / "clients.csv"
    if not path.is_file():
        raise UsageError(f"{run} is not a finished run (it has no clients.csv): `polycentric resume {run}` first")
    rows = Folder(run).read_clients()
    try:
        return np.array([int(row["took_part"]) for row in rows if row["took_part"]], dtype=np.int64)
    except (KeyError, ValueError) as error:
        raise UsageError(
            f"{path} does not say who took part: it was written by an earlier version; run it again"
        ) from error


def draw_participation(groups: Mapping[str, Sequence[Path]], path: Path) -> dict[str, float]:
    """Clients by the rounds they took part in, over all runs of a label; returns every label's mean Gini coefficient.

    Left the histogram, right Lorenz curves: the share of all participation that falls to the clients heard least.
    """
    found = {label: [took_part(run) for run in runs] for label, runs in groups.items()}
    unequal = {label: float(np.mean([gini(one) for one in counts])) for label, counts in found.items()}
    most = max(int(one.max(initial=0)) for counts in found.values() for one in counts)
    step = -(-(most + 1) // 30)
    edges = np.arange(0, most + step + 1, step)
    with panels(path, 1, 2, size=(4.2, 3.1)) as axes:
        left, right = axes[0]
        for number, (label, counts) in enumerate(found.items()):
            height = np.mean([np.histogram(one, edges)[0] for one in counts], axis=0)
            label = f"{label}: Gini {unequal[label]:.2f}"
            left.stairs(height, edges - 0.5, color=colour(number), linewidth=1.6, fill=False, label=label)
            left.stairs(height, edges - 0.5, color=colour(number), alpha=0.18, fill=True)
            curve = np.mean([_lorenz(one) for one in counts], axis=0)
            right.plot(SHARES, curve, color=colour(number))
        left.set(xlabel="rounds a client took part in", title="clients")
        right.plot([0, 100], [0, 100], color="#999999", linewidth=0.8, linestyle="--")
        right.set(xlabel="clients, those heard least first, %", title="their share of all answers, %")
        left.legend(loc="upper right")
    return unequal


SHARES = np.linspace(0, 100, 101)


def _lorenz(counts: Integers) -> Reals:
    total = np.concatenate([[0.0], np.sort(counts).cumsum()])
    share: Reals = np.interp(SHARES, np.linspace(0, 100, len(total)), 100 * total / max(1.0, total[-1]))
    return share
