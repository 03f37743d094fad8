"""What reaches the terminal: words, and no codes that it would obey."""

from __future__ import annotations

import io

import pytest

from polycentric.cli import screen

EVIL = "a\x1b]0;mine\x07\x1b[2J\x9b31m\x08b"


def test_no_code_of_others_reaches_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    console = screen.Printable(file=io.StringIO(), force_terminal=True, color_system=None, markup=False, width=80)
    table = screen.titled(EVIL, EVIL, right=[EVIL])
    table.add_row(EVIL, EVIL)
    console.print(table)
    console.print(EVIL, soft_wrap=True)
    screen.write(f"{EVIL}\r\n1,2\r\n")
    screen.tell({EVIL: EVIL})
    shown = console.file.getvalue() + capsys.readouterr().out  # type: ignore[attr-defined]
    assert "mine" in shown and all(c.isprintable() or c == "\n" for c in shown)


def test_what_can_be_printed_stays_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    console = screen.Printable(file=io.StringIO(), force_terminal=True, markup=False, width=80)
    console.print("zürich\tµ ✓\nnext", style="bold")
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "zürich" in shown and "µ ✓" in shown and "\x1b[1m" in shown  # our own style stays a style
    screen.write("é,1\r\n")
    assert capsys.readouterr().out == "é,1\n"
