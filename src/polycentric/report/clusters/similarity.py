"""Which clients learn alike: cosines of their updates and the tree of them, at the end and at every split."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...runs.loop import Run
from ...stacks.draw import uniform
from ...stacks.stack import Stacks
from ..figure import colour, heat, panels
from .distances import Floats, Ints, cosines
from .members import places_of, updates

LARGEST_TREE = 120  # clients that a heat map with a tree can show


def draw_similarity(run: Run, path: Path) -> bool:
    """Cosines between updates from one common start, ordered by cluster, and the tree of single linkage."""
    index, rows = updates(run)
    place = places_of(run)[index.numpy()]
    if len(index) > LARGEST_TREE:
        kept = uniform(run.clients.seed, "shown", index).argsort()[:LARGEST_TREE].sort().values
        index, rows, place = index[kept], rows[kept], place[kept.numpy()]
    alike = cosines(rows)
    off = alike[~np.eye(len(alike), dtype=bool)]
    with panels(path, 1, 2, size=(4.6, 3.7)) as axes:
        left, right = axes[0]
        image = _pair(left, right, alike, place, (min(0.0, float(off.min())), float(off.max())))
        left.set_title("cosine of updates, ordered by cluster")
        left.figure.colorbar(image, ax=left, fraction=0.046)
        right.set_title("single linkage, 1 − cosine")
    return True


@dataclass(frozen=True, eq=False)
class SplitSeen:
    """A split of clustered FL, as it was decided."""

    round: int
    center: int
    members: Ints  # (m,) clients that were there
    child: Ints  # (m,) the center each went to
    alike: Floats  # (m, m) cosines of their updates


def splits(memory: Stacks) -> list[SplitSeen]:
    """Every split of a run of clustered FL, from its memory or from its splits.safetensors; empty if none was kept."""
    if "split_alike" not in memory:
        return []
    parent, place, found = memory["parent"].cpu().numpy(), memory["assignment"].cpu().numpy(), []
    for (round, center), every in zip(memory["splits"].tolist(), memory["split_alike"].cpu().numpy(), strict=True):
        members = np.flatnonzero(np.diag(every) > 0)
        child = place[members]
        while (below := parent[child] != center).any():  # up the tree, to a child of this center
            child[below] = parent[child[below]]
        alike = every[np.ix_(members, members)].astype(np.float64)
        found.append(SplitSeen(round, center, members, child, alike))
    return found


def draw_splits(memory: Stacks, path: Path, *, most: int = 5) -> bool:
    """For every split (the first `most`) the cosines that decided it, ordered by the two parts, and their tree."""
    seen = splits(memory)[:most]
    if not seen:
        return False
    off = [s.alike[~np.eye(len(s.alike), dtype=bool)] for s in seen]
    between = (min(0.0, *(float(o.min()) for o in off)), max(float(o.max()) for o in off))
    with panels(path, 2, len(seen), size=(3.4, 2.9)) as axes:
        for (top, bottom), split in zip(axes.T, seen, strict=True):
            image = _pair(top, bottom, split.alike, split.child, between)
            cross = float(split.alike[split.child[:, None] != split.child].max())
            top.set_title(f"round {split.round}: center {split.center} splits\ncosine across at most {cross:.2f}")
        axes[0, 0].figure.colorbar(image, ax=axes[0, :].tolist(), fraction=0.046)
        axes[1, 0].set_ylabel("single linkage, 1 − cosine")
    return True


def _pair(left: Any, right: Any, alike: Floats, place: Ints, between: tuple[float, float]) -> Any:
    """A heat map of similarities, ordered by place, and their tree with a mark for the place of everyone."""
    from scipy.cluster.hierarchy import dendrogram, linkage
    from scipy.spatial.distance import squareform

    apart = np.clip(1 - (alike + alike.T) / 2, 0, 2)
    np.fill_diagonal(apart, 0.0)
    tree = linkage(squareform(apart, checks=False), "single")
    leaves = np.array(dendrogram(tree, no_plot=True)["leaves"])
    order = leaves[np.argsort(place[leaves], kind="stable")]  # by cluster, and within it as in the tree
    image = heat(left, alike[np.ix_(order, order)], between, "viridis")
    left.set(xticks=[], yticks=[])
    for end in np.flatnonzero(np.diff(place[order])) + 0.5:
        left.axhline(end, color="white", linewidth=1.2)
        left.axvline(end, color="white", linewidth=1.2)
    first = 0
    for k, n in zip(*np.unique(place, return_counts=True), strict=True):
        at = (-0.04, 1 - (first + n / 2) / len(place))  # of the axes, whatever the number of clients
        left.text(*at, str(k), transform=left.transAxes, ha="right", va="center", color=colour(int(k)), weight="bold")
        first += n
    dendrogram(tree, ax=right, no_labels=True, color_threshold=0, above_threshold_color="#555555")
    low_end = right.get_ylim()[1] * -0.035
    right.scatter(
        10 * np.arange(len(leaves)) + 5, np.full(len(leaves), low_end / 2), s=12, marker="s",
        c=[colour(int(k)) for k in place[leaves]], clip_on=False,
    )  # fmt: skip
    right.set_ylim(bottom=low_end)
    right.grid(False)
    return image
