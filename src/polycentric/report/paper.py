"""Figures of runs by their names, for a paper: as wide as one or two columns, as PDF, SVG or PNG."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from ..errors import require, unknown
from ..runs.loop import Run
from ..runs.start import open as open_run
from . import clusters, curves
from .boxes import draw_frames, draw_recall
from .clusters.drawing import draw_rounds
from .figure import PAPER, UNSAID, on_paper, panels
from .graphs import draw_centers, draw_links
from .maps import draw_map
from .participation import draw_participation

OF_ONE: dict[str, Callable[[Run, Path], bool]] = {  # of one run, which is opened
    "topology": lambda run, path: draw_topology(run, path),
    "rounds": draw_rounds,
    "map": lambda run, path: clusters.draw_map(clusters.looks(run, 400), path, seed=run.clients.seed),
    "similarity": clusters.draw_similarity,
    "splits": lambda run, path: clusters.draw_splits(run.state.memory, path),
    "examples": clusters.draw_examples,
    "frames": draw_frames,
    "recall": draw_recall,
}
FIGURES = ("curves", "participation", *OF_ONE)


def draw_figure(
    name: str,
    runs: Sequence[Path],
    path: Path,
    *,
    columns: int = 1,
    metric: str = "",
    over: str = "",
    trust: bool = False,
) -> Path:
    """Draw one of the figures; `metric` and `over` are those of curves, `columns` how wide it is."""
    if name not in FIGURES:
        raise unknown("figure", name, FIGURES)
    require(columns in PAPER, f"a paper has 1 or 2 columns, got {columns}")
    require(path.suffix in UNSAID, f"a figure's file must end in .png, .svg or .pdf, got '{path}'")
    require(name == "curves" or not (metric or over), f"metric and over are of curves, not of {name}: leave them out")
    with on_paper(columns):
        if name == "curves":
            words = [word.strip() for word in (over or "rounds").split(",")]
            for word in words:
                if word not in curves.AXES:
                    raise unknown("axis", word, curves.AXES)
            curves.figure(curves.gathered(runs), path, metric, words)  # type: ignore[arg-type]
        elif name == "participation":
            draw_participation(curves.gathered(runs), path)
        else:
            require(len(runs) == 1, f"a figure of {name} is of one run, got {len(runs)}")
            drawn = OF_ONE[name](open_run(runs[0], trust=trust), path)
            others = ", ".join(other for other in FIGURES if other != name)
            require(drawn, f"{runs[0]} has nothing to draw for {name}: try {others}")
    return path


def draw_topology(run: Run, path: Path) -> bool:
    """Cells on their map, centers with their clients, or a graph; False where clients hear nobody."""
    topology, everyone = run.now.exchange.topology, run.clients.everyone(run.state.round)
    picture = topology.picture(run.state.memory, everyone)
    if not len(picture.links.sender):
        return False
    if topology.geometry is not None and not picture.cloud:
        draw_map(topology.geometry, everyone.n_clients, path, seed=everyone.seed, rounds=(everyone.round,))
        return True
    places = topology.assignment(run.state.memory)
    with panels(path, size=(4.4 if picture.part is None else 6.2, 4.0)) as axes:
        if picture.n_centers:
            draw_centers(axes[0, 0], picture, [0] * picture.n_clients if places is None else places.tolist())
        else:
            draw_links(axes[0, 0], picture)
    return True
