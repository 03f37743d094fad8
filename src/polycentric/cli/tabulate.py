"""Tables over many runs for people: methods over seeds, and grids of settings."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

from rich.table import Table

from ..errors import UsageError
from ..runs.grid import grouped
from ..runs.settings import Settings, changed, pairs, read_toml
from ..runs.start import check_words
from .screen import bytes_, spread

SHOWN = {  # metric: title
    "micro_accuracy": "micro",
    "macro_accuracy": "macro",
    "worst_decile_accuracy": "worst tenth",
}


def comparison_table(rows: list[dict[str, Any]], seeds: int, settings: Settings) -> Table:
    """The comparison for people: mean ± standard deviation in percent."""
    dealt = f", {settings.partition}" if settings.partition else ""
    title = f"{settings.data}{dealt}, {settings.rounds} rounds, {seeds} seeds: test accuracy in %, mean±std"
    table = Table(title=title, title_justify="left")
    table.add_column("method")
    beside = any("share_below_alone" in row for row in rows)
    for heading in (*SHOWN.values(), "fine-tuned", *(["better alone"] if beside else []), "sent"):
        table.add_column(heading, justify="right")
    for row in rows:
        values = [spread(row["metrics"].get(name, [])) for name in SHOWN]
        values.append(spread(row["personalised"]))
        values += [spread(row.get("share_below_alone", []))] if beside else []
        lost = f" ({row['diverged']} diverged)" if row["diverged"] else ""
        table.add_row(row["method"] + lost, *values, bytes_(row["bytes_up"]))
    if beside:
        table.caption = "better alone: share of clients whose model would have been better trained alone"
    return table


def grid_of(config: Path, options: dict[str, Any]) -> tuple[list[dict[str, Any]], list[Settings]]:
    """Every combination of the lists in [grid], and its settings; options go before what the file says."""
    values = read_toml(config)
    grid = values.pop("grid", None)
    if not isinstance(grid, dict) or not grid or not all(isinstance(v, list) and v for v in grid.values()):
        raise UsageError(f'{config} needs a [grid] table of lists, for example "set.lr" = [0.03, 0.1]')
    points = [dict(zip(grid, combination, strict=True)) for combination in itertools.product(*grid.values())]
    return points, [_at(values, point, config, options) for point in points]


def _at(values: dict[str, Any], point: dict[str, Any], config: Path, options: dict[str, Any]) -> Settings:
    """The settings at one point of a grid; keys that begin with `set.` are settings of the method."""
    own = {key: value for key, value in point.items() if not key.startswith("set.")}
    inner = {key[4:]: value for key, value in point.items() if key.startswith("set.")}
    mine = {key: value for key, value in options.items() if key != "set"}
    settings = Settings.of(changed(values | own | mine, inner | pairs(options.get("set", []))), str(config))
    check_words(settings)
    return settings


def sweep_table(rows: list[dict[str, Any]], keys: list[str]) -> Table:
    """One line for every point of the grid, over its seeds."""
    axes = [key for key in keys if key != "seed"]
    table = Table(title="test accuracy in %, mean±std over seeds", title_justify="left")
    for key in axes:
        table.add_column(key.removeprefix("set."))
    for heading in (*SHOWN.values(), "validation", "runs"):
        table.add_column(heading, justify="right")
    for point, ran in grouped(rows, lambda r: tuple(str(r["grid"][k]) for k in axes)).items():
        good = [r for r in ran if "metrics" in r]
        shown = [spread([r["metrics"][name] for r in good if name in r["metrics"]]) for name in SHOWN]
        valid = spread([r["best_validation"] for r in good if r.get("best_validation") is not None])
        table.add_row(*point, *shown, valid, str(len(good)) + (f" of {len(ran)}" if len(good) < len(ran) else ""))
    table.caption = "choose by the validation column (set valid = 0.1 in the config), never by the test"
    return table
