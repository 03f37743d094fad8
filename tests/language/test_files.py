"""Files are read in one place: regular ones, within a limit, JSON that says one thing only."""

from __future__ import annotations

import ast
import os
from pathlib import Path

import pytest

import polycentric
from polycentric.language.files import append, named, opened, parsed, read_bytes, read_text, sha256_of

PACKAGE = Path(polycentric.__file__).parent


def test_a_file_is_read_up_to_its_limit(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"abc")
    assert read_bytes(path, 3) == b"abc" and read_text(path) == "abc"
    with pytest.raises(OSError, match="it has 3 bytes, more than 2"):
        read_bytes(path, 2)
    assert sha256_of(path, 3) == sha256_of(path) != sha256_of(path, 4) == ""


@pytest.mark.skipif(os.name != "posix", reason="there are none elsewhere")
def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path, what in ((tmp_path / "pipe", "a pipe"), (tmp_path, "a folder"), (Path("/dev/zero"), "a device")):
        with pytest.raises(OSError, match=f"it is {what}, not a regular file"):
            opened(path)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no full disk to try")
def test_who_cannot_write_says_which_file() -> None:
    with pytest.raises(OSError, match="No space left") as bare, open("/dev/full", "wb") as file:
        file.write(b"a")
    assert bare.value.filename is None
    with pytest.raises(OSError, match="No space left") as wrong, named("here"), open("/dev/full", "wb") as file:
        file.write(b"a")
    assert wrong.value.filename == "here"
    with pytest.raises(OSError, match="No such") as other, named("here"), open("elsewhere/a", "wb"):
        pass
    assert other.value.filename == "elsewhere/a"


@pytest.mark.parametrize("text", ['{"a": 1, "a": 2}', "NaN", '{"a": Infinity}', "[" * 200_000, "", "{", "1" * 9999])
def test_json_that_says_two_things_or_nothing_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parsed(text)


def test_nobody_else_opens_a_file_for_reading() -> None:
    """But for what the system says of itself, files that this process has just written, and locks that are created."""
    free = {"language/files.py", "runs/export.py", "runs/lock.py", "simulate/disk_state.py"}
    wrong = []
    for path in sorted(PACKAGE.rglob("*.py")):
        name = str(path.relative_to(PACKAGE))
        if name in free or name.startswith("reproduce/"):
            continue
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                modes = [arg.value for arg in node.args if isinstance(arg, ast.Constant)]
                reads = node.func.attr == "open" and any(mode in ("r", "rb") for mode in modes)
                loads = node.func.attr in ("read_text", "read_bytes") and not isinstance(node.func.value, ast.Name)
                if reads or loads:
                    wrong.append(f"{name}, line {node.lineno}")
    assert wrong == []


@pytest.mark.skipif(os.name != "posix", reason="pipes and links are those of POSIX")
def test_text_is_appended_to_regular_files_and_nothing_else(tmp_path: Path) -> None:
    """Not through a link, and nobody waits for the other end of a pipe."""
    for text in ("one\n", "two\n"):
        append(tmp_path / "file", text)
    assert (tmp_path / "file").read_text() == "one\ntwo\n" and (tmp_path / "file").stat().st_mode & 0o77 == 0
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "file")
    (tmp_path / "nowhere").symlink_to(tmp_path / "new")
    for name in ("pipe", "folder", "link", "nowhere"):
        with pytest.raises(OSError):
            append(tmp_path / name, "three\n")
    assert (tmp_path / "file").read_text() == "one\ntwo\n" and not (tmp_path / "new").exists()
