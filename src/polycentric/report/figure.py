"""One hand for every figure: size, type, colours, panels, lines with bands, heat maps and how a file is written."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ..errors import require

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colours, told apart by everybody; a cluster, a method or an edge keeps its colour by its number.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C6D31", "#555555")

STYLE: dict[str, Any] = {
    "figure.dpi": 110,
    "font.size": 9.5,
    "axes.titlesize": 10.5,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e6e6e6",
    "grid.linewidth": 0.7,
    "axes.axisbelow": True,
    "lines.linewidth": 1.6,
    "legend.frameon": False,
    "svg.hashsalt": "polycentric",  # the same figure, the same bytes
}
PAPER = {1: 3.35, 2: 6.9}  # inches of one and of two columns of a paper
ON_PAPER: dict[str, Any] = {
    "font.size": 8,
    "axes.titlesize": 8.5,
    "legend.fontsize": 7.5,
    "lines.linewidth": 1.2,
    "pdf.fonttype": 42,  # letters stay letters
    "savefig.dpi": 300,
}
LEAST = 2.2  # inches that a panel needs: where there is no room for all beside each other, they stand below
UNSAID = {".png": "Software", ".svg": "Date", ".pdf": "CreationDate"}  # so that the same figure has the same bytes
SIZES = {1: (4.8, 3.4), 2: (4.4, 3.3), 3: (3.8, 3.0)}  # of a panel in inches, by the panels beside each other


def colour(number: int) -> str:
    """The colour of cluster, method or edge `number`; they come round again."""
    return COLOURS[number % len(COLOURS)]


def line_style(number: int, points: int = 0) -> dict[str, Any]:
    """How the line of `number` is drawn: where colours come round again, dashes and marks tell it from the first.

    `points`: on the line; a dozen of them are marked.
    """
    again = number // len(COLOURS)
    if not again:
        return {}
    dashes, marks = ("--", "-.", (0, (1, 1)), (0, (5, 1, 1, 1, 1, 1))), "os^Dv<>P"
    every = (number % 3, max(1, points // 12))  # not all of them at the same places
    marked = {"marker": marks[(number + again) % len(marks)], "markersize": 4, "markevery": every}
    return {"linestyle": dashes[(again - 1) % len(dashes)], **(marked if points > 3 else {"marker": marked["marker"]})}


_columns: ContextVar[int] = ContextVar("columns", default=0)


@contextmanager
def on_paper(columns: int) -> Iterator[None]:
    """Within this, figures are as wide as one or two columns of a paper, in its small type."""
    token = _columns.set(columns)
    try:
        yield
    finally:
        _columns.reset(token)


def paper() -> bool:
    """Whether a figure is drawn for a paper, where there is no room on its panels."""
    return bool(_columns.get())


@contextmanager
def panels(path: Path, rows: int = 1, columns: int = 1, *, size: tuple[float, float] = (4.2, 3.2)) -> Iterator[Any]:
    """Axes (rows, columns) to draw on, `size` inches each; written to `path` at the end.

        with panels(path, 1, 2) as axes:
            axes[0, 0].plot(...)

    Nothing is shown on a screen, and matplotlib's own state is not touched.
    """
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    require(path.suffix in (".png", ".svg", ".pdf"), f"a figure's file must end in .png, .svg or .pdf, got '{path}'")
    wide = PAPER.get(_columns.get(), size[0] * columns)
    below = rows == 1 and wide < LEAST * columns
    across, down = (1, columns) if below else (columns, rows)
    style: Any = STYLE | (ON_PAPER if _columns.get() else {})
    with rc_context(style):
        figure: Figure = Figure(figsize=(wide, wide / across * size[1] / size[0] * down), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots(down, across, squeeze=False)
        yield axes.T if below else axes
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, metadata={UNSAID[path.suffix]: None})


def band(axis: Axes, x: Any, curves: Any, number: int, label: str | None, *, spread: bool = True, **line: Any) -> None:
    """The mean of several curves (seeds, points) as a line, and the range of one deviation about it."""
    curves = np.atleast_2d(np.asarray(curves, dtype=float))
    mean = curves.mean(0)
    axis.plot(x, mean, label=label, **{"color": colour(number), **line_style(number, len(mean)), **line})
    if spread and len(curves) > 1:
        off = curves.std(0, ddof=1)
        axis.fill_between(x, mean - off, mean + off, color=colour(number), alpha=0.18, linewidth=0)


def target(axis: Axes, level: float) -> None:
    """A level that curves should reach."""
    axis.axhline(level, color="#999999", linewidth=0.8, linestyle="--")


def heat(axis: Axes, table: Any, between: tuple[float, float] = (-1.0, 1.0), cmap: str = "RdBu_r") -> Any:
    """A matrix as colours."""
    axis.grid(False)
    return axis.imshow(table, vmin=between[0], vmax=between[1], cmap=cmap)


def legend(axes: Any) -> None:
    """One legend for all panels that have none of their own, above them; none where there is only one line."""
    lines: dict[str, Any] = {}
    for axis in axes.flat:
        for line, label in zip(*axis.get_legend_handles_labels(), strict=True):
            lines.setdefault(label, line) if axis.get_legend() is None else None
    if len(lines) > 1:
        whole = axes[0, 0].figure
        columns = columns_of(whole, lines, mark=0.75)  # a handle tells dashed from solid
        whole.legend(lines.values(), lines, loc="outside upper center", ncols=columns, handlelength=2.6)


def columns_of(figure: Any, labels: Collection[str], mark: float) -> int:
    """How many entries of a legend stand beside each other in a figure; `mark`: inches of an entry before its words."""
    wide = mark + 0.08 * max(map(len, labels))
    return min(len(labels), max(1, int(figure.get_figwidth() / wide)))


class Panel(Protocol):
    """What can be drawn on one pair of axes."""

    @property
    def there(self) -> bool:
        """Whether there is anything to draw."""

    def draw(self, axis: Axes) -> None:
        """Draw it."""


@dataclass(frozen=True)
class Drawn:
    """A panel that a function draws."""

    by: Callable[[Axes], object]
    there: bool = True
    dress: Mapping[str, Any] = field(default_factory=dict)  # as `Axes.set` takes it

    def draw(self, axis: Axes) -> None:
        """Draw it."""
        self.by(axis)
        axis.set(**self.dress)


@dataclass(frozen=True)
class Heat:
    """A matrix as colours between -1 and 1; `bar`: what they mean, said beside the panel."""

    table: Any
    bar: str = ""
    dress: Mapping[str, Any] = field(default_factory=dict)
    there: bool = True

    def draw(self, axis: Axes) -> None:
        """Draw it."""
        image = heat(axis, self.table)
        axis.set(**self.dress)
        if self.bar:
            axis.figure.colorbar(image, ax=axis, shrink=0.85, label=self.bar)


@dataclass(frozen=True)
class Points:
    """Numbers over a setting: for each label a mark at every place, the mean over seeds, and one deviation about it."""

    lines: Mapping[str, Mapping[float, Sequence[float]]]  # label -> place -> a number for each seed
    apart: float = 0.0  # lines are moved so far to the right of each other
    style: Callable[[str], Mapping[str, Any]] = lambda label: {}  # as `band` takes it
    dress: Mapping[str, Any] = field(default_factory=dict)  # as `Axes.set` takes it

    @property
    def there(self) -> bool:
        """Whether there is a number."""
        return any(len(seeds) for line in self.lines.values() for seeds in line.values())

    def draw(self, axis: Axes) -> None:
        """Draw it."""
        for number, (label, line) in enumerate(self.lines.items()):
            ran = {place: seeds for place, seeds in line.items() if len(seeds)}
            curves = list(zip(*ran.values(), strict=False))  # as many seeds as all places have
            if curves:
                how = {"number": number, "marker": "o", "markersize": 3.5, **self.style(label)}
                band(axis, [place + self.apart * number for place in ran], curves, label=label, **how)
        axis.set(**self.dress)
        places = sorted({place for line in self.lines.values() for place in line})
        axis.set_xticks(places, [f"{place:g}" for place in places])
        axis.minorticks_off() if axis.get_xscale() == "log" and axis.get_yscale() != "log" else None


def grid(path: Path, rows: Sequence[Sequence[Panel]]) -> bool:
    """Panels in rows, with one legend; False, and no file, where there is nothing to draw.

    Rows and columns that are empty are left out; a panel says what its axes are only where its neighbour does not.
    """
    kept = [row for row in rows if any(panel.there for panel in row)]
    if not kept:
        return False
    columns = [k for k in range(len(kept[0])) if any(row[k].there for row in kept)]
    with panels(path, len(kept), len(columns), size=SIZES.get(len(columns), (3.2, 2.7))) as axes:
        for (i, j), axis in np.ndenumerate(axes):
            panel = kept[i][columns[j]]
            axis.set_visible(panel.there)
            panel.draw(axis) if panel.there else None
        labels = {place: (axis.get_xlabel(), axis.get_ylabel()) for place, axis in np.ndenumerate(axes)}
        for (i, j), axis in np.ndenumerate(axes):
            if j and axes[i, j - 1].get_visible() and labels[i, j][1] == labels[i, j - 1][1]:
                axis.set_ylabel("")
            if i + 1 < len(axes) and axes[i + 1, j].get_visible() and labels[i, j][0] == labels[i + 1, j][0]:
                axis.set_xlabel("")
        legend(axes)
    return True
