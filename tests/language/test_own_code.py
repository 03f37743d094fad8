"""Code of the user's own by name: what is typed is consent, what a file says is not."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from polycentric.errors import UsageError
from polycentric.language import own_code
from polycentric.language.own_code import ask_consent, own_function, own_names, remember


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "mine_here.py").write_text("from os.path import join\nran = True\ndef f(): return 1\nnumber = 3\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delitem(sys.modules, "mine_here", raising=False)
    return tmp_path / "config.toml"


def test_what_is_typed_is_imported(mine: Path) -> None:
    assert own_function("mine_here:f", "metric")() == 1


def test_what_a_file_names_is_refused(mine: Path) -> None:
    with pytest.raises(UsageError, match=r"mine_here:f.*--trust"):
        ask_consent({"set": {"a": ["mine_here:f"]}}, mine)
    assert "mine_here" not in sys.modules


def test_consent_is_asked_once_and_for_one_place(mine: Path) -> None:
    ask_consent({"model": "mine_here:f"}, mine, trust=True)
    ask_consent({"model": "mine_here:f"}, mine)
    for values, path in (({"model": "mine_here:f"}, mine.parent / "other.toml"), ({"model": "os:abort"}, mine)):
        with pytest.raises(UsageError, match="--trust"):
            ask_consent(values, path)
    assert own_code._place().stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("name", ["os:abort", "sys:exit", "signal:pause", "mine_here:join", "mine_here:number"])
def test_what_is_named_must_be_written_there(mine: Path, name: str) -> None:
    with pytest.raises(UsageError, match=r"not a function|is defined in"):
        own_function(name, "metric")


def test_names_are_found_however_deep(mine: Path) -> None:
    values = {"data": "C:/x.npz", "set": {"terms": ["prox(mu=1)", {"name": "a.b:c"}]}, "method": "mine:ditto(mu=1)"}
    assert own_names(values | {"clock": "at 12:30", "note": "sample(x:y)"}) == {"a.b:c", "mine:ditto", "x:y"}
    remember(mine, [])
    assert own_code.remembered(mine) == set()


def test_runs_that_begin_beside_each_other_all_remember(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda k: own_code.remember(tmp_path / str(k % 40), [f"mine:A{k}"]), range(200)))
    kept = tmp_path / "state" / "polycentric" / "trusted.jsonl"
    assert kept.stat().st_mode & 0o777 == 0o600
    kept.write_text(kept.read_text() + '["cut off, 17]\n7\n[]\n')
    for k in range(40):
        assert own_code.remembered(tmp_path / str(k)) == {f"mine:A{n}" for n in range(k, 200, 40)}
    before = kept.read_text()
    own_code.remember(tmp_path / "3", ["mine:A3"])
    assert kept.read_text() == before  # known already
