"""A federation on one machine, typed into three terminals as the pages say it."""

from __future__ import annotations

import os
import shlex
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from laws.test_documents import Block, blocks

pytest.importorskip("flwr")
ROOT = Path(__file__).parents[2]
STAY = ("polycentric serve", "polycentric join")  # commands that a terminal is busy with
pytestmark = [pytest.mark.long, pytest.mark.xdist_group("federation")]


def written(page: Path, heading: str) -> list[Block]:
    """The shell's blocks, and files, under a heading."""
    lines = page.read_text().splitlines()
    first = lines.index(f"## {heading}") + 1
    last = next((k for k, line in enumerate(lines, 1) if k > first and line.startswith("## ")), len(lines))
    return [one for one in blocks(page) if first < one.line < last and (one.language == "sh" or one.mark == "file")]


def typed(found: list[Block], folder: Path) -> None:
    """Every line in its terminal; what comes after those that are busy waits until the server has ended."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    env = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"} | {"PATH": path}
    terminals: list[subprocess.Popen[bytes]] = []
    try:
        for block in found:
            if block.mark == "file":
                (folder / block.what).write_text(block.text + "\n")
                continue
            for line in (each for each in block.text.splitlines() if not each.startswith("#")):
                if line.startswith(STAY):
                    with (folder / f"terminal {len(terminals)}").open("wb") as said:
                        words = shlex.split(line)
                        terminals.append(subprocess.Popen(words, cwd=folder, env=env, stdout=said, stderr=said))
                    continue
                if terminals:
                    assert terminals[0].wait(200) == 0, (folder / "terminal 0").read_text()
                subprocess.run(["bash", "-c", line], cwd=folder, env=env, check=True, timeout=200)
        assert terminals[0].wait(200) == 0, (folder / "terminal 0").read_text()
        for node in terminals[1:]:
            node.send_signal(signal.SIGINT)
        assert [node.wait(30) for node in terminals[1:]] == [0, 0]
    finally:
        for terminal in terminals:
            terminal.kill()
            terminal.wait()


@pytest.mark.parametrize("page", ["README.md", "docs/deploy.md"])
def test_three_terminals_come_to_a_run(page: str, tmp_path: Path) -> None:
    with socket.socket() as probe:
        if probe.connect_ex(("127.0.0.1", 8470)) == 0:
            pytest.skip("somebody listens at port 8470")
    if page == "README.md":
        found = written(ROOT / page, "A real federation in three commands")
    else:
        found = [*written(ROOT / page, "In three commands")[:-1], *written(ROOT / page, "The same bits")]
    typed(found, tmp_path)
    assert len(list(tmp_path.glob("runs/*/summary.json"))) >= 1
