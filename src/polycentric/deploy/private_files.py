"""Files that only their owner may read: created once, never overwritten, their modes set and then looked at.

A key that was replaced is gone, and one that others can read is theirs, so nothing here trusts what it finds. A folder
is one's own, mode 0700, no symbolic link, and nobody else can write to those it lies in (who can, puts another in its
place; /tmp, where only owners rename, is let pass). Files are created with O_CREAT | O_EXCL | O_NOFOLLOW in the folder
that was looked at, and get their mode by fchmod, whatever the umask. If something goes wrong, what was made is removed.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ..errors import UsageError, require
from ..language.files import named, read_bytes, why

SECRET, OPEN, FOLDER = 0o600, 0o644, 0o700
LARGEST = 1 << 16  # bytes of a key or certificate


@dataclass(frozen=True)
class Fault:
    """What is wrong with a file or folder, and what to type."""

    wrong: str
    advice: str

    def __str__(self) -> str:
        return f"{self.wrong}: {self.advice}"


def read_small(path: Path) -> bytes:
    """A small file, which must not be a symbolic link."""
    try:
        require(not path.is_symlink(), f"{path} is a symbolic link: name the file itself, {path.resolve()}")
        return read_bytes(path, LARGEST)
    except (OSError, RuntimeError) as error:  # RuntimeError: links that lead to themselves
        raise UsageError(f"{path} cannot be read ({why(error)}): see that it is there, and yours") from None


def folder_fault(path: Path) -> Fault | None:
    """Why a folder is no place for keys; None: it is one."""
    try:
        found = path.lstat()
    except OSError as error:
        return Fault(f"{path} cannot be opened ({why(error)})", "name a folder that is there")
    if stat.S_ISLNK(found.st_mode):
        return Fault(f"{path} is a symbolic link", "name the folder itself")
    if not stat.S_ISDIR(found.st_mode):
        return Fault(f"{path} is no folder", "name another")
    return _belongs(path, found) or _open_to_others(path, found, FOLDER) or parent_fault(path)


def parent_fault(path: Path) -> Fault | None:
    """Whether others could put something else in the place of a folder, there or not: who can write to its parents."""
    nearest = path.absolute().parent.resolve()
    for parent in (nearest, *nearest.parents):
        try:
            mode = parent.stat().st_mode
        except OSError:  # not there yet, or not ours to look at
            continue
        if mode & 0o022 and not mode & stat.S_ISVTX:
            typed = f"chmod go-w {shlex.quote(str(parent))}"
            return Fault(f"others can write to {parent}, so they can replace {path}", f"{typed}, or use another folder")
    return None


def file_fault(path: Path, mode: int) -> Fault | None:
    """Why a file is not kept as it should be: SECRET, or OPEN to be read by anybody."""
    try:
        found = path.lstat()
    except OSError as error:
        return Fault(f"{path} cannot be opened ({why(error)})", "name a file that is there")
    if not stat.S_ISREG(found.st_mode):
        return Fault(f"{path} is no regular file", "put the file itself there")
    return _belongs(path, found) or _open_to_others(path, found, mode)


def _belongs(path: Path, found: os.stat_result) -> Fault | None:
    if found.st_uid == os.geteuid():
        return None
    return Fault(f"{path} belongs to user {found.st_uid}, you are {os.geteuid()}", "do this as its owner")


def _open_to_others(path: Path, found: os.stat_result, mode: int) -> Fault | None:
    if not found.st_mode & (0o022 if mode == OPEN else 0o077):
        return None
    can = "can write to" if found.st_mode & 0o022 else "can read"
    typed = f"chmod {mode:o} {shlex.quote(str(path))}"
    return Fault(f"others {can} {path} (mode {found.st_mode & 0o777:04o})", typed)


@dataclass
class Writer:
    """New files in a folder of one's own."""

    path: Path
    descriptor: int
    made: list[str] = field(default_factory=list)

    def write(self, name: str, data: bytes, mode: int) -> None:
        """A file that was not there, on the disk, with this mode."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            file = os.open(name, flags, SECRET, dir_fd=self.descriptor)
        except FileExistsError:
            raise UsageError(f"{self.path / name} is there already, and is never overwritten: move it away") from None
        self.made.append(name)
        with named(self.path / name), os.fdopen(file, "wb") as opened:
            os.fchmod(file, mode)
            opened.write(data)
            opened.flush()
            os.fsync(file)
        if file_fault(self.path / name, mode):
            raise UsageError(f"the disk of {self.path} does not keep the modes of files: choose a folder on another")

    def replace(self, new: str, name: str) -> None:
        """Give a file that was made here the name of an older one, at one moment; what was made until then stays."""
        os.replace(new, name, src_dir_fd=self.descriptor, dst_dir_fd=self.descriptor)
        self.made.clear()


@contextlib.contextmanager
def private_folder(path: Path, create: bool = True) -> Iterator[Writer]:
    """A folder to write secrets into, created where it is not there; if anything goes wrong, it is as it was."""
    require(os.name == "posix", "keys are made on Linux or macOS only: elsewhere it cannot be seen who can read a file")
    created = _create(path) if create else []
    descriptor = -1
    try:
        if fault := folder_fault(path):
            raise UsageError(str(fault))
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        writer = Writer(path, descriptor)
        try:
            yield writer
            os.fsync(descriptor)
        except BaseException:  # a full disk, Ctrl-C: half of it is of no use to anybody
            for name in writer.made:
                with contextlib.suppress(OSError):
                    os.unlink(name, dir_fd=descriptor)
            raise
    except BaseException:
        for folder in reversed(created):
            with contextlib.suppress(OSError):
                folder.rmdir()
        raise
    finally:
        if descriptor >= 0:
            os.close(descriptor)


def _create(path: Path) -> list[Path]:
    """Create a folder and those it lies in, as far as they are not there; returns the new ones."""
    if fault := parent_fault(path):
        raise UsageError(str(fault))
    created: list[Path] = []
    missing = [one for one in (path, *path.parents) if not os.path.lexists(one)]
    for folder in reversed(missing):
        try:
            os.mkdir(folder, FOLDER)
        except FileExistsError:  # somebody else's since: it is looked at, as any other
            continue
        os.chmod(folder, FOLDER)  # a umask may have taken our own rights away
        created.append(folder)
    return created
