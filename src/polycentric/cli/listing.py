"""What there is: methods, models, data, tables, and the state of this machine."""

from __future__ import annotations

import os
import shutil
import sys
import typing
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Group
from rich.table import Table

from ..data import available
from ..data.sources import missing_folders
from ..data.table_file import csv_text
from ..language import kinds
from ..learn.cpu.library import COMPILED, library
from ..methods import METHODS
from ..models import MODELS
from ..report.tables import shown_metrics
from ..reproduce import TABLES
from ..runs.loop import Run, trainer_of
from ..runs.machine import versions
from ..runs.metrics import is_share, plain
from ..runs.personalize import personalize
from ..runs.recipes import parameters, recipe_of
from .screen import titled


def list_methods() -> Group:
    """Methods and models, a line each."""
    methods = titled("methods (polycentric methods NAME shows one)", "name", "what it does")
    for name, recipe in METHODS.items():
        methods.add_row(name, _headline(recipe))
    models = titled("models (--model NAME, or your own as module:attribute)", "name", "what it is")
    for name, model in MODELS.items():
        models.add_row(name, model.about)
    use = "--set select=uniform(n=10); --attack, --clock, --data, --partition"
    parts = titled(f"parts ({use})", "setting", "choices")
    named = {getattr(kind, "__name__", str(kind)).lower(): sorted(choices) for kind, choices in kinds().items()}
    for word, choices in sorted((_SETTING.get(word, word), choices) for word, choices in named.items()):
        parts.add_row(word, ", ".join(choices))
    return Group(methods, models, parts)


# What a kind of part is called among the settings, where it is not the kind's own name.
_SETTING = {"geometry": "cells", "network": "graph", "pool": "data", "term": "terms"}


def show_method(name: str) -> tuple[str, Table]:
    """A method's page: its docstring, and every setting with its default."""
    recipe = recipe_of(name)
    table = titled("settings (--set name=value)", "name", "type", "default")
    for key, parameter in parameters(name).items():
        table.add_row(key, _kind(parameter.annotation), str(parameter.default))
    page = sys.modules[recipe.__module__].__doc__ or recipe.__doc__ or ""
    return page.strip() + "\n", table


def _kind(annotation: Any) -> str:
    """A type as a user would write its values."""
    if typing.get_origin(annotation) is typing.Literal:
        return " | ".join(typing.get_args(annotation))
    if typing.get_origin(annotation) is tuple:
        return f"{typing.get_args(annotation)[0].__name__.lower()}s"
    return str(getattr(annotation, "__name__", annotation))


def list_data() -> Table:
    """Data sets by name."""
    table = titled("data sets (--data NAME)", "name", "where", "what")
    for name, where, what in available():
        table.add_row(name, str(where), what)
    folders = os.environ.get("POLYCENTRIC_DATA")
    none = "set POLYCENTRIC_DATA to folders with your data, or use `data import`"
    gone = "".join(f"; {folder} is not there" for folder in missing_folders())
    table.caption = f"POLYCENTRIC_DATA is {folders}{gone}" if folders else none
    return table


def list_tables() -> Table:
    """Tables of papers that can be reproduced."""
    table = titled("tables (polycentric reproduce NAME)", "name", "what", "data")
    for name, found in TABLES.items():
        table.add_row(name, found.title, found.data)
    return table


def personalization(run: Run, steps: list[int], lr: float | None) -> tuple[list[dict[str, Any]], Table]:
    """Accuracy against steps, as numbers and as a table; every client's accuracies go into the run's folder."""
    how = trainer_of(run.method)
    points = personalize(run, steps, replace(how, lr=lr) if how and lr is not None else how)
    title = f"{run.method.name} on {run.federation.name}: fine-tuning at every client"
    rows: list[dict[str, Any]] = []
    for point in points:
        rows.append({"steps": point.steps, **plain({"share_worse": point.share_worse} | point.scores.summary())})
    metrics = shown_metrics(list(rows[0])) | {"share_worse": "clients worse"}
    table = titled(title, right=("steps", *metrics.values()))
    for row in rows:
        shown = [(row[name], ".2%" if is_share(name) else ".4g") for name in metrics]
        table.add_row(str(row["steps"]), *("-" if value is None else f"{value:{form}}" for value, form in shown))
    if run.folder:
        name, each = points[0].scores.chief[0], [point.scores.chief[1] for point in points]
        head = ["client", *(f"{'after' if name == 'accuracy' else f'{name}_after'}_{point.steps}" for point in points)]
        lines = ([name, *(f"{v[k]:.6g}" for v in each)] for k, name in enumerate(run.federation.clients))
        run.folder.write_text("personalize.csv", csv_text([head, *lines], end="\n"))
    return rows, table


def examine(keys: Path | None = None, server: tuple[str, Path | None, bool] | None = None) -> tuple[bool, Table]:
    """Whether this machine can run us, and the findings; also about a folder of keys, and a server."""
    import torch

    table = titled("doctor", "what", "found", "verdict")
    table.show_header = False
    good = True

    def row(what: str, found: Any, fine: bool, advice: str = "") -> None:
        nonlocal good
        good &= fine
        table.add_row(what, str(found), "good" if fine else advice)

    for package, version in versions().items():
        row(package, version, package != "python" or sys.version_info >= (3, 11), "needs 3.11 or newer")
    row("gpu", torch.cuda.get_device_name() if torch.cuda.is_available() else "none (the CPU is used)", True)
    row("cores", f"{os.cpu_count()}, {torch.get_num_threads()} threads for torch", True)
    row("steps in C", _steps_in_c(), True)
    row("several ranks", _ways_between_ranks(), True)
    free = shutil.disk_usage(Path.cwd()).free / 1e9
    row("free disk", f"{free:.1f} GB", free > 1, "less than 1 GB: checkpoints may not fit")
    writable = os.access(Path.cwd(), os.W_OK)
    row("this folder", Path.cwd(), writable, "cannot be written; use --out")
    names = [name for name, _, _ in available()]
    row("data", ", ".join(names), bool(names), "none found")
    for executor, dtype, within in (("stacked", "float64", 1e-10), ("traced", "float32", 1e-5)):
        off = _far_from_looped(executor, dtype)
        found = f"largest difference {off:.1e}"
        row(
            f"a round, {executor} against looped", found, off < within, "they disagree; reinstall torch and polycentric"
        )
    if keys is not None:
        from ..deploy.check_keys import check_keys

        for check in check_keys(keys):
            row(check.what, check.found, check.good, f"bad: {check.advice}")
    if server is not None:
        from ..deploy.check_server import check_server

        for check in check_server(*server):
            row(check.what, check.found, check.good, f"bad: {check.advice}")
    return good, table


def _ways_between_ranks() -> str:
    """How processes that torchrun starts can talk."""
    import torch.distributed as dist

    there = {"gloo": dist.is_gloo_available, "nccl": dist.is_nccl_available} if dist.is_available() else {}
    return ", ".join(name for name, found in there.items() if found()) or "none (torchrun cannot be used)"


def _steps_in_c() -> str:
    """Whether small dense models are trained by compiled steps."""
    if library() is not None:
        return "yes"
    if not COMPILED.exists():
        return "no: install polycentric again with a C compiler (cc), and small models are up to twice as fast"
    return "no: this processor has no AVX-512, or what was compiled is of another version"


def _far_from_looped(executor: Any, dtype: Any) -> float:
    """How far a round of an executor is from that of the plainest one."""
    from .. import fedavg, load, run

    federation = load("digits", clients=8)
    how: dict[str, Any] = {"rounds": 1, "dtype": dtype, "fine_tune": 0}
    runs = [run(fedavg(lr=0.1), federation, executor=name, **how) for name in ("looped", executor)]
    return float((runs[0].state.centers["model"] - runs[1].state.centers["model"]).abs().max())


def _headline(recipe: Any) -> str:
    page = sys.modules[recipe.__module__].__doc__ or ""
    first = page.strip().splitlines()[0]
    return first.partition(": ")[2] or first
