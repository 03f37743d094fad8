"""Seeing a check of data: labels or targets by client, sizes, where clients' features lie, and the probe's answer."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from ..data.label_skew import by_commonest_label, label_counts
from ..runs.check_data import Check
from ..runs.metrics import gini
from .figure import colour, panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def draw_check(check: Check, path: Path) -> None:
    """Four panels; two where there was nothing to probe."""
    probed = check.probe is not None
    with panels(path, 1 + probed, 2, size=(4.9, 3.5)) as axes:
        _targets(axes[0, 0], check)
        _sizes(axes[0, 1], check)
        if probed:
            _places(axes[1, 0], check)
            _ways(axes[1, 1], check)
        federation = check.federation
        axes[0, 0].figure.suptitle(f"{federation.name}, {federation.n_clients:,} clients")


def _targets(axis: Axes, check: Check) -> None:
    """What clients have to learn: their classes as a heat map, or the spread of their numbers."""
    federation = check.federation
    if federation.classes:
        counts = label_counts(federation)
        counts = counts[by_commonest_label(counts)].double()
        shares = (counts / counts.sum(1, keepdim=True).clamp(min=1)).numpy()
        axis.grid(False)
        image = axis.imshow(
            np.ma.masked_equal(100 * shares, 0), aspect="auto", cmap="magma_r", interpolation="nearest", vmin=0
        )
        axis.figure.colorbar(image, ax=axis, label="% of the client's", shrink=0.9)
        every = len(federation.classes) // 16 + 1
        names = [name[:8].replace("$", r"\$") for name in federation.classes[::every]]
        long = max(map(len, names)) * len(names) > 45
        axis.set_xticks(range(0, len(federation.classes), every), names, rotation=90 if long else 0)
        axis.set(ylabel="client, by commonest class", title="training examples by class")
        return
    y = federation.train.y.reshape(len(federation.train), -1)[:, 0].double()
    at = (0.05, 0.25, 0.5, 0.75, 0.95)
    quantiles = torch.stack(
        [
            part.quantile(torch.tensor(at).double())
            for part in torch.split(y, federation.train.sizes.tolist())
            if len(part)
        ]
    )
    low, first, middle, third, high = quantiles[quantiles[:, 2].argsort()].T.numpy()
    place = np.arange(len(low))
    thick = min(6.0, 150 / len(low))
    axis.vlines(place, low, high, color=colour(0), alpha=0.35, linewidth=thick / 2)
    axis.vlines(place, first, third, color=colour(0), linewidth=thick)
    axis.plot(place, middle, ".", color=colour(1), markersize=max(2.0, min(6.0, 2 * thick)), label="median")
    name = federation.targets[0] if federation.targets else "the target"
    axis.set(xlabel="client, by median", ylabel=name, title="targets: median, 50 and 90 % of each client's")


def _sizes(axis: Axes, check: Check) -> None:
    """Clients' sizes, from the largest down."""
    from matplotlib.ticker import MaxNLocator

    sizes = check.federation.train.sizes.sort(descending=True).values.numpy()
    axis.bar(range(len(sizes)), sizes, width=0.85 if len(sizes) <= 60 else 1.0, color=colour(0), linewidth=0)
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    if sizes[-1] > 0 and sizes[0] > 30 * sizes[-1]:
        axis.set_yscale("log")
    else:
        axis.set_ylim(bottom=0)
    axis.set(xlabel="client, by size", title=f"training examples a client: Gini {gini(sizes):.2f}")


def _places(axis: Axes, check: Check) -> None:
    """Clients by the mean of their features, in the colours of the groups where several pay."""
    tried = check.probe
    assert tried is not None
    place = tried.places.numpy()
    pays = bool(tried.groups) and tried.difference("several", "one").sure > 0
    group = np.array(tried.groups[tried.k]) if pays else np.zeros(len(place), dtype=int)
    size = max(8.0, min(40.0, 1600 / len(place)))
    for number in np.unique(group).tolist():
        own = place[group == number]
        axis.scatter(
            own[:, 0], own[:, 1], s=size, color=colour(number), alpha=0.8, linewidth=0, label=f"group {number + 1}"
        )
    if pays:
        axis.legend(loc="best", fontsize=8, handletextpad=0.2)
    axis.set(xlabel="first principal axis", ylabel="second", title="clients by the mean of their features")


def _ways(axis: Axes, check: Check) -> None:
    """The probe's scores as bars; errors are those of the difference from one model for all."""
    tried = check.probe
    assert tried is not None
    ways = ["alone", "one", "tuned", *map(str, tried.groups)]
    names = ["alone", "one", "one,\ntuned", *(f"{k}\ngroups" for k in tried.groups)]
    scores = np.array([100 * tried.score(way) for way in ways])
    errors = np.array([0.0 if way == "one" else 100 * tried.difference(way, "one").error for way in ways])
    colours = [colour(7), colour(1), colour(4), *[colour(0)] * len(tried.groups)]
    bars = axis.bar(range(len(ways)), scores, color=colours, width=0.72)
    axis.bar_label(bars, fmt="%.1f", label_type="center", color="white", fontsize=8.5)
    told = [k for k, way in enumerate(ways) if way != "one"]
    axis.errorbar(told, scores[told], 2 * errors[told], fmt="none", ecolor="#222222", elinewidth=1.0, capsize=2.5)
    axis.axhline(scores[1], color=colour(1), linewidth=0.8, linestyle="--")
    axis.set_xticks(range(len(ways)), names, fontsize=8.5)
    axis.grid(False, axis="x")
    unit = "explained" if check.federation.kind == "numbers" else "right"
    axis.set(ylabel=f"% {unit}, mean over clients", title="probe; lines: ± 2 errors of the difference from one")
