"""Runs that are killed and resumed: do they end with the very bits of a run that nobody disturbed?

    python tests/reliability/kills.py 300 --seed 0            300 runs, each killed one to three times
    python tests/reliability/kills.py 300 --seed 0 --only 17  one of them again, with what every command said; random
                                                              moments are then nearly, and touches exactly the same

Every method, its state in memory and on disk, some with options that remember more, some in two ranks. A run is
recorded once undisturbed: how long it takes, every touch of its folder, and what it leaves. Then it is killed with
SIGKILL, SIGTERM or SIGINT,

    at a random moment         a share of the undisturbed time
    before, after a touch      a file opened for writing, synced, renamed, linked, removed; a folder made
    amid one                   half of the text is written, half of the file that is to be synced is there

and continued as a user would: with `polycentric resume`, and where that is refused, as its one line says. In the end
every tensor of the last checkpoint, metrics.jsonl, all tables, the summary without its times, and the names of all
files must be those of the undisturbed run.
"""

from __future__ import annotations

import io
import json
import os
import random
import re
import shutil
import signal
import stat
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from net import METHODS, OWN, differences
from reliability.forked import LITTLE, Child, Ended, counted, dice_of, found_in, spread, start, together, warm

LITTLE = [*LITTLE, "--rounds", "4", "--checkpoint-every", "1"]
MORE = {  # what else must be gone on from
    "kept layers, disk": "fedavg --model mlp --set cut=private(dense*) --set select=uniform(n=3) --state disk",
    "last rows, disk": "fesem --set k=2 --set absent=last --set select=uniform(n=3) --state disk",
    "patience": "fedavg --valid 0.2 --patience 9 --set center=momentum(lr=1,beta=0.9)",
    "active": "fedavg --set select=active(n=3) --set center=adam(lr=0.01)",
    "churn, delays": "dpsgd --set select=churn(away=0.3,rounds=2) --set graph=ring --clock delays(jitter=0.2)",
    "held out, optimistic": "fesem --set k=2 --held-out 0.25 --optimistic",
    "attack, deadline": "fedavg --attack nan(share=0.25) --clock physical(deadline=0.3)",
    "private": "fedmes --set cells=overlap(u=1,v=1) --set privacy=gaussian(clip=1,noise=0.5)",
    "stacked": "fedprox --executor stacked --block 3 --set stragglers=0.5 --set epochs=3",
}
RANKS = {
    "two ranks": "fesem --set k=2 --block 1",
    "two ranks, disk": "fedavg --model mlp --set cut=private(dense*) --block 1 --state disk",
    "two ranks, patience": "ifca --set k=2 --block 1 --valid 0.2 --patience 9",
}
SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT)


Moment = dict[str, Any]  # signal, and either a time (seconds) or a touch (when, what, and which of them)


def cases() -> dict[str, list[str]]:
    """Every kind of run by its name: the words after `polycentric run`."""
    found = {name: [name, *OWN.get(name, ())] for name in METHODS}
    found |= {f"{name}, disk": [name, *OWN.get(name, ()), "--state", "disk"] for name in METHODS}
    return found | {name: words.split() for name, words in (MORE | RANKS).items()}


# -- in the child: every touch of a folder, and death at one -------------------------------------------------


class Touches:
    """Counts every touch of a folder, before, amid and after it, and dies at the one that is aimed at."""

    def __init__(self, folder: Path, aim: Moment | None = None, record: Path | None = None) -> None:
        self.folder, self.aim, self.record, self.count = str(folder), aim, record, Counter[str]()

    def install(self) -> None:
        """In place of what Python offers to change files with."""
        import atexit
        import builtins

        if self.record:
            atexit.register(lambda: self.record and self.record.write_text(json.dumps(self.count), "utf-8"))
        for name, verb in (("replace", "rename"), ("link", "link"), ("unlink", "remove"), ("mkdir", "make")):
            setattr(os, name, self._around(getattr(os, name), verb, target=name in ("replace", "link")))
        os.fsync = self._sync  # type: ignore[assignment]
        io.open = builtins.open = self._opening(io.open)  # type: ignore[assignment]

    def _at(self, when: str, what: str) -> bool:
        """Whether this is the moment."""
        self.count[f"{when} {what}"] += 1
        aim = self.aim
        return aim is not None and aim.get("at") == f"{when} {what}" and aim["nth"] == self.count[f"{when} {what}"]

    def _die(self) -> None:
        assert self.aim
        os.kill(os.getpid(), self.aim["signal"])

    def _touch(self, when: str, what: str) -> None:
        if self._at(when, what):
            self._die()

    def _called(self, path: str) -> str:
        """A file of the folder without its numbers; empty: it is no file of it."""
        if not path.startswith(self.folder):
            return ""
        name = re.sub(r"^[.](.*?)([.]\d+|[.]new)?[.]tmp$", r"\1", path.rpartition("/")[2])
        return re.sub(r"\d+", "N", re.sub(r"^lock-\w+", "lock-TOKEN", name if path != self.folder else "folder"))

    def _around(self, function: Callable[..., Any], verb: str, target: bool) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            name = self._called(os.fspath(given[1 if target else 0]))
            if not name:
                return function(*given, **named)
            self._touch("before", f"{verb} {name}")
            result = function(*given, **named)
            self._touch("after", f"{verb} {name}")
            return result

        return call

    def _sync(self, descriptor: int) -> None:
        """Nothing is synced, since nobody cuts the power; amid: half of a file that has no name yet is there."""
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        name = self._called(path)
        if name:
            self._touch("before", f"sync {name}")
            found = os.fstat(descriptor)
            ours = path.endswith(".tmp") and stat.S_ISREG(found.st_mode) and found.st_nlink == 1
            if ours and self._at("amid", f"sync {name}"):
                os.ftruncate(descriptor, found.st_size // 2)
                self._die()
            self._touch("after", f"sync {name}")

    def _opening(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(file: Any, mode: str = "r", *given: Any, **named: Any) -> Any:
            name = self._called(os.fspath(file)) if isinstance(file, str | Path) and set(mode) & set("wxa") else ""
            if not name:
                return function(file, mode, *given, **named)
            self._touch("before", f"open {name}")
            opened = function(file, mode, *given, **named)
            self._touch("after", f"open {name}")
            if isinstance(opened, io.TextIOWrapper):
                opened.write = self._writing(opened, name)  # type: ignore[method-assign]
            return opened

        return call

    def _writing(self, opened: Any, name: str) -> Callable[[str], int]:
        real = opened.write

        def write(text: str) -> int:
            if self._at("amid", f"write {name}"):
                real(text[: len(text) // 2])
                opened.flush()
                self._die()
            done: int = real(text)
            return done

        return write


# -- one run -------------------------------------------------------------------------------------------------


def typed(words: list[str], said: Path, touches: Touches, ranks: bool, moment: Moment | None = None) -> list[Ended]:
    """Type a command and, where the moment is a time, strike then; nobody waits long for a rank that never came."""
    words = [*words, "--wait", "10"] if ranks else words
    children: list[Child] = together(words, said, touches.install) if ranks else [start(words, said, touches.install)]
    if moment and "seconds" in moment:
        time.sleep(moment["seconds"])
        for child in children if moment["signal"] != signal.SIGKILL else children[moment["rank"] % len(children) :][:1]:
            child.kill(moment["signal"])  # Ctrl-C and torchrun reach all ranks, a lack of memory one
    return [child.wait() for child in children]


def undisturbed(name: str, root: Path) -> dict[str, Any]:
    """A run of its kind from its beginning to its end: its seconds, its touches, and what it left."""
    folder, said, began = root / f"whole {name}", root / f"said {name}", time.monotonic()
    touches = Touches(folder, record=root / f"touches {name}.json")
    ended = typed(["run", *LITTLE_OF[name], "--out", str(folder)], said, touches, name in RANKS)
    seconds = time.monotonic() - began
    assert not any(one.code for one in ended), f"{name} does not run: {ended}"
    assert touches.record
    return {"seconds": seconds, "touches": json.loads(touches.record.read_text("utf-8")), "found": found_in(folder)}


def drawn(dice: random.Random, whole: dict[str, Any], again: bool) -> Moment:
    """A moment to strike at; a resumed run is struck at the first touch of a kind, since it has fewer."""
    number = int(dice.choice(SIGNALS))
    if dice.random() < 1 / 3:
        return {
            "signal": number,
            "seconds": dice.uniform(0, whole["seconds"] * (0.6 if again else 1)),
            "rank": dice.randrange(2),
        }
    kind = dice.choice(sorted(whole["touches"]))
    return {"signal": number, "at": kind, "nth": 1 if again else dice.randint(1, whole["touches"][kind])}


def killed(number: int, seed: int, name: str, whole: dict[str, Any], root: Path) -> dict[str, Any]:
    """One run, killed and continued until it ends: how often it was killed, and what is wrong."""
    dice, folder = dice_of(seed, number), root / f"killed {number}"
    run = ["run", *LITTLE_OF[name], "--out", str(folder)]
    words, blows, struck, told = run, 1 + dice.choice((0, 0, 1, 2)), list[Moment](), list[str]()
    turn = 0
    while turn < 12:
        moment = drawn(dice, whole, bool(struck)) if len(struck) < blows and turn < 6 else None
        ranks = name in RANKS and (words is run or dice.random() < 0.5)  # a run goes on with any number of ranks
        ended = typed(words, root / f"said {number} {turn}", Touches(folder, moment), ranks, moment)
        codes = [one.code for one in ended]
        told.append(f"{words[0]}, {moment}: {codes} {ended[0].err.strip()}")
        if not any(codes) and words is run and not struck and turn == 0 and moment:  # ended before its time
            whole = whole | {"seconds": whole["seconds"] * 0.7}
            shutil.rmtree(folder)
            continue
        turn += 1
        if moment and any(codes):
            struck.append(moment)
        if wrong := mistake(ended, moment):
            break
        if not any(codes):
            moved = differences(whole["found"], found_in(folder))
            wrong = f"{len(moved)} results have moved: {'; '.join(moved[:3])}" if moved else ""
            break
        words, wrong = way(ended[0], words, run, folder)
        if wrong:
            break
    else:
        wrong = "it came to no end"
    return {"number": number, "name": name, "struck": struck, "wrong": wrong, "told": told}


def mistake(ended: list[Ended], moment: Moment | None) -> str:
    """What is wrong with how a command ended; empty: nothing."""
    allowed = {0, 2} | ({130, -moment["signal"]} if moment else set())
    allowed |= {1} if len(ended) > 1 else set()  # a rank ends so where another has failed
    for rank, one in enumerate(ended):
        if one.code not in allowed:
            return f"exit code {one.code}: {one.err.strip()[-300:]}"
        lost = one.code == 0 and "Exception ignored in" in one.err  # Python drops a Ctrl-C that comes in a finalizer
        if "Traceback" in one.err and not lost:
            return f"a traceback: {one.err.strip()[-300:]}"
        if one.code == 130 and not re.match("error: (rank 1: )?interrupted", one.last or "error: interrupted" * rank):
            return f"interrupted, it says: {one.last}"
        if "the same command again" in one.err:  # it would begin another run, or be refused
            return f"it does not tell the way: {one.last}"
    return ""


def way(ended: Ended, words: list[str], run: list[str], folder: Path) -> tuple[list[str], str]:
    """What a user types next, and what is wrong where a refusal does not say it."""
    resume = ["resume", str(folder), "--quiet"]
    if ended.code != 2:
        return (resume if folder.is_dir() and any(folder.iterdir()) else run), ""
    if f"if nobody writes {folder}, delete it" in ended.last:  # killed between a lock's creation and its first word
        (folder / "lock.json").unlink()
        return words, ""
    told = "polycentric run" if words is not run else "polycentric resume"
    wrong = "" if told in ended.last else f"{words[0]} is refused, and does not tell the way: {ended.last}"
    return (run if words is not run else resume), wrong


# -- many ----------------------------------------------------------------------------------------------------

LITTLE_OF = {name: [words[0], *LITTLE, *words[1:]] for name, words in cases().items()}


def kills(n: int, seed: int = 0, jobs: int = 2, only: int | None = None) -> dict[str, Any]:
    """How many of n killed runs ended as if nobody had disturbed them, and which did not."""
    began, root = time.monotonic(), Path(tempfile.mkdtemp(prefix="kills-"))
    try:
        warm(root)
        order = dice_of(seed).sample(sorted(LITTLE_OF), len(LITTLE_OF))
        numbers = range(n) if only is None else [only]
        names = list(dict.fromkeys(order[number % len(order)] for number in numbers))
        wholes = dict(zip(names, spread(lambda name: undisturbed(name, root), names, root, jobs), strict=True))

        def one(number: int) -> dict[str, Any]:
            name = order[number % len(order)]
            return killed(number, seed, name, wholes[name], root)

        found = spread(one, numbers, root, jobs)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    again = f"python tests/reliability/kills.py {n} --seed {seed} --only"
    kept = ("name", "wrong", "told")
    bad = [{key: one[key] for key in kept} | {"again": f"{again} {one['number']}"} for one in found if one["wrong"]]
    struck = [moment for one in found for moment in one["struck"]]
    return {
        "of": len(found),
        "good": len(found) - len(bad),
        "bad": bad,
        "kills": len(struck),
        "signals": Counter(signal.Signals(moment["signal"]).name for moment in struck),
        "moments": Counter(moment.get("at", "a random moment") for moment in struck),
        "cases": len(names),
        "seconds": round(time.monotonic() - began, 1),
        **({"told": found[0]["told"]} if only is not None else {}),
    }


def told(found: dict[str, Any]) -> str:
    """The counts for people."""
    return (
        f"{len(found['moments'])} kinds of moments: {', '.join(sorted(found['moments']))}\n"
        f"{found['good']} of {found['of']} runs, killed {found['kills']} times ({dict(found['signals'])}) in "
        f"{found['cases']} kinds of runs, were resumed bit for bit; {found['seconds']:.0f} s"
    )


if __name__ == "__main__":
    sys.exit(counted(kills, "runs", 2, told))
