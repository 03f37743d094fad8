"""All figures of docs/reliability.md by one command: `make reliability` (bounded to 90 minutes), or `--short`.

Every figure is made of parts that run in processes of their own, as many beside each other as there are cores. A part
that takes too long is ended, and the page says of how many cases a figure is made. Seeds are the numbers of the parts,
so that whatever goes wrong can be seen again; what went wrong is listed below the table.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from inspect import signature
from itertools import chain
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/reliability.md"
Found = dict[str, Any]  # of, bad: [what to look at], and told: more words

# figure: what it says, what is wanted, (parts, cases of each) in the long form and in the short one
FIGURES: dict[str, tuple[str, str, tuple[int, int], tuple[int, int]]] = {
    "kills": (
        "runs killed at random and named moments, every method, in memory, on disk and with two ranks: bit-identical "
        "after resuming",
        "300 of 300",
        (5, 60),
        (1, 12),
    ),
    "writers": ("two writers on one run, sweep or comparison: spoiled", "0", (2, 20), (1, 4)),
    "damaged": (
        "damaged files of interrupted and finished runs: tracebacks, hangs, or other results without a word",
        "0 of 3,000",
        (12, 250),
        (1, 60),
    ),
    "edited": ("edited settings, environments and manifests: other bits without a word", "0", (1, 0), (1, 20)),
    "forged": ("forged folders with right digests: tracebacks or hangs", "0 of 2,000", (8, 250), (1, 40)),
    "hostile": (
        "hostile settings and files: tracebacks, hangs, more than 2 GB, or numbers without meaning",
        "0 of 30,000",
        (30, 1000),
        (1, 300),
    ),
    "power": ("states that a power cut may leave of a run: not resumed", "0, all enumerated", (2, 0), (1, 40)),
    "attackers": (
        "2 of 11 clients hostile, 16 attacks, IID and Dirichlet(0.3): within 3 points of the clean mean, the best rule",
        "16 and 16",
        (2, 16),
        (0, 0),
    ),
    "schedules": (
        "a federation with letters and replies lost, doubled and late, nodes and server killed, disks full, in one "
        "process and a time of its own: schedules that break a rule",
        "0 of 2,000",
        (8, 250),
        (1, 22),
    ),
    "lies": (
        "2 of 11 clients send what is no model, or one that harms: runs with the mean that do not end, or not finite; "
        "with robust rules, more than 10 % from the mean of the honest",
        "0 of 13 and of 13 for each rule",
        (5, 28),
        (1, 14),
    ),
    "fuzz": (
        "fuzzed replies, messages and node states: errors that get out, hangs, anything written elsewhere",
        "0 of 10,000",
        (5, 2000),
        (1, 300),
    ),
    "equal": (
        "every method and some shapes, really deployed to 4 nodes with TLS: other bits than a simulation",
        "0",
        (1, 50),
        (0, 0),
    ),
    "deployed": (
        "server, nodes and the engine's programs killed by `kill -9` at random and named moments of a real federation: "
        "bit-identical after going on",
        "20 of 20",
        (2, 10),
        (0, 0),
    ),
    "wires": (
        "wires between nodes and server of a real federation reset, closed, stalled one way or both, and slowed, then "
        "let through again: bit-identical, and ended in time",
        "12 of 12",
        (1, 12),
        (0, 0),
    ),
    "disks": (
        "disks of server and nodes of a real federation full, without room from a named write on, or failing once: "
        "said in one line, and bit-identical after room was made",
        "8 of 8",
        (1, 8),
        (0, 0),
    ),
    "hung": (
        "rounds of a real federation with a hung, a silent and a dead node: over the deadline and a second",
        "0",
        (1, 8),
        (0, 0),
    ),
    "intruders": (
        "unknown key, no TLS, wrong authority, replayed message, control from outside, oversize: let in",
        "0 of 6",
        (1, 6),
        (0, 0),
    ),
    "leaks": (
        "secrets, examples, words of errors and paths found in logs, runs and all that a server received, after "
        "failures; pickles and `torch.load` in the library",
        "0",
        (1, 1),
        (0, 0),
    ),
    "overhead": (
        "a round of FedAvg with 3 nodes, against the same bytes there and back by the engine alone",
        "10 % more",
        (1, 30),
        (0, 0),
    ),
}
ALONE = ("overhead", "hung")  # they measure time: nothing runs beside them
FIRST = ("kills", "power", "attackers", "deployed", "equal", "wires", "disks")  # they take longest


# -- one part, in a process of its own --------------------------------------------------------------------------------


def _kills(part: int, cases: int) -> Found:
    from reliability.kills import kills

    found = kills(cases, seed=part, jobs=1)
    bad = [f"{one['name']}: {one['wrong']} ({one['again']})" for one in found["bad"]]
    return {"of": found["of"], "bad": bad, "kills": found["kills"]}


def _writers(part: int, cases: int) -> Found:
    from reliability.writers import writers

    found = writers(cases, seed=part)
    return {"of": found["of"], "bad": [f"{one['name']}: {one['wrong']} ({one['again']})" for one in found["bad"]]}


def _damage(kind: str) -> Callable[[int, int], Found]:
    def counted(part: int, cases: int) -> Found:
        from reliability import damage

        os.fsync = lambda descriptor: None  # type: ignore[assignment]  # what is read is what was written
        with tempfile.TemporaryDirectory() as folder:
            scene = damage.Scene(Path(folder) / "scene")
            found = getattr(damage, kind)(cases or None, part, scene)
        return {"of": found.cases, "bad": found.bad}

    return counted


def _hostile(part: int, cases: int) -> Found:
    from reliability.hostile import hostile

    found = hostile(cases, 7, part * cases)
    return {"of": found.cases, "bad": [f"case {number} of seed 7: {what}" for number, what, _, _ in found.wrong]}


def _power(part: int, cases: int) -> Found:
    from reliability.power import ON_DISK, cut

    with tempfile.TemporaryDirectory() as folder:
        found = cut(cases or None, 0, Path(folder).resolve(), ON_DISK if part else [])
    return {"of": found.cases, "bad": found.bad}


def _attackers(part: int, cases: int) -> Found:
    from polycentric.reproduce.hostile import held

    kind = ("IID", "Dirichlet(0.3)")[part]
    stood = held(kind)
    return {"of": 16, "bad": [f"{kind}: {16 - stood} attacks cost more"] if stood < 16 else [], "lost": 16 - stood}


def _program(module: str, name: str = "", **keys: str) -> Callable[[int, int], Found]:
    """A part that is a program of its own, with the part's number as its seed; of its counts also `keys`."""

    def counted(part: int, cases: int) -> Found:
        count = getattr(import_module(f"reliability.{module}"), name or module)
        found = count(cases, **({"first": part * cases} if "first" in signature(count).parameters else {"seed": part}))
        bad = [f"{one['name']}: {one['wrong']} ({one['again']})" for one in found["bad"]]
        return {"of": found["of"], "bad": bad, **{mine: found[theirs] for mine, theirs in keys.items()}}

    return counted


PARTS: dict[str, Callable[[int, int], Found]] = {
    **{name: _program(name) for name in ("schedules", "fuzz", "lies", "intruders")},
    "equal": _program("equal", tensors="tensors"),
    "deployed": _program("deployed_kills"),
    "wires": _program("wires", longest="longest"),
    "disks": _program("disks", skipped="skipped"),
    "hung": _program("hung", longest="longest"),
    "leaks": _program("leaks", bytes="bytes"),
    "overhead": _program("overhead", more="more", work="work", ours="ours", bare="bare"),
    "kills": _kills,
    "writers": _writers,
    "hostile": _hostile,
    "power": _power,
    "attackers": _attackers,
    **{kind: _damage(kind) for kind in ("damaged", "edited", "forged")},
}


def one_part(figure: str, part: int, cases: int) -> None:
    """Run a part, and say what was found as the last line."""
    import torch

    torch.set_num_threads(1)
    found = PARTS[figure](part, cases)
    print("\n" + json.dumps(found))


# -- all of them ------------------------------------------------------------------------------------------------------


def told_by(figure: str, part: int, cases: int, until: float) -> Found:
    """What a part found, or that it did not end in time."""
    left = until - time.monotonic()
    if left <= 0:
        return {"of": 0, "bad": [], "late": 1}
    command = [sys.executable, str(Path(__file__)), "--part", figure, str(part), str(cases)]
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")])
    setting = os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "POLYCENTRIC_DEVICE": "cpu"}
    try:
        done = subprocess.run(command, env=setting, capture_output=True, text=True, timeout=left)
    except subprocess.TimeoutExpired:
        return {"of": 0, "bad": [], "late": 1}
    lines = done.stdout.splitlines()
    try:
        found: Found = json.loads(lines[-1])
    except (IndexError, ValueError):
        return {"of": 1, "bad": [f"part {part} of {figure} ended with {done.returncode}: {done.stderr[-300:]}"]}
    return found


def all_figures(short: bool, minutes: float, jobs: int, wanted: Collection[str]) -> dict[str, Found]:
    """Every figure from all its parts; the long ones begin first."""
    until = time.monotonic() + 60 * minutes
    plan = [
        (figure, part, cases)
        for figure, (_, _, long, brief) in FIGURES.items()
        if figure in wanted
        for parts, cases in [brief if short else long]
        for part in range(parts)
    ]
    plan.sort(key=lambda one: (one[0] in ALONE, one[0] not in FIRST))
    found: dict[str, list[Found]] = {figure: [] for figure in FIGURES}
    beside = [one for one in plan if one[0] not in ALONE]
    with ThreadPoolExecutor(jobs) as pool:
        told = chain(
            pool.map(lambda one: told_by(*one, until), beside),
            (told_by(*one, until) for one in plan[len(beside) :]),
        )
        for number, ((figure, part, _), one) in enumerate(zip(plan, told, strict=True), 1):
            found[figure].append(one)
            said = "not in time" if "late" in one else f"{one['of']} cases, {len(one['bad'])} bad"
            print(f"{number} of {len(plan)}: {figure} {part}: {said}", flush=True)
    keys = {figure: {key for one in each for key in one} - {"bad"} for figure, each in found.items()}
    return {
        figure: {key: sum(one.get(key, 0) for one in each) for key in keys[figure]}
        | {"bad": [case for one in each for case in one["bad"]]}
        for figure, each in found.items()
        if each
    }


def page(found: dict[str, Found], seconds: float, jobs: int) -> str:
    """The table for people."""
    lines = ["| figure | target | found |", "|---|---|---|"]
    wrong: list[str] = []
    for figure, one in found.items():
        what, target, *_ = FIGURES[figure]
        of, bad, late = one.get("of", 0), len(one["bad"]), one.get("late", 0)
        if figure == "kills":
            told = f"{of - bad} of {of}, killed {one.get('kills', 0)} times"
        elif figure == "deployed":
            told = f"{of - bad} of {of}"
        elif figure == "wires":
            told = f"{of - bad} of {of}, the longest {one.get('longest', 0):.0f} s with a deadline of 120 s"
        elif figure == "disks":
            told = f"{of - bad} of {of}, {one.get('skipped', 0)} not tried since no file system could be mounted"
        elif figure == "equal":
            told = f"{bad} of {of}, {one.get('tensors', 0):,} tensors compared"
        elif figure == "hung":
            told = f"{bad} of {of}, the longest {one.get('longest', 0)} s with a deadline of 4 s"
        elif figure == "leaks":
            told = f"{bad} of {of} that were looked for in {one.get('bytes', 0) / 1e6:.1f} MB"
        elif figure == "overhead":
            told = f"{100 * one.get('more', 0):+.0f} %: {one.get('ours', 0)} s, and {one.get('bare', 0)} s; "
            told += f"{100 * one.get('work', 0):+.0f} % of the processors' time"
        elif figure == "attackers":
            told = f"{of - one.get('lost', 0)} of {of} together, seed 0"
        else:
            told = f"{bad} of {of:,}"
        told += f"; {late} parts did not end in time" if late else ""
        lines.append(f"| {what} | {target} | {told} |")
        wrong += [f"- {figure}: {case}" for case in one["bad"]]
    where = f"Python {platform.python_version()}, {jobs} processes beside each other, {seconds / 60:.0f} minutes"
    return (
        "\n".join([*lines, "", f"Measured by `make reliability` ({where}).", *(["", *wrong] if wrong else [])]) + "\n"
    )


def main() -> int:
    """Measure, and write the section of the page that has the figures."""
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--short", action="store_true", help="a minute or two; nothing is written")
    asked.add_argument("--minutes", type=float, default=90.0, help="no part goes on beyond that")
    asked.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="parts beside each other")
    asked.add_argument("--out", type=Path, default=PAGE, help="the page whose table is replaced")
    asked.add_argument("--figure", action="append", choices=sorted(FIGURES), help="only this one; several allowed")
    asked.add_argument("--part", nargs=3, metavar=("FIGURE", "NUMBER", "CASES"), help="one part, as JSON")
    given = asked.parse_args()
    if given.part:
        one_part(given.part[0], int(given.part[1]), int(given.part[2]))
        return 0
    began = time.monotonic()
    found = all_figures(given.short, given.minutes, given.jobs, given.figure or list(FIGURES))
    table = page(found, time.monotonic() - began, given.jobs)
    print(table)
    if not given.short and not given.figure:
        text = given.out.read_text(encoding="utf-8")
        begin, end = text.index("## Figures"), text.index("## What the figures mean")
        given.out.write_text(f"{text[:begin]}## Figures\n\n{table}\n{text[end:]}", encoding="utf-8")
    return int(any(one["bad"] for one in found.values()))


if __name__ == "__main__":
    sys.exit(main())
