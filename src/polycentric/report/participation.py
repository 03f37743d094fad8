"""Seeing who takes part: how often every client of a run was heard, and how unequal that is."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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


SHARES = np.linspace(0, 100, 101)


@dataclass(frozen=True, eq=False)
class Taking:
    """How a group's clients took part, the mean over its runs."""

    label: str
    unequal: float  # Gini coefficient
    clients: Reals  # (bins,) clients by the rounds they took part in
    lorenz: Reals  # (101,) share of all answers, in %, of the clients heard least, at `SHARES`


def taking_part(groups: Mapping[str, Sequence[Path]]) -> tuple[Integers, list[Taking]]:
    """Where bins of rounds begin and the last ends, and how every group took part."""
    found = {label: [took_part(run) for run in runs] for label, runs in groups.items()}
    most = max(int(one.max(initial=0)) for counts in found.values() for one in counts)
    step = -(-(most + 1) // 30)
    edges = np.arange(0, most + step + 1, step)

    def of(label: str, counts: list[Integers]) -> Taking:
        each = [(gini(one), np.histogram(one, edges)[0], _lorenz(one)) for one in counts]
        unequal, clients, lorenz = (np.mean(part, axis=0) for part in zip(*each, strict=True))
        return Taking(label, float(unequal), clients, lorenz)

    return edges, [of(label, counts) for label, counts in found.items()]


def draw_participation(groups: Mapping[str, Sequence[Path]], path: Path) -> dict[str, float]:
    """Clients by the rounds they took part in, over all runs of a label; returns every label's mean Gini coefficient.

    Left the histogram, right Lorenz curves: the share of all participation that falls to the clients heard least.
    """
    edges, every = taking_part(groups)
    with panels(path, 1, 2, size=(4.2, 3.1)) as axes:
        left, right = axes[0]
        for number, of in enumerate(every):
            label = f"{of.label}: Gini {of.unequal:.2f}"
            left.stairs(of.clients, edges - 0.5, color=colour(number), linewidth=1.6, fill=False, label=label)
            left.stairs(of.clients, edges - 0.5, color=colour(number), alpha=0.18, fill=True)
            right.plot(SHARES, of.lorenz, color=colour(number))
        left.set(xlabel="rounds a client took part in", title="clients")
        right.plot([0, 100], [0, 100], color="#999999", linewidth=0.8, linestyle="--")
        right.set(xlabel="clients, those heard least first, %", title="their share of all answers, %")
        left.legend(loc="upper right")
    return {of.label: of.unequal for of in every}


def _lorenz(counts: Integers) -> Reals:
    total = np.concatenate([[0.0], np.sort(counts).cumsum()])
    share: Reals = np.interp(SHARES, np.linspace(0, 100, len(total)), 100 * total / max(1.0, total[-1]))
    return share
