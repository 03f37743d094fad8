"""How unlike the clients are: one number, a table, a heat map in the terminal, and the same as a picture.

    heterogeneity = sum_k n_k/n * TV(p_k, p),    TV(p, q) = 1/2 sum_c |p(c) - q(c)|

with p_k the labels of client k and p those of all clients together: 0 when all clients are alike, near 1 when
each sees one of many classes.
"""

from __future__ import annotations

from pathlib import Path

import torch
from rich.console import Group, RenderableType
from rich.style import Style
from rich.table import Table
from rich.text import Text
from torch import Tensor

from ..errors import require
from . import suspicious
from .federation import Federation, Kind, class_counts

MOST_ROWS = 40
MOST_COLUMNS = 64
COUNTED: dict[Kind, str] = {"boxes": "boxes", "symbols": "symbols"}  # what has a class, where it is no example
_SHADES = " ░▒▓█"
_COLOURS = ("#808080", "#5b7a9d", "#3f8fb5", "#35b1a1", "#e8b93e")  # by shade, dull to bright


def label_counts(federation: Federation) -> Tensor:
    """Training examples of every client in every class, or with every label, (clients, classes).

    Of boxes and symbols every one counts.
    """
    n_classes = len(federation.classes)
    require(n_classes > 0, f"federation '{federation.name}' has numbers to predict, so there are no labels to count")
    train = federation.train
    if federation.kind == "labels":
        none = torch.zeros(federation.n_clients, n_classes, dtype=torch.int64)
        return none.index_add(0, train.owner.cpu(), train.y.cpu().long())
    return class_counts(train, n_classes)


def heterogeneity(federation: Federation) -> float:
    """Mean distance in total variation of a client's labels from everybody's, by training size, in [0, 1]."""
    counts = label_counts(federation).double()
    sizes = counts.sum(1)
    distance = (_shares(counts) - counts.sum(0) / counts.sum()).abs().sum(1) / 2
    return float((sizes * distance).sum() / sizes.sum())


def describe(federation: Federation) -> RenderableType:
    """A table of facts and a heat map of labels by client, for `rich.print`."""
    facts = Table.grid(padding=(0, 2))
    for name, value in _facts(federation):
        facts.add_row(Text(name, style="bold"), Text(value))
    return Group(facts, Text(), *_terminal_map(federation)) if federation.classes else facts


def heat_map(federation: Federation, path: str | Path) -> Path:
    """Draw labels by client, with the clients' sizes beside them, into a PNG file."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator, PercentFormatter
    from numpy.ma import masked_equal

    counts = label_counts(federation)
    counts = counts[by_commonest_label(counts)]
    sizes = counts.sum(1)
    n_clients, n_classes = counts.shape
    width = min(11.0, 4.5 + 0.11 * n_classes)
    figure = Figure(figsize=(width + 2.2, 5.6), layout="constrained", dpi=130)
    grid = figure.add_gridspec(1, 2, width_ratios=(width, 1.7), wspace=0.02)
    labels = figure.add_subplot(grid[0])
    shares = masked_equal(_shares(counts.double()).numpy(), 0)  # a class a client lacks stays white
    image = labels.imshow(shares, aspect="auto", cmap="magma_r", interpolation="nearest", vmin=0)
    labels.set(xlabel="class", ylabel="client, sorted by commonest label")
    labels.yaxis.set_major_locator(MaxNLocator(integer=True))
    step = 1 if n_classes <= 64 else n_classes // 40 + 1
    names = federation.classes[::step]
    long = max(map(len, names)) > (3 if n_classes <= 20 else 1)
    labels.set_xticks(
        range(0, n_classes, step),
        [name.replace("$", r"\$") for name in names],
        rotation=90 if long else 0,
        fontsize=9 if n_classes <= 30 else 7,
    )
    bars = figure.add_subplot(grid[1], sharey=labels)
    bars.barh(range(n_clients), sizes.numpy(), height=1.0, color="#5b4a8a", linewidth=0)
    bars.set_xlabel(f"training {COUNTED.get(federation.kind, 'examples')}")
    bars.tick_params(left=False, labelleft=False)
    bars.xaxis.set_major_locator(MaxNLocator(3, integer=True))
    bars.spines[["top", "right"]].set_visible(False)
    figure.colorbar(image, ax=bars, fraction=0.12, label="share of the client's labels", format=PercentFormatter(1.0))
    figure.suptitle(
        f"{federation.name}: labels of {n_clients:,} clients, heterogeneity {heterogeneity(federation):.2f}"
    )
    path = Path(path)
    figure.savefig(path, format="png")
    return path


def _facts(federation: Federation) -> list[tuple[str, str]]:
    least, median, most = federation.train.sizes.double().quantile(torch.tensor([0, 0.5, 1]).double()).tolist()
    parts = {part: len(getattr(federation, part)) for part in ("train", "valid", "test")}
    facts = [
        ("data", federation.name),
        ("examples", ", ".join(f"{n:,} {part}" for part, n in parts.items() if n)),
        ("one example", _example(federation)),
        ("clients", f"{federation.n_clients:,}"),
        ("training examples a client", f"{least:,.0f} to {most:,.0f}, median {median:,.0f}"),
        _what_is_learned(federation),
    ]
    if federation.group is not None:
        counts = torch.bincount(federation.group, minlength=len(federation.group_names)).tolist()
        named = sorted(zip(counts, federation.group_names, strict=False), key=lambda pair: -pair[0])
        more = f" and {len(named) - 6} more" if len(named) > 6 else ""
        facts.append(("groups", ", ".join(f"{name} ({n})" for n, name in named[:6]) + more))
    if federation.classes:
        distance = heterogeneity(federation)
        facts.append(("heterogeneity", f"{distance:.3f} (0: all alike, 1: nothing in common)"))
    if federation.note:
        facts.append(("note", federation.note))
    return facts + [("mind", found) for found in suspicious.all_of(federation)]


def _what_is_learned(federation: Federation) -> tuple[str, str]:
    if federation.kind == "numbers":
        names = f": {', '.join(federation.targets)}" if federation.targets else ""
        return "numbers to predict", f"{federation.n_outputs}{names}"
    n, kind = len(federation.classes), federation.kind
    if kind == "boxes":
        count = int(label_counts(federation).sum())
        return (
            "classes",
            f"{n}, of boxes in images: {count:,} for training, up to {federation.train.y.shape[1]} an image",
        )
    several = ", several an example" if kind == "labels" else ", at every position" if kind == "symbols" else ""
    return ("labels" if kind == "labels" else "classes"), f"{n}{several}"


def _example(federation: Federation) -> str:
    size = " x ".join(map(str, federation.shape))
    if federation.symbols:
        return f"{size} symbols out of {federation.symbols}"
    return f"{size} {'bytes' if federation.train.x.dtype == torch.uint8 else 'numbers'}"


def _rows(federation: Federation, counts: Tensor) -> tuple[list[str], Tensor, str]:
    """The rows of the heat map: names, counts (rows, classes), and what a row is."""
    n_clients = len(counts)
    if n_clients <= MOST_ROWS:
        return [name[:12] for name in federation.clients], counts, "a row is a client"
    counts = counts[by_commonest_label(counts)]
    row = torch.arange(n_clients) * MOST_ROWS // n_clients
    binned = torch.zeros(MOST_ROWS, counts.shape[1], dtype=counts.dtype).index_add(0, row, counts)
    sizes = torch.bincount(row).tolist()
    about = f"{min(sizes)} to {max(sizes)}" if min(sizes) < max(sizes) else str(sizes[0])
    return [f"{size} clients" for size in sizes], binned, f"a row is {about} clients, sorted by their commonest label"


def _terminal_map(federation: Federation) -> list[Text]:
    counts = label_counts(federation)
    shown = counts.sum(0).argsort(descending=True, stable=True)[:MOST_COLUMNS].sort().values
    names, rows, legend = _rows(federation, counts)
    shares = _shares(rows.double())[:, shown]
    peak = max(float(shares.max()), 1e-9)
    levels = ((shares / peak).sqrt() * (len(_SHADES) - 1)).ceil().long()  # square root: small shares show
    wide = 2 if len(shown) <= 24 else 1
    edge = max(map(len, names))
    lines = [Text(" " * (edge + 1) + "".join(f"{federation.classes[c][:1]:{wide}}" for c in shown), style="dim")]
    for name, row in zip(names, levels.tolist(), strict=True):
        line = Text(f"{name:>{edge}} ", style="dim")
        for level in row:
            line.append(_SHADES[level] * wide, Style(color=_COLOURS[level]))
        lines.append(line)
    return [*lines, _legend(legend, peak, len(shown), len(federation.classes))]


def _legend(rows: str, peak: float, n_shown: int, n_classes: int) -> Text:
    columns = "a column is a class" if n_shown == n_classes else f"columns are the {n_shown} commonest classes"
    legend = Text(f"\n{rows}; {columns}; a cell is the share of the class in the row's training labels:\n")
    steps = len(_SHADES) - 1
    legend.append("blank none")
    for level in range(1, steps + 1):
        legend.append("  ").append(_SHADES[level] * 2, Style(color=_COLOURS[level]))
        legend.append(f" to {_two(100 * peak * (level / steps) ** 2)} %")
    return legend


def _two(number: float) -> str:
    """Two digits, without an exponent.

    >>> _two(4.16), _two(100.0)
    ('4.2', '100')
    """
    return f"{number:.0f}" if number >= 10 else f"{number:.2g}"


def by_commonest_label(counts: Tensor) -> Tensor:
    """Clients sorted by their commonest label and, among those, by how common it is."""
    shares, label = _shares(counts.double()).max(1)
    by_share = shares.argsort(descending=True, stable=True)
    return by_share[label[by_share].argsort(stable=True)]


def _shares(counts: Tensor) -> Tensor:
    """Rows as distributions; an empty row stays empty."""
    return counts / counts.sum(1, keepdim=True).clamp(min=1)
