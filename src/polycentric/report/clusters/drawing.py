"""Figures of clusters: over the rounds, on a map, in examples and numbers, and who learns alike (trees of updates)."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...errors import require
from ...runs.loop import Run
from ...runs.metrics import Integers, Reals
from ...stacks.draw import uniform
from ...stacks.stack import Stacks
from ..figure import colour, columns_of, heat, panels
from .members import Looks, cosines, looks, neighbours, over_rounds, places_of, principal, statistics, updates

MARKS = "os^DvPX*<>hp8dH"  # of known groups; they come round again
LARGEST_TREE = 120  # clients that a heat map with a tree can show


def draw(run: Run, folder: Path, *, examples: bool = True, clients: int | None = None) -> list[Path]:
    """All figures of a run with clusters, written into a folder; those that cannot be drawn are left out."""
    seen = looks(run, clients)
    require(len(seen.index) >= 4, f"figures of clusters need at least 4 clients with data, got {len(seen.index)}")
    folder.mkdir(parents=True, exist_ok=True)
    figures: dict[str, Callable[[Path], bool]] = {
        "rounds.png": lambda path: draw_rounds(run, path),
        "map.png": lambda path: draw_map(seen, path, seed=run.clients.seed),
        "similarity.png": lambda path: draw_similarity(run, path),
        "splits.png": lambda path: draw_splits(run.state.memory, path),
        **({"examples.png": lambda path: draw_examples(run, path)} if examples else {}),
    }
    return [folder / name for name, figure in figures.items() if figure(folder / name)]


def draw_rounds(run: Run, path: Path) -> bool:
    """Intra-cluster distance (or accuracy), sizes and re-assignments over the rounds."""
    if len(run.places) < 2:
        return False
    rounds, table, sizes, moved = over_rounds(run.places)
    rows = [row for row in run.history if row.get("intra_cluster") is not None]
    name, title = ("intra_cluster", "intra-cluster distance") if rows else ("macro_accuracy", "mean accuracy")
    rows = rows or [row for row in run.history if row.get(name) is not None]
    with panels(path, 1, 3, size=(3.6, 2.9)) as axes:
        first, second, third = axes[0]
        first.plot([row["round"] for row in rows], [row[name] for row in rows], color="#333333")
        first.set(title=title, yscale="log" if name == "intra_cluster" else "linear")
        second.stackplot(rounds, sizes, colors=[colour(k) for k in range(len(sizes))], linewidth=0, step="post")
        second.set(title="clients of each cluster", ylim=(0, table.shape[1]))
        third.bar(rounds[1:], moved, width=0.8 * float(np.min(np.diff(rounds))), color="#777777")
        third.set_title("moved since the last look")
        for axis in axes[0]:
            axis.set(xlabel="round", xlim=(rounds[0] - 0.5, rounds[-1] + 0.5))
    return True


def draw_map(seen: Looks, path: Path, *, seed: int = 0) -> bool:
    """PCA and t-SNE of what clients learn: a colour for each cluster, a mark for each known group."""
    flat, share = principal(seen.gram)
    with panels(path, 1, 2, size=(4.4, 3.9)) as axes:
        left, right = axes[0]
        scatter(left, flat, seen)
        first, second = f"first axis, {share[0]:.0%} of the variance", f"second axis, {share[1]:.0%}"
        left.set(title="PCA", xlabel=first, ylabel=second)
        scatter(right, neighbours(seen.gram, seed), seen)
        right.set(title="t-SNE", xticklabels=[], yticklabels=[])
        handles, labels = left.get_legend_handles_labels()
        columns = columns_of(left.figure, labels, mark=0.35)
        place: dict[str, Any] = {"loc": "outside lower center", "columnspacing": 1.1, "handletextpad": 0.3}
        left.figure.legend(handles, labels, ncols=columns, **place)
    return True


def scatter(axis: Any, at: Reals, seen: Looks) -> None:
    """Clients as points: a colour for each cluster, a mark for each known group."""
    groups = seen.group if seen.group is not None else np.zeros(len(at), dtype=np.int64)
    for k in np.unique(seen.place):
        for g in np.unique(groups[seen.place == k]):
            mine = (seen.place == k) & (groups == g)
            mark = MARKS[int(g) % len(MARKS)]
            axis.scatter(
                *at[mine].T, s=26, c=colour(int(k)), marker=mark, alpha=0.8, linewidths=0.3, edgecolors="white"
            )
    for k, n in zip(*np.unique(seen.place, return_counts=True), strict=True):
        axis.scatter([], [], c=colour(int(k)), marker="o", s=30, label=f"cluster {k} ({n})")
    if seen.group is not None and len(np.unique(groups)) <= 8:
        for g in np.unique(groups):
            name = seen.group_names[int(g)] if seen.group_names else f"group {g}"
            axis.scatter([], [], c="#777777", marker=MARKS[int(g) % len(MARKS)], s=26, label=name)


class ContactSheet(NamedTuple):
    """A contact sheet: for each cluster a few clients, one example of the same class in every column."""

    classes: list[int]  # of the columns
    clusters: list[int]  # of the lines
    clients: list[int]  # of the lines
    tiles: list[list[Reals]]  # (height, width, 3) each, framed in the colour of the cluster


def sheet_of(run: Run, *, clients: int = 3, columns: int = 12, clusters: Any = None) -> ContactSheet | None:
    """A few examples of each cluster; None where examples are no pictures of classes."""
    train, classes = run.federation.train, run.federation.classes
    if len(run.federation.shape) != 3 or run.federation.kind != "classes":
        return None
    places, seed = places_of(run), run.clients.seed
    labels, owner = train.y.cpu(), train.owner.cpu()
    common = torch.bincount(labels, minlength=len(classes)).argsort(descending=True, stable=True)[:columns]
    shown: list[int] = common.sort().values.tolist()
    sheet = ContactSheet(shown, [], [], [])
    for k in np.unique(places) if clusters is None else clusters:
        members = torch.from_numpy(np.flatnonzero(places == k))
        counts = torch.stack([torch.bincount(owner[labels == c], minlength=len(places)) for c in shown])
        has = (counts[:, members] > 0).sum(0)
        draws = uniform(seed, "sheet", members)
        best = np.lexsort((draws.numpy(), -has.numpy()))[:clients]  # those with most of these classes
        for client in members[torch.from_numpy(best.copy())].tolist():
            mine = [((owner == client) & (labels == c)).nonzero()[:, 0] for c in shown]
            pictures = [train.x[m[0]].cpu() if len(m) else None for m in mine]
            sheet.clusters.append(int(k))
            sheet.clients.append(client)
            sheet.tiles.append([_tile(picture, run.federation.shape, colour(int(k))) for picture in pictures])
    return sheet


def draw_examples(run: Run, path: Path, **how: Any) -> bool:
    """The contact sheet of a run, as `sheet_of` takes it."""
    sheet = sheet_of(run, **how)
    if sheet is None:
        return False
    with panels(path, size=(0.3 + 0.45 * len(sheet.classes), 0.45 * len(sheet.tiles))) as axes:
        axis = axes[0, 0]
        axis.imshow(np.concatenate([np.concatenate(row, axis=1) for row in sheet.tiles]), interpolation="nearest")
        axis.axis("off")
        for row, k in enumerate(sheet.clusters):
            if row == 0 or sheet.clusters[row - 1] != k:
                middle = (row + 0.5) * len(sheet.tiles[0][0])
                axis.text(-3, middle, str(k), ha="right", va="center", color=colour(k), weight="bold")
    return True


def _tile(picture: Tensor | None, shape: tuple[int, ...], frame: str) -> Reals:
    """One example with a frame, (height + 4, width + 4, 3); a grey one is drawn dark on white."""
    channels, height, width = shape
    tile = np.ones((height + 4, width + 4, 3))
    tile[1:-1, 1:-1] = [int(frame[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    tile[2:-2, 2:-2] = 1.0
    if picture is not None:
        whole = (picture.float() / (255 if picture.dtype == torch.uint8 else 1)).clamp(0, 1)
        still = (1 - whole[:1] if channels != 3 else whole).permute(1, 2, 0).numpy()
        tile[2:-2, 2:-2] = np.broadcast_to(still, (height, width, 3))
    return tile


def draw_numbers(run: Run, path: Path) -> bool:
    """Each cluster in numbers: clients, examples of a client, and the labels that set it apart from the others."""
    rows, classes = statistics(run), run.federation.classes
    sizes, places = run.federation.train.sizes.numpy(), places_of(run)
    if run.federation.kind != "classes":
        return False
    every = np.array([[row["labels"][name] for name in classes] for row in rows])
    weight = np.array([row["examples"] for row in rows], dtype=float)
    shift = 100 * (every - weight @ every / weight.sum())
    most = np.sort(np.argsort(-np.abs(shift).max(0), kind="stable")[:10])
    protected = [row.get("protected") for row in rows]
    with panels(path, 1, 3, size=(3.7, 3.0)) as axes:
        first, second, third = axes[0]
        numbers = [row["cluster"] for row in rows]
        colours, at = [colour(k) for k in numbers], np.arange(len(rows))
        first.bar(at, [row["clients"] for row in rows], color=colours)
        first.set_title("clients")
        for x, row, share in zip(at, rows, protected, strict=True):
            if share is not None:
                first.text(x, row["clients"], f"{share:.0%}", ha="center", va="bottom", fontsize=8)
        if any(share is not None for share in protected):
            first.set_title("clients (above: protected attribute)")
        second.boxplot([sizes[places == k] for k in numbers], positions=at, widths=0.5, flierprops={"ms": 2})
        if int(sizes.max()) > 20 * max(1, int(np.median(sizes))):
            second.set_yscale("log")
        second.set_title("training examples of a client")
        for axis in (first, second):
            axis.set_xticks(at, numbers)
            axis.set_xlabel("cluster")
        width = 0.8 / len(rows)
        for n, k in enumerate(numbers):
            third.bar(np.arange(len(most)) + (n - (len(rows) - 1) / 2) * width, shift[n, most], width, color=colour(k))
        third.set_xticks(range(len(most)), [classes[c] for c in most])
        third.set_title("share of a label less everybody's, points")
    return True


def draw_similarity(run: Run, path: Path) -> bool:
    """Cosines between updates from one common start, ordered by cluster, and the tree of single linkage."""
    index, rows = updates(run, LARGEST_TREE)
    place, alike = places_of(run)[index.numpy()], cosines(rows)
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
    members: Integers  # (m,) clients that were there
    child: Integers  # (m,) the center each went to
    alike: Reals  # (m, m) cosines of their updates


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


def ordered(alike: Reals, place: Integers) -> tuple[Any, Integers, Integers]:
    """The tree of single linkage, its leaves, and everybody by cluster and within it as in the tree."""
    from scipy.cluster.hierarchy import dendrogram, linkage
    from scipy.spatial.distance import squareform

    apart = np.clip(1 - (alike + alike.T) / 2, 0, 2)
    np.fill_diagonal(apart, 0.0)
    tree = linkage(squareform(apart, checks=False), "single")
    leaves = np.array(dendrogram(tree, no_plot=True)["leaves"])
    return tree, leaves, leaves[np.argsort(place[leaves], kind="stable")]


def _pair(left: Any, right: Any, alike: Reals, place: Integers, between: tuple[float, float]) -> Any:
    """A heat map of similarities, ordered by place, and their tree with a mark for the place of everyone."""
    from scipy.cluster.hierarchy import dendrogram

    tree, leaves, order = ordered(alike, place)
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
