"""What was compiled is there where it can be, and used only where it is of this version."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from polycentric.learn.cpu import library as library_of
from polycentric.learn.cpu.library import library


def can_be_there() -> bool:
    """A compiler, and a processor that has what is compiled for: else the laws of steps in C are skipped unnoticed."""
    processor = Path("/proc/cpuinfo")
    return sys.platform == "linux" and bool(shutil.which("cc")) and "avx512f" in processor.read_text()


@pytest.mark.skipif(not can_be_there(), reason="no compiler, or a processor without AVX-512")
def test_where_it_can_be_compiled_it_is_there() -> None:
    assert library() is not None, "python supply/compile.py says why not"


@pytest.mark.skipif(library() is None, reason="nothing was compiled, or this processor has no AVX-512")
def test_what_was_compiled_from_another_version_is_not_used(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    find = library_of.library.__wrapped__
    assert find() is not None
    other = tmp_path / "steps.c"
    other.write_text(library_of.SOURCE.read_text() + "\n")
    monkeypatch.setattr(library_of, "SOURCE", other)
    with pytest.warns(UserWarning, match="another version; install polycentric again"):
        assert find() is None
    broken = tmp_path / "steps.so"
    broken.write_text("no library")
    monkeypatch.setattr(library_of, "COMPILED", broken)
    with pytest.warns(UserWarning, match="cannot be used"):
        assert find() is None
    monkeypatch.setattr(library_of, "COMPILED", tmp_path / "nothing.so")
    assert find() is None
