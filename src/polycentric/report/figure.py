"""One hand for every figure: size, type, colours and how a file is written."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

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


def colour(number: int) -> str:
    """The colour of cluster, method or edge `number`; they come round again."""
    return COLOURS[number % len(COLOURS)]


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
    style: Any = STYLE
    with rc_context(style):
        figure: Figure = Figure(figsize=(size[0] * columns, size[1] * rows), layout="constrained")
        FigureCanvasAgg(figure)
        yield figure.subplots(rows, columns, squeeze=False)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, metadata={"Software": None} if path.suffix == ".png" else {"Date": None})


def band(axis: Axes, x: Any, curves: Any, number: int, label: str) -> None:
    """The mean of several curves (seeds, points) as a line, and the range of one deviation about it."""
    import numpy as np

    curves = np.atleast_2d(np.asarray(curves, dtype=float))
    mean, spread = curves.mean(0), curves.std(0, ddof=1) if len(curves) > 1 else np.zeros(curves.shape[1])
    axis.plot(x, mean, color=colour(number), label=label)
    if len(curves) > 1:
        axis.fill_between(x, mean - spread, mean + spread, color=colour(number), alpha=0.18, linewidth=0)
