"""What the program asks of the machine it runs on."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import re
import signal
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..errors import UsageError, require, unknown

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


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Let SIGTERM wait while something is written that others need; in the main thread, where signals come."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def device_of(name: str) -> torch.device:
    """`auto` takes what POLYCENTRIC_DEVICE says, else a GPU if there is one; anything else must be there."""
    import torch  # here, so that a command that needs no tensors starts at once

    if name == "auto":
        name = os.environ.get("POLYCENTRIC_DEVICE") or ("cuda" if torch.cuda.is_available() else "cpu")
    require(
        not name.startswith("mps"),
        "device 'mps' is not supported: it has no float64, in which models are mixed; use --device cpu",
    )
    if name != "cpu" and not re.fullmatch(r"cuda(:\d+)?", name):
        raise UsageError(f"device must be cpu, cuda, cuda:N or auto, got '{name}'; try --device cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
        if device.type == "cuda":  # convolutions that add in any order would not give the same bits twice
            torch.backends.cudnn.deterministic = True
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise UsageError(f"device '{name}' cannot be used here ({reason}); try --device cpu") from error
    return device


PRECISIONS = ("float32", "tf32", "bf16")


def use_precision(name: str, device: torch.device, dtype: str) -> None:
    """Check how exactly numbers are multiplied, and tell torch where that is a matter of the whole process.

    float32    as torch does it
    tf32       a GPU multiplies with 10 bits of mantissa and adds with 23
    bf16       local learning computes with 7 bits; models, updates and mixing stay in float32
    """
    import torch

    if name not in PRECISIONS:
        raise unknown("precision", name, PRECISIONS)
    if name != "float32" and dtype != "float32":
        raise UsageError(f"precision={name} needs dtype=float32, and dtype is {dtype}: leave one of them out")
    if name == "tf32" and device.type != "cuda":
        raise UsageError(f"precision=tf32 needs a GPU, not {device}: use --device cuda or --precision bf16")
    has = getattr(torch.cpu, "_is_avx512_bf16_supported", None)
    require(
        name != "bf16" or device.type != "cpu" or has is None or bool(has()),
        "this CPU does not compute in bfloat16, and emulating it would be slower: use --precision float32",
    )
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high" if name == "tf32" else "highest")


def versions() -> dict[str, str]:
    """What a number depends on besides the code and the seed."""
    from importlib.metadata import PackageNotFoundError, version

    out = {"python": platform.python_version(), "system": platform.platform()}
    for package in ("polycentric", "torch", "numpy"):
        with contextlib.suppress(PackageNotFoundError):
            out[package] = version(package)
    return out
