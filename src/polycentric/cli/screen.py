"""What the command shows: progress, tables, and numbers a person can read."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.segment import Segment
from rich.table import Table

from ..report.tables import bytes_ as bytes_
from ..runs.loop import Callback, Run
from ..runs.metrics import is_share
from ..runs.paired import base_of, leading


class Printable(Console):
    """A console for words of others: of their codes that a terminal would obey, none reaches it."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """The same, but for letters that cannot be printed."""
        for segment in super().render(renderable, options):
            whole = segment.control or segment.text == "\n" or segment.text.isprintable()
            yield segment if whole else Segment(printable(segment.text), segment.style)


# What is shown are names and paths of the user's, in which [brackets] and :colons: mean nothing.
stderr = Printable(stderr=True, markup=False, emoji=False, highlight=False)
stdout = Printable(markup=False, emoji=False, highlight=False)


def printable(text: str) -> str:
    """A text without codes that a terminal would obey; lines stay lines.

    >>> printable("a\\x1b[31mb\\r\\nc")
    'a?[31mb\\nc'
    """
    return "".join(c if c.isprintable() or c in "\n\t" else "?" for c in text.replace("\r\n", "\n"))


def write(text: str) -> None:
    """Lines on stdout as they are, but printable."""
    print(printable(text), end="" if text.endswith("\n") else "\n")


def say(line: str) -> None:
    """One line on stderr, which the terminal may wrap and nobody else."""
    stderr.print(line, soft_wrap=True)


def tell(value: Mapping[str, Any]) -> None:
    """One JSON object on stdout; what is not finite is null."""
    print(json.dumps(_strict(value), allow_nan=False))


def _strict(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _strict(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


class Bar(Callback):
    """A bar over rounds with loss, mean and worst-decile accuracy, and bytes."""

    sees_kept = False

    def __init__(self, bar: Progress, title: str, rounds: int) -> None:
        self.bar, self.task = bar, bar.add_task(title, total=rounds, numbers="")

    def on_start(self, run: Run) -> None:
        """Where it goes on from."""
        self.bar.update(self.task, completed=run.state.round)

    def on_round(self, run: Run, trips: Any) -> None:
        """One more."""
        self.bar.update(self.task, completed=run.state.round)

    def on_evaluation(self, run: Run, row: dict[str, Any]) -> None:
        """The newest numbers."""
        self.bar.update(self.task, numbers=_numbers(row))


def _bar(disable: bool = False) -> Progress:
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TextColumn("{task.fields[numbers]}", markup=False),
        TimeRemainingColumn(compact=True),
        console=stderr,
        transient=True,
        disable=disable,
    )


@contextmanager
def progress(title: str, rounds: int, quiet: bool = False) -> Iterator[tuple[Callback, ...]]:
    """A bar on stderr, and the time left; nothing where nobody would see it."""
    if quiet or not stderr.is_terminal:
        yield ()
        return
    with _bar() as bar:
        yield (Bar(bar, title, rounds),)


@contextmanager
def counting(title: str, total: int, quiet: bool = False) -> Iterator[Any]:
    """A bar over the cells of a table."""
    with _bar(disable=quiet or not stderr.is_terminal) as bar:
        task = bar.add_task(title, total=total, numbers="")

        def told(done: int, total: int, summary: dict[str, Any]) -> None:
            shown = "diverged" if "diverged" in summary else _score(summary.get("metrics", {}))
            shown = f"waiting for {summary['waiting']}" if "waiting" in summary else shown
            bar.update(task, completed=done, numbers=f"{summary.get('method', '')} seed {summary.get('seed')} {shown}")

        yield told


def _score(metrics: Mapping[str, Any]) -> str:
    name = leading(metrics)
    value = metrics.get(name)
    return "" if value is None else f"{value:.1%}" if is_share(name) else f"{base_of(name)} {value:.4g}"


def _numbers(row: dict[str, Any]) -> str:
    parts = [f"{word} {row[name]:{form}}" for word, name, form in _WATCHED if row.get(name) is not None]
    return "  ".join([*parts, f"up {bytes_(row['bytes_up'])}"])


_WATCHED = (
    ("loss", "micro_loss", ".3f"),
    ("mean", "macro_accuracy", ".1%"),
    ("worst tenth", "worst_decile_accuracy", ".1%"),
    ("mAP", "pooled_map50", ".1%"),
    ("epsilon", "epsilon", ".2f"),
)


def titled(title: str, *left: str, right: Iterable[str] = ()) -> Table:
    """An empty table: columns of words, then columns of numbers."""
    table = Table(*left, title=title, title_justify="left")
    for heading in right:
        table.add_column(heading, justify="right")
    return table


def summary_table(summary: dict[str, Any]) -> Table:
    """The end of a run: every score before training, in use, and after fine-tuning."""
    columns = [(key, title) for key, title in _COLUMNS if summary.get(key)]
    title = f"{summary['method']} on {summary['data']}, {summary['clients']} clients"
    table = titled(title, "metric", right=[shown for _, shown in columns])
    table.columns[0].overflow = "fold"
    for name in summary["metrics"]:
        if name == "clients_without_examples" and not summary["metrics"][name]:
            continue
        percent = is_share(name)
        values = [summary[key].get(name) for key, _ in columns]
        table.add_row(name, *("-" if v is None else f"{v:.2%}" if percent else f"{v:.4g}" for v in values))
    return table


_COLUMNS = (
    *(("initial", "before training"), ("metrics", "in use"), ("personalised", "after fine-tuning")),
    *(("known", "clients of the run"), ("newcomers", "newcomers")),  # of `evaluate`
)
