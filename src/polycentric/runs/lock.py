"""One writer for every run's folder: a file, lock.json, that is created by one process only and says which.

It is written under another name and linked to its own, which local disks and NFS do for exactly one of many, so that it
is never half written; where a disk has no links it is created with O_CREAT | O_EXCL. fcntl, which network disks may
ignore, is not used. Who finds the file asks whether its owner has ended:

    same machine, no such process, or a younger one under its number    ended: taken over
    same machine, started again since                                   ended: taken over
    same machine, the process is there                                  refused
    another machine, container or system that does not tell             cannot be known: refused

A dead owner's lock is replaced and never removed, by the one that holds a second lock named after the dead owner's
token; so exactly one of many takes over, and at no moment is there no lock. On Windows every owner of the same machine
counts as alive, since asking would end it; where there is no /proc, a number that is in use again does.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import secrets
import time
import uuid
import weakref
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from pathlib import Path

from ..errors import UsageError
from ..language.files import named, parsed, read_text, why

LOCK = "lock.json"
NO_CONTAINER = "pid:[4026531836]"  # Linux's first namespace of processes
HALF_WRITTEN_SECONDS = 2.0  # a lock that was created and says nothing yet
BEAT_SECONDS = 10.0
LARGEST = 1 << 16  # bytes of a lock


class BeingWritten(UsageError):
    """Somebody else writes the folder."""


@dataclass(frozen=True)
class Owner:
    """Who writes: a process, where it runs, and a token that no other has."""

    host: str
    pid: int
    started: str  # in ticks since the machine started; empty where it cannot be known
    boot: str  # another at every start of the machine
    processes: str  # the namespace that the number of the process belongs to: containers have their own
    machine: str
    token: str
    since: str

    @staticmethod
    def here() -> Owner:
        """This process."""
        pid, since = os.getpid(), datetime.now().astimezone().isoformat(timespec="seconds")
        boot = _text("/proc/sys/kernel/random/boot_id")
        machine = _text("/etc/machine-id") if platform.system() == "Linux" else f"{uuid.getnode():x}"
        try:
            processes = os.readlink("/proc/self/ns/pid")
        except OSError:
            processes = ""
        known = hashlib.sha256(machine.encode()).hexdigest()[:16] if machine else ""  # folders are given to others
        return Owner(platform.node(), pid, _stat(pid)[1], boot, processes, known, secrets.token_hex(8), since)

    @staticmethod
    def of(text: str) -> Owner:
        """From the text of a lock; a ValueError if it is none."""
        found = parsed(text)
        kinds = {field.name: int if field.name == "pid" else str for field in fields(Owner)}
        good = isinstance(found, dict) and all(type(found.get(name)) is kind for name, kind in kinds.items())
        if not good or not 0 < found["pid"] < 1 << 31 or not found["token"].isalnum():
            raise ValueError("it does not say who writes")
        datetime.fromisoformat(found["since"])
        return Owner(**{name: found[name] for name in kinds})

    def alive(self) -> bool | None:
        """Whether the process is there; None: it cannot be known from here."""
        here = Owner.here()
        if (self.host, self.machine) != (here.host, here.machine):
            return None
        if (self.boot, self.processes) == (here.boot, here.processes):
            return _lives(self.pid, self.started)
        outside = self.machine and self.processes == here.processes == NO_CONTAINER  # images share their machine's name
        return False if outside and self.boot and here.boot else None

    def __str__(self) -> str:
        since = datetime.fromisoformat(self.since).astimezone()
        today = since.date() == datetime.now().astimezone().date()
        return f"process {self.pid} on host {self.host} since {since:{'%H:%M' if today else '%Y-%m-%d %H:%M'}}"


def refused(folder: Path, owner: Owner) -> BeingWritten:
    """The error for a folder that somebody else writes."""
    return BeingWritten(
        f"{folder} is being written by {owner}: wait for it, or end it; if that machine is gone, delete {folder / LOCK}"
    )


def writer(folder: Path) -> tuple[Owner, float] | None:
    """Who writes a folder, as far as can be known, and when it last gave a sign; None: nobody."""
    try:
        owner, sign = _read(folder / LOCK), (folder / LOCK).stat().st_mtime
    except FileNotFoundError:
        return None
    return None if owner is None or owner.alive() is False else (owner, sign)


class Lock:
    """A folder's lock in this process's hands; given back when it is released, forgotten, or the program ends."""

    def __init__(self, folder: Path) -> None:
        self.path, self.owner, self.beat = folder / LOCK, Owner.here(), time.monotonic()
        self.release = weakref.finalize(self, _give_back, self.path, self.owner)  # before it is taken: Ctrl-C may come

    @property
    def ours(self) -> bool:
        """A forked child has its parent's lock in memory, and not in its hands."""
        return self.owner.pid == os.getpid()

    def take(self) -> Owner | None:
        """Take it, or refuse; returns the dead owner it was taken from, if there was one."""
        return _take(self.path, self.owner)

    def keep(self) -> None:
        """A sign of life now and then; refused where the file was deleted and somebody else writes by now."""
        if time.monotonic() - self.beat < BEAT_SECONDS or not self.ours:
            return
        self.beat = time.monotonic()
        with contextlib.suppress(OSError):  # a network disk may be away for a moment
            found = _read(self.path)
            if found is None:
                _take(self.path, self.owner)
            elif found.token != self.owner.token:
                raise BeingWritten(
                    f"{self.path.parent} was taken by {found} after its {LOCK} was deleted: this run ends, so that "
                    "two do not write there"
                )
            os.utime(self.path)


def _take(path: Path, owner: Owner) -> Owner | None:
    while not _created(path, owner):
        found = _read(path)
        if found is None:  # given back just now
            continue
        if found.alive() is not False:
            raise refused(path.parent, found)
        right = path.with_name(f".lock-{found.token}.tmp")  # to take over from this owner; its holder may die, too
        _take(right, owner)
        try:
            now = _read(path)
            if now is not None and now.token == found.token:  # not somebody's who was faster
                whole = path.with_name(f".lock-{owner.token}.new.tmp")
                with named(path):
                    whole.write_text(_words(owner), encoding="utf-8")
                    whole.replace(path)
                return found
        finally:
            right.unlink(missing_ok=True)
    return None


def _created(path: Path, owner: Owner) -> bool:
    """Create a lock that says at once whose it is; False: there is one."""
    whole = path.with_name(f".lock-{owner.token}.{path.name}.tmp")
    try:
        with whole.open("x", encoding="utf-8") as file:
            file.write(_words(owner))
            file.flush()
            os.fsync(file.fileno())  # after a power cut it still says who wrote, and that process is gone
        os.link(whole, path)
    except FileExistsError:
        return False
    except OSError:
        if not whole.exists():  # nothing can be written here
            raise
        return _created_in_place(path, owner)  # a disk without links
    finally:
        whole.unlink(missing_ok=True)
    return True


def _created_in_place(path: Path, owner: Owner) -> bool:
    ours = False
    try:
        with named(path), path.open("x", encoding="utf-8") as file:  # O_CREAT | O_EXCL
            ours = True
            file.write(_words(owner))
    except FileExistsError:
        return False
    except BaseException:  # a full disk, Ctrl-C
        if ours:
            path.unlink(missing_ok=True)
        raise
    return True


def _words(owner: Owner) -> str:
    return json.dumps(asdict(owner), indent=2) + "\n"


def _read(path: Path) -> Owner | None:
    """The owner that a lock names; None: there is no lock."""
    until = time.monotonic() + HALF_WRITTEN_SECONDS
    while True:
        try:
            return Owner.of(read_text(path, LARGEST))
        except FileNotFoundError:
            return None
        except (ValueError, OSError) as error:
            if time.monotonic() > until:
                raise BeingWritten(
                    f"{path} cannot be read ({why(error)}): if nobody writes {path.parent}, delete it"
                ) from error
            time.sleep(0.02)


def _give_back(path: Path, owner: Owner) -> None:
    """Remove a lock, if it is still the owner's, and the owner is this process and not one it was forked from."""
    if owner.pid == os.getpid():
        with contextlib.suppress(OSError, ValueError):
            if Owner.of(read_text(path, LARGEST)).token == owner.token:
                path.unlink()


def _lives(pid: int, started: str) -> bool:
    if os.name != "posix":  # os.kill would end it
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # somebody else's, but there
        pass
    state, now = _stat(pid)
    return state not in ("Z", "X") and (not started or not now or started == now)  # Z: killed, and nobody has asked


def _stat(pid: int) -> tuple[str, str]:
    """The state of a process and when it was started; empty where there is no /proc."""
    words = _text(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return (words[0], words[19]) if len(words) > 19 else ("", "")


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return ""
