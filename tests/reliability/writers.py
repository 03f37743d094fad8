"""Two at once on one run, sweep or comparison: does exactly one write, and is the result that of one alone?

    python tests/reliability/writers.py 40 --seed 0            40 pairs
    python tests/reliability/writers.py 40 --seed 0 --only 7   one of them again, with what both said

    resume    of a run that was killed, its dead owner's lock there or not: one goes on, the other is refused in one
              line that names process and host; who comes when all is done says so
    run       into one folder: one begins, the other is refused in one line
    sweep     over the same cells, compare: both end, every cell is run once, and both tables are the same
    killed    a sweep of two, one of them killed: the other takes over what it left

Both are started at nearly the same time, and every touch of a file takes a random while, so that they meet anywhere.
What a pair leaves must be to the bit what one alone leaves, and the log of every run must show one writer at a time.
"""

from __future__ import annotations

import io
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from net import differences
from reliability.forked import LITTLE, Child, Ended, counted, dice_of, found_in, spread, start, warm
from reliability.kills import Touches

KINDS = ("resume", "sweep", "run", "resume", "compare", "resume", "killed")
RUN = ["fesem", *LITTLE, "--rounds", "4", "--checkpoint-every", "1", "--set", "k=2"]
COMPARE = ["compare", "nofed", "fedavg", *LITTLE, "--rounds", "2", "--seeds", "2", "--checkpoint-every", "1", "--json"]
SWEEP = """
method = "fedavg"
data = "digits"
partition = "dirichlet=1+sample=240"
clients = 4
model = "logistic"
executor = "looped"
device = "cpu"
rounds = 2
fine_tune = 0
checkpoint_every = 1
[grid]
seed = [0, 1]
"set.lr" = [0.05, 0.1]
"""
WRITES = r"error: .* is being written by process (\d+) on host \S+ since \S+: wait for it, or end it; .*"
BEGINS = r"error: .* (exists already and is not overwritten|is another run's by now): .*choose another --out.*"


def words_of(kind: str, root: Path, folder: Path) -> list[str]:
    """What both type."""
    if kind == "resume":
        return ["resume", str(folder), "--quiet"]
    if kind == "run":
        return ["run", *RUN, "--out", str(folder)]
    if kind == "compare":
        return [*COMPARE, "--out", str(folder)]
    return ["sweep", str(root / "sweep.toml"), "--out", str(folder), "--quiet", "--json"]


def slower(dice: random.Random) -> Callable[[], None]:
    """Every touch of a file takes a random while, of some milliseconds at most."""

    def install() -> None:
        def delayed(function: Callable[..., Any]) -> Callable[..., Any]:
            def call(*given: Any, **named: Any) -> Any:
                time.sleep(dice.choice((0, 0, 0.001, 0.01)))
                return function(*given, **named)

            return call

        for name in ("replace", "unlink", "mkdir"):
            setattr(os, name, delayed(getattr(os, name)))
        io.open = delayed(io.open)  # type: ignore[assignment]

    return install


def runs_in(folder: Path) -> dict[str, Any]:
    """What was left in every run of a folder, or in the run that it is."""
    inside = [folder] if (folder / "config.json").is_file() else sorted(p for p in folder.iterdir() if p.is_dir())
    return {path.name if path != folder else "run": found_in(path) for path in inside}


def pair(number: int, seed: int, root: Path, alone: dict[str, Any]) -> dict[str, Any]:
    """Two at once: how each ended, and what is wrong."""
    dice, kind, folder = dice_of(seed, number), KINDS[number % len(KINDS)], root / f"pair {number}"
    if kind == "resume":
        shutil.copytree(root / "begun", folder)
        if dice.random() < 0.5:
            (folder / "lock.json").unlink()
    words, children = words_of(kind, root, folder), list[Child]()
    for which in range(2):
        children.append(start(words, root / f"said {number} {which}", slower(dice_of(seed, number, which))))
        time.sleep(dice.choice((0, 0, 0.01, 0.1, 0.3)))
    if kind == "killed":
        time.sleep(dice.uniform(0, alone["seconds"]))
        children[dice.randrange(2)].kill()
    ended = [child.wait() for child in children]
    wrong = badly_ended(kind, ended, children)
    if not wrong:
        moved = differences(alone[kind], runs_in(folder))
        wrong = f"{len(moved)} results have moved: {'; '.join(moved[:3])}" if moved else mixed(folder, kind == "killed")
    said = [f"{words[0]}, process {c.pid}: {e.code} {e.err.strip()}" for c, e in zip(children, ended, strict=True)]
    refused, waited = (sum(word in e.err for e in ended) for word in ("is being written by", "note: waiting for"))
    return {"number": number, "kind": kind, "wrong": wrong, "said": said, "refused": refused, "waited": waited}


def badly_ended(kind: str, ended: list[Ended], children: list[Child]) -> str:
    """What is wrong with how the two ended; empty: nothing."""
    good, codes = [one for one in ended if one.code == 0], [one.code for one in ended]
    if kind == "killed":
        return "" if good and set(codes) <= {0, -signal.SIGKILL} else f"they ended with {codes}: {ended[0].err}"
    if kind in ("sweep", "compare"):
        if len(good) < 2:
            return f"they ended with {codes}: {' '.join(one.last for one in ended)}"
        if any(not line.startswith("note: ") for one in ended for line in one.err.splitlines()):
            return f"more than notes: {ended[0].err} {ended[1].err}"
        return "" if ended[0].out == ended[1].out else "they show different tables"
    if not good or (kind == "run" and len(good) == 2):
        return f"{len(good)} of the two wrote: {ended[0].last} {ended[1].last}"
    for one, other in zip(ended, reversed(children), strict=True):
        if one.code == 0:
            continue
        line = one.err.rstrip("\n")
        writes = re.fullmatch(WRITES, line)
        if one.code != 2 or not (writes or (kind == "run" and re.fullmatch(BEGINS, line))):
            return f"it was not refused in one line with process and host, but ends with {one.code}: {line}"
        if writes and int(writes[1]) != other.pid:
            return f"it names process {writes[1]}, and the other is {other.pid}"
    return ""


def mixed(folder: Path, several: bool) -> str:
    """What a run's log shows of two that write at once, or of a cell that was run twice; empty: nothing."""
    for log in folder.rglob("log.txt"):
        lines = [line[21:] for line in log.read_text("utf-8").splitlines()]
        ends = [line for line in lines if line.startswith("ended after round")]
        if len(ends) != 1 and not (several or any("resumed" in line for line in lines)):
            return f"{log} shows {len(ends)} ends: {lines}"
        open_ones = 0
        for line in lines:
            open_ones += line.startswith("resumed after") - line.startswith("ended after")
            if open_ones > 1 and not any("taken over" in other for other in lines):
                return f"{log} shows two writers at once: {lines}"
    return ""


def undisturbed(root: Path) -> dict[str, Any]:
    """What every command leaves that is typed once and alone; and a run that was killed in its third round."""
    (root / "sweep.toml").write_text(SWEEP, "utf-8")
    found: dict[str, Any] = {}
    for kind in ("run", "compare", "sweep"):
        began, folder = time.monotonic(), root / f"alone {kind}"
        ended = start(words_of(kind, root, folder), root / f"said {kind}").wait()
        assert ended.code == 0, f"{kind} does not run: {ended.err}"
        found |= {kind: runs_in(folder), "seconds": time.monotonic() - began}
    aim = {"signal": signal.SIGKILL, "at": "after rename round-N.json", "nth": 2}
    folder = root / "begun"
    ended = start(["run", *RUN, "--out", str(folder)], root / "said begun", Touches(folder, aim).install).wait()
    assert ended.code == -signal.SIGKILL, f"it was not killed: {ended}"
    return found | {"resume": found["run"], "killed": found["sweep"]}


def writers(n: int, seed: int = 0, jobs: int = 1, only: int | None = None) -> dict[str, Any]:
    """How many of n pairs left what one alone leaves, and which did not."""
    began, root = time.monotonic(), Path(tempfile.mkdtemp(prefix="writers-"))
    try:
        warm(root)
        alone = undisturbed(root)
        numbers = range(n) if only is None else [only]
        found = spread(lambda number: pair(number, seed, root, alone), numbers, root, jobs)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    again = f"python tests/reliability/writers.py {n} --seed {seed} --only"
    bad = [
        {"name": one["kind"], "wrong": one["wrong"], "said": one["said"], "again": f"{again} {one['number']}"}
        for one in found
        if one["wrong"]
    ]
    return {
        "of": len(found),
        "good": len(found) - len(bad),
        "bad": bad,
        "refused": sum(one["refused"] for one in found),
        "waited": sum(one["waited"] for one in found),
        "kinds": Counter(one["kind"] for one in found),
        "seconds": round(time.monotonic() - began, 1),
        **({"told": found[0]["said"]} if only is not None else {}),
    }


def told(found: dict[str, Any]) -> str:
    """The counts for people."""
    return (
        f"{found['of'] - found['good']} of {found['of']} pairs were spoiled ({dict(found['kinds'])}); "
        f"{found['refused']} were refused with process and host, {found['waited']} waited; {found['seconds']:.0f} s"
    )


if __name__ == "__main__":
    sys.exit(counted(writers, "pairs", 1, told))
