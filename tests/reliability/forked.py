"""Commands in forked children of a warm process: started in milliseconds, killed at will, what they said kept.

A child is the command itself, `polycentric.cli.main`, in a copy of a process that has everything imported already; it
has stdout and stderr in files, and ends as a program ends. Nobody cuts the power here, so nothing waits for the disk.
"""

from __future__ import annotations

import argparse
import atexit
import json
import os
import random
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported: a thread does not survive a fork
os.environ.setdefault("POLYCENTRIC_DEVICE", "cpu")
os.environ["TORCH_CPP_LOG_LEVEL"] = "ERROR"  # ranks that look for each other tell how often they have knocked

from net import digests as left_behind

SIGNALS = (signal.SIGINT, signal.SIGTERM)
SECONDS = 120.0  # a command that takes longer hangs
LITTLE = "--data digits --partition dirichlet=1+sample=240 --clients 4 --model logistic --executor looped".split()
LITTLE += "--fine-tune 0 --evaluate-every 1 --device cpu --quiet".split()


@dataclass(frozen=True)
class Ended:
    """How a command ended, and what it said; a negative code is a signal's."""

    code: int
    out: str
    err: str

    @property
    def last(self) -> str:
        """Its last line for people."""
        return (self.err.strip().splitlines() or [""])[-1]


@dataclass(frozen=True)
class Child:
    """A command at work."""

    pid: int
    said: Path

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Send it a signal; it is our child, so its number is nobody else's until it was waited for."""
        os.kill(self.pid, number)

    def wait(self, seconds: float = SECONDS) -> Ended:
        """Until it ends; one that hangs is killed, and has the code 124."""
        until, status = time.monotonic() + seconds, None
        while status is None:
            found, state = os.waitpid(self.pid, os.WNOHANG)
            if found:
                status = os.waitstatus_to_exitcode(state)
            elif time.monotonic() > until:
                self.kill()
                os.waitpid(self.pid, 0)
                status = 124
            else:
                time.sleep(0.002)
        out, err = (self.said.with_suffix(end).read_text("utf-8", "replace") for end in (".out", ".err"))
        return Ended(status, out, err)


def warm(root: Path) -> None:
    """Import what commands import, once for all children: the two runs need most of it."""
    if "polycentric.runs.start" in sys.modules:
        return
    import torch

    from net import command

    torch.set_num_threads(1)
    for method in ("fesem", "fedcurv"):
        command("run", method, *LITTLE, "--rounds", "1", "--out", str(root / f"warm-{method}"))


def start(words: Sequence[str], said: Path, before: Callable[[], object] | None = None, **env: str) -> Child:
    """Type a command in a child; `before` is called there first."""
    sys.stdout.flush()
    sys.stderr.flush()
    files = [said.with_suffix(end).open("wb") for end in (".out", ".err")]
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # until the child is ready for them
    pid = os.fork()
    if pid:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        for file in files:
            file.close()
        return Child(pid, said)
    code = 70
    try:
        for number, file in enumerate(files, start=1):
            os.dup2(file.fileno(), number)
        signal.signal(signal.SIGINT, signal.default_int_handler)  # whatever a shell has told us
        os.environ.update(env)
        os.fsync = lambda descriptor: None  # type: ignore[assignment]
        from polycentric.cli import main

        if before:
            before()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        main(list(words))
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except KeyboardInterrupt:  # beside the command, where Python itself would begin or end
        code = 130
        print("error: interrupted", file=sys.stderr)
    except BaseException:
        code = 1
        traceback.print_exc()
    finally:
        try:
            signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # all is said and done
            atexit._run_exitfuncs()  # a lock is given back where the program ends
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
        finally:
            os._exit(code)


def together(words: Sequence[str], said: Path, before: Callable[[], object] | None = None) -> list[Child]:
    """Two ranks, as torchrun starts them; `before` is called in the first."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = str(one.getsockname()[1])
    group = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2", "GLOO_SOCKET_IFNAME": "lo"}
    return [
        start(words, said.with_name(f"{said.name}-{rank}"), None if rank else before, **group, RANK=str(rank))
        for rank in range(2)
    ]


def found_in(folder: Path) -> dict[str, Any]:
    """All that a run left behind, to the bit, and the names of its files: nothing may lie about.

    Who is killed after the last word leaves a lock, which hinders nobody, and a log without its last line.
    """
    names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    passing = ("state/", "lock.json", "log.txt")  # the names in state/ count what was written
    kept = [name for name in names if not name.startswith(passing)]
    return {**json.loads(json.dumps(left_behind(folder))), "files": dict.fromkeys(kept, "there")}


def spread(work: Callable[[Any], Any], over: Iterable[Any], root: Path, jobs: int) -> list[Any]:
    """What `work` makes of every item, in their order, in so many processes beside each other."""
    items, began = list(over), f"{time.monotonic_ns()}"
    workers = []
    for worker in range(min(jobs, len(items))):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                found = {place: work(items[place]) for place in range(worker, len(items), jobs)}
                (root / f"{began}-{worker}.json").write_text(json.dumps(found), "utf-8")
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        workers.append(pid)
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in workers]
    assert not any(codes), "a worker failed: see above"
    found = {}
    for worker in range(len(workers)):
        found |= json.loads((root / f"{began}-{worker}.json").read_text("utf-8"))
    return [found[str(place)] for place in range(len(items))]


def dice_of(*key: object) -> random.Random:
    """Random numbers of one case, which is had again by its number and the seed."""
    return random.Random(" ".join(map(str, key)))


def counted(
    count: Callable[[int, int, int, int | None], dict[str, Any]],
    what: str,
    jobs: int,
    told: Callable[[dict[str, Any]], str],
) -> int:
    """A program that counts `what` it tries: `n [--seed S] [--jobs J] [--only I] [--json]`; 1 where any went wrong."""
    asked = argparse.ArgumentParser(description=sys.modules["__main__"].__doc__)
    asked.add_argument("n", type=int, help=f"how many {what}")
    asked.add_argument("--seed", type=int, default=0)
    asked.add_argument("--jobs", type=int, default=jobs, help="so many beside each other")
    asked.add_argument("--only", type=int, help="one of them, with all that was said")
    asked.add_argument("--json", action="store_true", help="the counts as JSON")
    args = asked.parse_args()
    found = count(args.n, args.seed, args.jobs, args.only)
    if args.json:
        print(json.dumps(found))
        return int(bool(found["bad"]))
    print("\n".join(found.get("told", [])))
    for one in found["bad"]:
        print(f"{one['name']}: {one['wrong']}\n    {one['again']}")
    print(told(found))
    return int(bool(found["bad"]))
