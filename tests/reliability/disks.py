"""Real federations whose disks are full, or fail: is it said in a line, and do they go on to the same bits?

    python tests/reliability/disks.py 8 --seed 0            8 runs, one disk each
    python tests/reliability/disks.py 8 --seed 0 --only 3   one of them again, with what everybody said

`polycentric serve` and three `polycentric join` as processes of their own, with keys and TLS, on this machine. The
folder of the run and of the engine beside it, or a node's `--state`, is

    full      on a small file system of its own, which is filled amid the run (only where one may be mounted)
    ENOSPC    without room, from a named touch of a file on (see `kills.py`), until room is made
    EIO       on a disk that fails once, before, amid or after a touch

Whoever ends must do so with exit code 2 and one line that begins with "error:", and nobody shows a traceback. Then room
is made, and what has ended is typed again. The run must end with the record of a simulation, tensor by tensor: half a
file that was read as a whole one would give other bits. A server whose disk failed must leave all else as an
undisturbed one does; scores that a node could not tell meanwhile are missing, and that is all.
"""

from __future__ import annotations

import errno
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from reliability.deployed_kills import LONGEST, NAMES, NODES, ROUNDS, Place, Struck, alive, rounds_of
from reliability.forked import Ended, counted, dice_of, warm
from reliability.kills import Touches

CASES = (  # whose disk, what it is, and the method
    ("server", "full", "fedavg"),
    ("node", "ENOSPC", "lg-fedavg"),
    ("server", "ENOSPC", "fesem"),
    ("node", "full", "lg-fedavg"),
    ("server", "EIO", "dpa-sgd"),
    ("node", "EIO", "fedavg"),
    ("server", "ENOSPC", "fedmes"),
    ("server", "full", "lg-fedavg"),
)
AT_NODE = ("before open letters", "before sync kept", "amid sync kept", "before rename kept", "before open number")
NEEDS_ROOM = ("open", "sync", "write", "make", "link", "rename")  # what a full disk refuses
SMALL = 48  # MiB of a small file system
LONG = 20.0  # seconds without room, at most


class Failing(Touches):
    """A disk that fails at a touch of a folder: once, or, where it is full, until there is room again.

    Arguments:
        folder: that is touched.
        aim: at, nth and errno.
        full: a file elsewhere that is there as long as there is no room.
        struck: a file elsewhere that is made when it has failed.
    """

    def __init__(self, folder: Path, aim: dict[str, Any], full: Path, struck: Path) -> None:
        super().__init__(folder, aim)
        self.full, self.struck, self._open = full, struck, os.open
        self._what = ""

    def install(self) -> None:
        """Also in place of what opens files by their numbers."""
        super().install()
        real = os.open

        def opening(path: Any, flags: int, *given: Any, **named: Any) -> int:
            writes = flags & (os.O_WRONLY | os.O_RDWR) and isinstance(path, str | Path)
            if writes and (name := self._called(os.fspath(path))):
                self._touch("before", f"open {name}")
            return real(path, flags, *given, **named)

        os.open = opening  # type: ignore[assignment]

    def _called(self, path: str) -> str:
        return re.sub(r"^kept-.*", "kept", super()._called(path))

    def _at(self, when: str, what: str) -> bool:
        assert self.aim
        self._what = what
        if super()._at(when, what):
            return True
        lasting = self.aim["errno"] == errno.ENOSPC and when == "before" and what.split()[0] in NEEDS_ROOM
        return lasting and self.struck.exists() and self.full.exists()

    def _die(self) -> None:
        assert self.aim
        os.close(self._open(self.struck, os.O_WRONLY | os.O_CREAT))
        verb, _, name = self._what.partition(" ")
        number, words = self.aim["errno"], os.strerror(self.aim["errno"])
        if verb in ("sync", "write"):  # which know a number, and no name
            raise OSError(number, words)
        raise OSError(number, words, f"{self.folder}/{name}")


@contextmanager
def small_disk(folder: Path) -> Iterator[str]:
    """A file system of its own at a folder; gives why there is none, or nothing."""
    folder.mkdir(mode=0o700)
    words = ["mount", "-t", "tmpfs", "-o", f"size={SMALL}m,mode=0700", "polycentric-test", str(folder)]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=20)
        why = (done.stderr.strip().splitlines() or ["no reason"])[-1] if done.returncode else ""
    except (OSError, subprocess.TimeoutExpired) as error:
        why = str(error)
    try:
        yield why and f"no small file system can be mounted here: {why}"
    finally:
        for _ in range(0 if why else 50):
            if subprocess.run(["umount", str(folder)], capture_output=True, timeout=20).returncode == 0:
                break
            time.sleep(0.2)  # somebody is about to end


def fill(folder: Path, left: int) -> Path:
    """Take all room but a few bytes of a file system."""
    path = folder / "filling"
    with path.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(1 << 16))
    with path.open("ab", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(1 << 10))
    os.truncate(path, max(0, path.stat().st_size - left))
    return path


def mistake(who: str, ended: Ended) -> str:
    """What is wrong with how a command ended that could not write; empty: nothing."""
    if "Traceback" in ended.err + ended.out:
        return f"{who} shows a traceback: {ended.err.strip()[-400:]}"
    errors = [line for line in ended.err.splitlines() if line.startswith("error:")]
    if ended.code not in (0, 2):
        return f"{who} ends with {ended.code}: {ended.err.strip()[-300:]}"
    if ended.code and (len(errors) != 1 or not ended.last.startswith("error:")):
        return f"{who} does not say it in a line: {ended.err.strip()[-300:]}"
    if ended.code and "the output" in ended.last:
        return f"{who} names another file than the one that failed: {ended.last}"
    return ""


class Disks:
    """Runs of one place, in each of which one disk fails."""

    def __init__(self, place: Place, seed: int) -> None:
        self.place, self.seed, self.struck = place, seed, Struck(place, seed)
        self.told: list[str] = []

    def case(self, number: int) -> dict[str, Any]:
        """One run, until it has ended as it should, or not."""
        dice = dice_of("disks", self.seed, number)
        who, what, method = CASES[number % len(CASES)]
        self._all_here()
        self.struck.undisturbed(method)
        self.told, name, wrong = [], "", "it was not struck"
        for turn in range(4):  # a moment that does not come is drawn again
            if wrong == "it was not struck":
                self._all_here()
                folder = self.place.root / f"disk-{number}-{turn}"
                name, wrong = (self._full if what == "full" else self._failing)(who, what, method, folder, dice)
        skipped = wrong.startswith("no small file system")
        said = [line for text in self.told for line in text.splitlines() if line.startswith("error:")]
        return {
            "number": number,
            "name": f"{method}: {who}, {what}, {name}",
            "wrong": "" if skipped else wrong,
            "skipped": wrong if skipped else "",
            "said": said,
            "told": self.told,
        }

    def _all_here(self) -> None:
        """Start the nodes that are not there, until they listen to who tells them to stop."""
        for k in range(NODES):
            if k not in self.place.nodes:
                self.place.join(k)
                _until((self.place.states[k] / "engine" / "lock.json").exists, 30)

    def _failing(self, who: str, what: str, method: str, folder: Path, dice: random.Random) -> tuple[str, str]:
        """A disk that fails at a touch."""
        full, struck, out = folder.with_suffix(".full"), folder.with_suffix(".struck"), folder / "run"
        folder.mkdir()
        full.touch()
        code = getattr(errno, what)
        if who == "server":
            kinds = [k for k in sorted(self.struck.touches) if what == "EIO" or k.split()[1] in NEEDS_ROOM]
            kinds = [k for k in kinds if what == "EIO" or not k.startswith("after")]
            at = dice.choice(kinds)
            aim = {"at": at, "nth": dice.randint(1, self.struck.touches[at]), "errno": code}
            hook = Failing(out, aim, full, struck).install
            return f"{at}, {aim['nth']}", self._server(method, out, hook, struck.exists, lambda: full.unlink())
        k, keeps = dice.randrange(NODES), method == "lg-fedavg"
        at = dice.choice(AT_NODE if keeps else (AT_NODE[0], AT_NODE[-1]))
        aim = {"at": at, "nth": 1 if "number" in at else dice.randint(1, ROUNDS), "errno": code}
        self.place.leave(k)
        self.place.join(k, Failing(self.place.states[k], aim, full, struck).install)
        return f"{at}, {aim['nth']}", self._node(method, k, out, struck.exists, lambda: full.unlink())

    def _full(self, who: str, what: str, method: str, folder: Path, dice: random.Random) -> tuple[str, str]:
        """A small file system that is filled amid the run."""
        with small_disk(folder) as why:
            if why:
                return "not tried", why
            after, more, left = dice.randint(0, ROUNDS - 1), dice.uniform(0, 1), dice.choice((0, 4 << 10, 64 << 10))
            after = min(after, ROUNDS - 2) if who == "server" else after  # it still has something to write
            out = folder / "run" if who == "server" else folder.with_name(f"run-{folder.name}")
            filling: list[Path] = []

            def now() -> bool:
                if not filling and rounds_of(out) >= after:
                    time.sleep(more * (1 if after else 6))
                    filling.append(fill(folder, left))
                return bool(filling)

            name = f"{left:,} bytes left {more:.2f} into round {after}"
            if who == "server":
                return name, self._server(method, out, None, now, lambda: filling[0].unlink())
            k = dice.randrange(NODES)
            self.place.leave(k)
            before, self.place.states[k] = self.place.states[k], folder / "state"
            self.place.join(k)
            try:
                return name, self._node(method, k, out, now, lambda: filling[0].unlink())
            finally:
                self.place.states[k] = before

    def _server(
        self,
        method: str,
        out: Path,
        hook: Callable[[], object] | None,
        struck: Callable[[], bool],
        room: Callable[[], object],
    ) -> str:
        """A server whose disk fails: what is wrong with what it said, or with what the run came to."""
        server = self.place.serve(method, out, hook)
        _until(lambda: struck() or not alive(server), LONGEST)
        came = struck()
        _until(lambda: not alive(server), LONG)
        over = not alive(server)
        if came:
            room()
        ended = server.wait(LONGEST)
        self.told += ["server:", ended.out, ended.err]
        if not came or (over and not ended.code):  # it had written all that it had to
            return "it was not struck"
        if wrong := mistake("the server", ended):
            return wrong
        if ended.code:
            ended = self.place.serve(method, out).wait(LONGEST)
            self.told += ["server, again:", ended.out, ended.err]
        if ended.code:
            return f"typed again, the server ends with {ended.code}: {ended.err.strip()[-300:]}"
        return self.struck.wrong(method, out)

    def _node(self, method: str, k: int, out: Path, struck: Callable[[], bool], room: Callable[[], object]) -> str:
        """A node whose disk fails: the round waits for it, since all must answer."""
        place, waits = self.place, self.place.waits
        place.waits = waits | {"--deadline": "15", "--least": str(NODES)}
        try:
            server = place.serve(method, out)
        finally:
            place.waits = waits
        _until(lambda: struck() or not alive(server), LONGEST)
        came = struck()
        if came:
            _until(lambda: not alive(place.nodes[k]), 5)
            room()
        wrong = ""
        end = time.monotonic() + LONGEST
        while alive(server) and time.monotonic() < end:
            if not alive(place.nodes[k]):  # now, or when it next writes what it could not
                wrong = wrong or self._left(k)
                place.join(k)
            time.sleep(0.05)
        ended = server.wait(1)
        self.told += ["server:", ended.out, ended.err]
        place.leave(k)  # what it said is looked at
        wrong = wrong or self._said(k)
        if wrong or not came:
            return wrong or "it was not struck"
        if ended.code:
            return f"the server ends with {ended.code}: {ended.err.strip()[-300:]}"
        return self.struck.other_bits(method, out)

    def _left(self, k: int) -> str:
        ended = self.place.nodes.pop(k).wait()
        self.told += [f"{NAMES[k]}:", ended.out, ended.err]
        return mistake(NAMES[k], ended)

    def _said(self, k: int) -> str:
        """A traceback in anything that a node has said."""
        for path in sorted(self.place.root.glob(f"said * {NAMES[k]}.*")):
            text = path.read_text("utf-8", "replace")
            self.told.append(f"{path.name}: {text}")
            if "Traceback" in text:
                return f"{NAMES[k]} shows a traceback: {text.strip()[-300:]}"
        return ""


def _until(holds: Callable[[], bool], seconds: float) -> None:
    end = time.monotonic() + seconds
    while not holds() and time.monotonic() < end:
        time.sleep(0.02)


def disks(n: int, seed: int = 0, jobs: int = 1, only: int | None = None, first: int = 0) -> dict[str, Any]:
    """How many of n runs with a disk that failed were told of in a line, and went on to the same bits."""
    began, root = time.monotonic(), Path(tempfile.mkdtemp(prefix="disks-"))
    try:
        warm(root)
        place = Place(root)
        try:
            runs = Disks(place, seed)
            found = []
            for number in range(first, first + n) if only is None else [only]:
                found.append(runs.case(number))
                print(*(found[-1][key] for key in ("name", "wrong", "skipped", "said")), flush=True)
        finally:
            place.end()
        if any(place.codes):
            found.append({"number": -1, "name": "nodes", "wrong": f"they ended with {place.codes}", "skipped": ""})
    finally:
        shutil.rmtree(root, ignore_errors=True)
    again = f"python tests/reliability/disks.py 1 --seed {seed} --only"
    bad = [
        {"name": one["name"], "wrong": one["wrong"], "again": f"{again} {one['number']}"}
        for one in found
        if one["wrong"]
    ]
    return {
        "of": sum(one["number"] >= 0 and not one["skipped"] for one in found),
        "bad": bad,
        "skipped": sum(bool(one["skipped"]) for one in found),
        "seconds": round(time.monotonic() - began, 1),
        **({"told": found[0]["told"]} if only is not None else {}),
    }


def told(found: dict[str, Any]) -> str:
    """The counts for people."""
    return (
        f"{found['of'] - len(found['bad'])} of {found['of']} runs with a disk that failed went on bit for bit, "
        f"{found['skipped']} were not tried; {found['seconds']:.0f} s"
    )


if __name__ == "__main__":
    sys.exit(counted(disks, "runs", 1, told))
