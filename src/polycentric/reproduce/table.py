"""A paper's table as data: rows with the settings that make them, and claims that hold or do not."""

from __future__ import annotations

import json
import math
import re
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..errors import UsageError
from ..report.figure import Panel, grid
from ..runs.grid import ProgressCallback, digest, finished, run_cells, run_dir
from ..runs.settings import Settings

# From a run's summary; NaN where it was not reached. `run_dir` is where the run lies now, for `history` to read.
Measure = Callable[[dict[str, Any]], float]
Values = Mapping[str, list[float]]  # setting -> one measurement for each seed
Verdict = tuple[bool | None, str]  # (holds, with which numbers); None: cannot be told
OFTEN = 8  # a note that more rows than this share is said once, below the table
BY_HAND = re.compile(r"^(?=!\[|## Notes)", re.MULTILINE)  # where captions and notes begin


@dataclass(frozen=True)
class Row:
    """One number of the paper, and how to measure ours."""

    setting: str
    settings: Mapping[str, Any]  # of the run, without the seed; rows of equal settings share their runs
    paper: float | None = None
    measure: Measure | None = None  # None: the table's
    what: str = ""  # empty: the table's
    data: str = ""  # empty: the table's
    # Where the number stands on the page: rows with a `column` make wide tables, one for each section.
    section: str = ""
    line: str = ""
    column: str = ""


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper, and what decides whether ours agrees."""

    text: str
    judge: Callable[[Values], Verdict]


@dataclass(frozen=True)
class Runs:
    """What was run: by a row's setting the folders of its seeds, and what was measured there."""

    folders: Mapping[str, Sequence[Path]]
    values: Values

    def __getitem__(self, setting: str) -> Sequence[Path]:
        return self.folders.get(setting, ())

    def numbers(self, setting: str) -> Sequence[float]:
        """What was measured of a row; nothing where it was not run."""
        return self.values.get(setting, ())

    def first(self, setting: str) -> Path:
        """The folder of the first seed that was run; a UsageError where there is none."""
        if not self[setting]:
            raise UsageError(f"{setting} was not run")
        return self[setting][0]


# Draws a figure to a file, or nothing and says False; a UsageError where runs, data or checkpoints are not here.
Draw = Callable[[Path, Runs], object]


def figure(panels: Callable[[Runs], Sequence[Sequence[Panel]]]) -> Draw:
    """A figure of panels in rows."""
    return lambda path, runs: grid(path, panels(runs))


@dataclass(frozen=True)
class Table:
    """A table of a paper."""

    name: str
    title: str
    reference: str
    data: str  # what the numbers were measured on; a stand-in says so
    what: str  # the quantity in the cells
    measure: Measure
    rows: tuple[Row, ...]
    claims: tuple[Claim, ...] = ()
    seeds: int = 5
    holds: Callable[[float, float], bool | None] = field(default=lambda paper, ours: None)
    figures: Mapping[str, Draw] = field(default_factory=dict)  # by the names of their files
    shares: str = ""  # the table whose runs are also its own; empty: it has its own


@dataclass(frozen=True)
class Result:
    """A row after it was run; what NAME.json lists."""

    what: str
    setting: str
    data: str
    paper: float | None
    ours_mean: float | None
    ours_std: float | None
    each: list[float | None]  # of every seed; None: not reached, or diverged
    seeds: int
    holds: bool | None
    note: str
    command: str


@dataclass(frozen=True)
class Written:
    """A table's page, and the rows that some runs are missing of."""

    path: Path
    missing: tuple[str, ...]


def reproduce_table(
    table: Table,
    out: Path,
    runs: Path,
    *,
    seeds: int | None = None,
    only: Sequence[str] = (),
    cached: bool = False,
    keep: bool = False,
    device: str = "auto",
    jobs: int = 1,
    bar: Callable[[int], AbstractContextManager[ProgressCallback]],
) -> Written:
    """Run every cell that was not run before, and write NAME.md for people and NAME.json for programs.

    `only` runs some rows, `cached` none. The page always has every row, from all runs that are finished, and says
    what is missing. A page that has more runs than are here is not written over; captions and notes on it stay. With
    `keep` such rows keep the numbers that the page has, from another machine or an earlier day, its figures stay, and
    its claims are judged anew.
    """
    asked = [row for row in table.rows if not only or any(word.lower() in row.setting.lower() for word in only)]
    if not asked:
        there = "; ".join(row.setting for row in table.rows)
        raise UsageError(f"no row of {table.name} has a setting with {' or '.join(only)}; there are: {there}")
    wanted, parent = seeds or table.seeds, runs / (table.shares or table.name)

    def cell(row: Row, seed: int) -> Settings:
        return Settings.of({**row.settings, "seed": seed, "device": device})

    to_run = {} if cached else {digest(c): c for k in range(wanted) for c in (cell(row, k) for row in asked)}
    cells = {  # seeds beyond those asked for are shown where they are there
        row.setting: [
            c for k in range(max(wanted, table.seeds)) if finished(c := cell(row, k), parent) or digest(c) in to_run
        ]
        for row in table.rows
    }
    before = _known(out / f"{table.name}.json") if keep else {}
    if not any(cells.values()) and not any(before.values()):
        raise UsageError(
            f"no run of {table.name} is finished in {parent}, so there is nothing to write: leave out --cached"
        )
    if not keep:
        _nothing_lost(table, out, parent, {setting: len(mine) for setting, mine in cells.items()})
    if not cached:
        every = list(to_run.values())  # a seed of all rows, then the next
        if jobs == 1:  # data are read once for their cells
            every.sort(key=lambda c: (c.data, c.partition or "", c.seed))
        with bar(len(every)) as told:
            run_cells(every, parent, jobs=jobs, progress=told)
    values: dict[str, list[float]] = {}
    folders: dict[str, list[Path]] = {}
    for row in table.rows:
        measure = row.measure or table.measure
        ended = [(s, run_dir(c, parent)) for c in cells[row.setting] if (s := finished(c, parent)) is not None]
        values[row.setting] = [measure(s | {"run_dir": str(d)}) if "metrics" in s else math.nan for s, d in ended]
        folders[row.setting] = [folder for _, folder in ended]
    kept = {setting: then for setting, then in before.items() if len(then) > len(values.get(setting, then))}
    values |= kept
    results = [_result(table, row, values[row.setting], wanted) for row in table.rows]
    out.mkdir(parents=True, exist_ok=True)
    listed = json.dumps([asdict(result) for result in results], indent=1)
    (out / f"{table.name}.json").write_text(listed + "\n", encoding="utf-8")
    draws = {} if kept else table.figures  # a figure of some of the runs would lose the others
    drawn = [name for name, draw in draws.items() if _drawn(draw, out / name, Runs(folders, values))]
    path = out / f"{table.name}.md"
    path.write_text(page(table, results, values) + _by_hand(path, drawn), encoding="utf-8")
    return Written(path, tuple(result.setting for result in results if result.seeds < wanted))


def _nothing_lost(table: Table, out: Path, parent: Path, numbers: Mapping[str, int]) -> None:
    """Refuse to write over a page that has runs which are not here."""
    path = out / f"{table.name}.json"
    try:
        before = {row["setting"]: row["seeds"] for row in json.loads(path.read_text(encoding="utf-8"))}
    except (OSError, ValueError, KeyError, TypeError):
        return  # no page yet, or none of ours
    lost = [setting for setting, n in numbers.items() if before.get(setting, 0) > n]
    if lost:
        raise UsageError(
            f"{path} has more runs than {parent} of {'; '.join(lost[:3])}{' and others' if len(lost) > 3 else ''}: "
            "writing it would lose them. Write elsewhere with --out, run all rows with as many --seeds, or --keep them"
        )


def _known(path: Path) -> dict[str, list[float]]:
    """What a page has of every row, seed by seed; nothing where there is none."""
    try:
        return {
            row["setting"]: [math.nan if each is None else float(each) for each in row["each"]]
            for row in json.loads(path.read_text(encoding="utf-8"))
        }
    except FileNotFoundError:
        return {}
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path} does not list every seed of every row, so nothing can be kept of it") from error


def _by_hand(path: Path, figures: Sequence[str]) -> str:
    """What people wrote below the claims of a page, after figures that it does not show yet."""
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    begins = BY_HAND.search(text)
    told = f"What figures show, settings and doubts are told in `docs/results/{path.name}`."
    kept = text[begins.start() :] if begins else f"## Notes\n\n- {told}\n"
    return "\n" + "".join(f"![{name}]({name})\n\n" for name in figures if f"({name})" not in kept) + kept


def _drawn(draw: Draw, path: Path, runs: Runs) -> bool:
    """Draw a figure, or leave it as it was; whether it is there."""
    try:
        draw(path, runs)
    except UsageError:
        pass  # it was not run, or by an older version, or its data or checkpoint are not here
    return path.is_file()


def _result(table: Table, row: Row, values: list[float], wanted: int) -> Result:
    reached = [value for value in values if not math.isnan(value)]
    notes = []
    if len(values) < wanted:
        notes.append(f"{wanted - len(values)} of {wanted} seeds not run")
    if len(reached) < len(values):
        lost = f"{len(values) - len(reached)} of {len(values)} seeds"
        far = "were not there" if "target" in row.settings else "have no number (not reached, or diverged)"
        others = f"; the others: {statistics.fmean(reached):.4g} on average" if reached else ""
        notes.append(f"{lost} {far} after {row.settings['rounds']} rounds{others}")
    mean = statistics.fmean(reached) if reached and len(reached) == len(values) else None
    std = statistics.stdev(reached) if mean is not None and len(reached) > 1 else None
    holds = table.holds(row.paper, mean) if row.paper is not None and mean is not None else None
    command = f'polycentric reproduce {table.name} --only "{row.setting}"'
    note = "; ".join(notes)
    what, data = row.what or table.what, row.data or table.data
    each = [None if math.isnan(value) else value for value in values]
    return Result(what, row.setting, data, row.paper, mean, std, each, len(values), holds, note, command)


def page(table: Table, results: list[Result], values: Values) -> str:
    """The table for people, in Markdown, as far as its claims."""
    lines = [f"# {table.title}", "", f"{table.reference}", "", f"Data: {table.data}.", ""]
    lines += [f"Made by `polycentric reproduce {table.name}`. {table.what[0].upper()}{table.what[1:]}:", ""]
    placed = {row.setting: row for row in table.rows if row.column}
    plain = [result for result in results if result.setting not in placed]
    ran = [result for result in plain if result.seeds]
    often = {note: n for note, n in Counter(result.note for result in ran).items() if note and n > OFTEN}
    if plain:
        lines += ["| setting | paper | ours (mean ± std) | seeds | holds | note |", "|---|---|---|---|---|---|"]
    for r in ran:
        note = "" if r.note in often else r.note
        lines.append(f"| {r.setting} | {_paper(r)} | {_ours(r)} | {r.seeds} | {_word(r.holds)} | {note} |")
    lines += ["", *(f"- {n} of these {len(ran)} rows: {note}." for note, n in often.items())] if often else []
    if left := [result.setting for result in plain if not result.seeds]:
        count = Counter(setting.partition(":")[0] for setting in left)
        alone = {setting.partition(":")[0]: setting for setting in left}
        rows_of = (alone[head] if n == 1 else f"{head} ({n} rows)" for head, n in count.items())
        lines += ["", f"Not run: {'; '.join(rows_of)}."]
    lines += _wide([(placed[result.setting], result) for result in results if result.setting in placed])
    if table.claims:
        lines += ["", "## Claims", ""]
    for claim in table.claims:
        holds, why = claim.judge(values)
        lines.append(f"- {claim.text} **{_word(holds, 'cannot be told')}**: {why}")
    return "\n".join(lines) + "\n"


def _wide(placed: list[tuple[Row, Result]]) -> list[str]:
    """A table for each section: a line for each method, two columns (paper, ours) for each quantity."""
    lines: list[str] = []
    for section in dict.fromkeys(row.section for row, _ in placed):
        mine = {(row.line, row.column): result for row, result in placed if row.section == section}
        columns = list(dict.fromkeys(column for _, column in mine))
        told = {column for (_, column), r in mine.items() if r.paper is not None}
        heads = [head for c in columns for head in ([f"{c}: paper", "ours"] if c in told else [c])]
        lines += ["", f"### {section}", "", f"| | {' | '.join(heads)} | seeds |", "|---" * (len(heads) + 2) + "|"]
        notes = []
        for line in dict.fromkeys(line for line, _ in mine):
            found = {column: mine.get((line, column)) for column in columns}
            shown = []
            for column, r in found.items():
                shown += [_paper(r)] if column in told else []
                shown.append("-" if r is None else _ours(r, 1 if abs(r.ours_mean or 0) >= 1 else 2))
            lines.append(f"| {line} | {' | '.join(shown)} | {min(r.seeds for r in found.values() if r is not None)} |")
            said = {column: r.note.split("; ") for column, r in found.items() if r is not None}
            common = [part for part in next(iter(said.values())) if part and all(part in own for own in said.values())]
            notes += [f"{line}: {'; '.join(common)}"] if common else []
            rest = {c: "; ".join(part for part in own if part not in common) for c, own in said.items()}
            notes += [f"{line}, {c}: {note}" for c, note in rest.items() if note]
        lines += ["", *(f"- {note}" for note in notes)] if notes else []
    return lines


def _paper(r: Result | None) -> str:
    return "-" if r is None or r.paper is None else f"{r.paper:g}"


def _ours(r: Result, decimals: int | None = None) -> str:
    if r.ours_mean is None:
        return "not reached" if r.seeds else "not run"
    mean, spread = (".4g", ".3g") if decimals is None else (f".{decimals}f",) * 2
    return f"{r.ours_mean:{mean}}" + (f" ± {r.ours_std:{spread}}" if r.ours_std is not None else "")


def _word(holds: bool | None, unknown: str = "") -> str:
    return unknown if holds is None else "holds" if holds else "does not hold"
