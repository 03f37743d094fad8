"""What the program asks of the machine it runs on."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import re
from pathlib import Path
from typing import TYPE_CHECKING

from .errors import Mistake

if TYPE_CHECKING:
    import torch


def keep_freed_memory() -> None:
    """Let the allocator keep large blocks that are freed instead of giving them back to the system.

    By default glibc maps every block above a threshold anew and unmaps it when freed, so each training step pays
    for page faults again: a tenth of the time of a small convolutional net. Threads share one heap: those of their own,
    which glibc would give them, go back to the system whole whenever they are empty. For programs, not for libraries:
    the command calls it, `import polycentric` does not.
    """
    if platform.system() == "Linux" and platform.libc_ver()[0] == "glibc":
        with contextlib.suppress(OSError, AttributeError):
            libc = ctypes.CDLL("libc.so.6")
            m_trim_threshold, m_mmap_threshold, m_arena_max = -1, -3, -8
            libc.mallopt(m_mmap_threshold, 1 << 30)
            libc.mallopt(m_trim_threshold, (1 << 31) - 1)
            libc.mallopt(m_arena_max, 1)


def keep_programs() -> None:
    """Let torch keep compiled programs with the user's other caches: it would put them where they are lost in time.

    Its own variable says otherwise. To be called before torch compiles anything.
    """
    home = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(home / "polycentric" / "programs"))


def device_of(name: str) -> torch.device:
    """`auto` takes a GPU if there is one; anything else must be there."""
    import torch  # here, so that a command that needs no tensors starts at once

    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name != "cpu" and not re.fullmatch(r"cuda(:\d+)?", name):
        raise Mistake(f"device must be cpu, cuda, cuda:N or auto, got '{name}'; try --device cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
        if device.type == "cuda":  # convolutions that add in any order would not give the same bits twice
            torch.backends.cudnn.deterministic = True
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise Mistake(f"device '{name}' cannot be used here ({reason}); try --device cpu") from error
    return device


def versions() -> dict[str, str]:
    """What a number depends on besides the code and the seed."""
    from importlib.metadata import PackageNotFoundError, version

    out = {"python": platform.python_version(), "system": platform.platform()}
    for package in ("polycentric", "torch", "numpy"):
        with contextlib.suppress(PackageNotFoundError):
            out[package] = version(package)
    return out
