"""Programs beside us: they end with us, say nothing to others, and write into their folder only."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from polycentric.deploy.engine import children
from polycentric.deploy.engine.children import Child, check_free, free_port, surroundings
from polycentric.errors import UsageError

pytestmark = pytest.mark.skipif(os.name != "posix", reason="groups of processes are those of POSIX")


def settings(folder: Path) -> str:
    where = {"host": "127.0.0.1", "port": free_port(), "inner": 1, "hold": 1.0, "bell": str(folder / "bell")}
    return json.dumps(where)


def until(true: Callable[[], bool], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.02)


@pytest.fixture
def child(tmp_path: Path) -> Iterator[Child]:
    made = Child("door", "door.py", [settings(tmp_path)], tmp_path)
    until(lambda: " open" in made.said())
    yield made
    made.end()


def there(pid: int) -> bool:
    """Whether a process runs; one that is dead and not asked for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_a_child_runs_in_a_group_of_its_own_until_it_is_ended(child: Child) -> None:
    assert child.alive and os.getpgid(child.pid) == child.pid != os.getpgid(0)
    assert child.tell("wake somebody")
    assert child.written == child.log.stat().st_size > 0
    child.end()
    assert not child.alive and not child.tell("wake somebody")
    child.end()  # twice is once
    assert child.log.stat().st_mode & 0o777 == 0o600


def test_a_child_that_does_not_end_politely_is_killed(child: Child, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(children, "POLITELY", 0.2)
    os.kill(child.pid, signal.SIGSTOP)
    begun = time.monotonic()
    child.end()
    assert not child.alive and time.monotonic() - begun < 3


def test_a_child_that_does_not_listen_does_not_hold_us_up(child: Child, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(children, "POLITELY", 0.2)
    os.kill(child.pid, signal.SIGSTOP)
    begun = time.monotonic()
    while child.tell("x" * 5000):
        assert time.monotonic() - begun < 10
    child.end()


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks into /proc")
@pytest.mark.parametrize("program", ["door.py", "starter.py"])
def test_a_child_ends_when_its_parent_is_killed(program: str, tmp_path: Path) -> None:
    """starter.py would go on to import Flower: it hears of its parent's end before."""
    arguments = [settings(tmp_path)] if program == "door.py" else ["superlink", "--help-me-not"]
    code = "import sys, time; from pathlib import Path; from polycentric.deploy.engine.children import Child\n"
    code += f"print(Child('x', {program!r}, {arguments!r}, Path({str(tmp_path)!r})).pid, flush=True); time.sleep(60)"
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    parent.stdout.close()
    until(lambda: not there(pid))


def test_long_logs_are_begun_anew(child: Child, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(children, "LARGEST_LOG", 1000)
    with open(child.log, "ab") as log:
        log.write(b"x" * 2000)
    assert child.alive and child.written == 0
    old = child.log.with_name("door.log.old")
    assert old.stat().st_size > 2000


def test_flower_calls_nobody_and_hears_no_settings_but_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLWR_OIDC_ENABLED", "1")
    monkeypatch.setenv("FLWR_TELEMETRY_ENABLED", "1")
    found = surroundings(tmp_path)
    assert {name: value for name, value in found.items() if name.startswith("FLWR_")} == {
        "FLWR_HOME": str(tmp_path / "home"),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
    }
    assert found["PATH"] == os.environ["PATH"]


def test_a_port_that_is_taken_or_nobodys_is_refused(child: Child) -> None:
    port = int(json.loads(child._process.args[-1])["port"])  # type: ignore[index, union-attr, arg-type]
    with pytest.raises(UsageError, match=f"cannot listen at 127.0.0.1:{port}"):
        check_free("127.0.0.1", port)
    with pytest.raises(UsageError, match="choose another --port, or --host"):
        check_free("192.0.2.1", free_port())
    check_free("127.0.0.1", free_port())
