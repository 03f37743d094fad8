"""What becomes of a run's folder that is damaged, forged or edited: every command that reads it, and what it says.

    damaged(n)   one file is flipped, cut, deleted, replaced by other JSON, a pipe, a device, ...; then one command
    forged(n)    a value is replaced and all digests are made right again; then one command
    edited(n)    a key of config.json, environment.json or a manifest is changed, removed or added; then `resume`

A case is good if the command refuses in one line, or does what it does with the undamaged folder, or says that it does
something else. Bad are tracebacks, hangs, codes that reach the terminal, and silence: another output, exit code 0, and
not a word. Cases follow from the seed, so a bad one can be had again: `python tests/reliability/damage.py 3000 2000`.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import re
import shutil
import signal
import socket
import sys
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from polycentric.cli import outcome
from polycentric.runs.folder import Folder
from polycentric.runs.forms import check_of
from polycentric.runs.settings import Settings, digest_of_values

SECONDS = 30.0  # a command that takes longer hangs
RUN = ["fesem", "--set", "k=2", "--rounds", "3", "--valid", "0.2", "--patience", "9", "--model", "logistic"]
RUN += ["--checkpoint-every", "1", "--device", "cpu", "--executor", "looped", "--fine-tune", "0", "--quiet"]
SWEEP = 'method = "fedavg"\ndata = "own.npz"\nmodel = "logistic"\nrounds = 1\nfine_tune = 0\n[grid]\nseed = [0, 1]\n'
COMPARE = ["nofed", "fedavg", "--data", "own.npz", "--model", "logistic", "--rounds", "1", "--seeds", "1", "--who"]
# What reads which folder. Outputs go to `out`, whose bytes are compared, too.
READERS: dict[str, list[list[str]]] = {
    "finished": [
        ["resume", "finished", "--json"],
        ["personalize", "finished", "--steps", "0,1", "--json"],
        ["curves", "finished", "--out", "out/curves.svg"],
        ["participation", "finished", "--out", "out/participation.svg"],
        ["export", "finished", "--center", "0", "--out", "out/models", "--json"],
        ["predict", "finished", "new.npz", "--center", "1"],
        ["assign", "finished", "new.npz", "--json"],
        ["evaluate", "finished", "--data", "new.npz", "--json"],
    ],
    "begun": [["resume", "begun", "--json"], ["curves", "begun", "--out", "out/curves.svg"]],
    "swept": [["sweep", "sweep.toml", "--out", "swept", "--json", "--quiet"]],
    "compared": [["compare", *COMPARE, "--out", "compared", "--json", "--quiet"]],
    "own.npz": [["data", "show", "own.npz"]],
}
RARE = {
    "finished": [["clusters", "finished", "--no-examples", "--out", "out/clusters", "--json"]]
}  # they take a second
RESULTS = ("metrics.jsonl", "clients.csv", "places.csv", "best.safetensors", "checkpoints/round-000003.safetensors")
ESCAPE = "\x1b]0;mine\x07\x1b[31m"


class Hangs(BaseException):
    """The command does not come back."""


@dataclass
class Said:
    """What a command came to."""

    code: int | str
    out: str
    err: list[str]
    files: dict[str, bytes]


@dataclass
class Counts:
    """How many cases there were, what became of them, and which were bad."""

    cases: int = 0
    became: Counter[str] = field(default_factory=Counter)
    bad: list[str] = field(default_factory=list)

    def add(self, what: str, case: str) -> None:
        self.cases += 1
        self.became[what] += 1
        if what in ("traceback", "hang", "silent", "escape", "lines"):
            self.bad.append(f"{what}: {case}")

    def __str__(self) -> str:
        told = ", ".join(f"{n} {what}" for what, n in sorted(self.became.items()))
        return f"{self.cases} cases: {told}" + "".join(f"\n  {case}" for case in self.bad[:40])


class Scene:
    """A folder with runs of every kind, and what every command says of them undamaged."""

    def __init__(self, root: Path) -> None:
        self.root, self.here = root / "made", root / "here"
        self.root.mkdir(parents=True)
        with _within(self.root):
            _data("own.npz", 6, 0)
            _data("new.npz", 3, 1)
            Path("sweep.toml").write_text(SWEEP)
            for name in ("finished", "begun"):
                assert _typed(["run", *RUN, "--data", "own.npz", "--out", name]).code == 0
            for file in [*Path("begun/checkpoints").glob("round-000003*"), *map(Path, ENDS)]:
                file.unlink()
            lines = Path("begun/metrics.jsonl").read_text().splitlines(keepends=True)
            Path("begun/metrics.jsonl").write_text("".join(lines[:3]))
            lines = Path("begun/places.csv").read_text().splitlines(keepends=True)
            Path("begun/places.csv").write_text("".join(lines[:2]))
            assert _typed(READERS["swept"][0]).code == 0 and _typed(READERS["compared"][0]).code == 0
        self._right: dict[str, Said] = {}

    def right(self, words: list[str]) -> Said:
        """What a command says of what is undamaged."""
        key = " ".join(words)
        if key not in self._right:
            self._right[key] = said = self.said(words)
            assert said.code == 0, said.err[-1:]
        return self._right[key]

    def said(self, words: list[str], harm: Callable[[Path], object] = lambda _: None) -> Said:
        """What a command says of a copy that was harmed."""
        shutil.rmtree(self.here, ignore_errors=True)
        others = set(READERS) - {*words, "own.npz"}  # runs that the command does not read
        shutil.copytree(self.root, self.here, ignore=lambda folder, _: others if Path(folder) == self.root else ())
        with _within(self.here):
            harm(self.here)
            said = _typed(words)
            said.files = _written(words)
        return said

    def judge(self, words: list[str], said: Said) -> str:
        """What became of a case."""
        right = self.right(words)
        if said.code in ("traceback", "hang"):
            return str(said.code)
        if any(not (c.isprintable() or c in "\n\t") for c in "\n".join([said.out, *said.err])):
            return "escape"
        if said.code != 0:
            return "refused" if len([line for line in said.err if line.startswith("error: ")]) == 1 else "lines"
        if (said.out, said.files) == (right.out, right.files):
            return "same"
        return "said" if set(said.err) - set(right.err) else "silent"


ENDS = ["begun/summary.json", "begun/digests.json", "begun/clients.csv"]


def _data(name: str, clients: int, seed: int) -> None:
    source = np.random.default_rng(seed)
    y = source.integers(0, 3, 12 * clients)
    x = source.normal(size=(len(y), 4)) + 2 * np.eye(4)[y]
    owner = np.arange(len(y)) % clients
    np.savez(name, x=x.astype(np.float32), y=y, client=owner, classes=np.array(["a", "b", "c"]))


@contextlib.contextmanager
def _within(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def _typed(words: list[str]) -> Said:
    """Type a command; what it says, and whether it came back at all."""
    out, err = io.StringIO(), io.StringIO()

    def late(*_: object) -> None:
        raise Hangs

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    code: int | str
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), warnings.catch_warnings():
            warnings.simplefilter("default")
            code = outcome(words)
    except Hangs:
        code = "hang"
    except BaseException:
        code = "traceback"
        err.write(traceback.format_exc())
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    return Said(code, _timeless(out.getvalue()), err.getvalue().splitlines(), {})


def _timeless(text: str) -> str:
    return re.sub(r'"(seconds)": [0-9.e-]+', r'"\1": 0', text)


def _written(words: list[str]) -> dict[str, bytes]:
    """What a command wrote, but for what depends on the time."""
    found = {
        str(path): path.read_bytes() for path in Path("out").rglob("*") if path.is_file() and path.suffix != ".png"
    }
    if words[0] == "resume":
        paths = [Path(words[1]) / name for name in RESULTS]
        found |= {str(path): path.read_bytes() for path in paths if path.is_file()}
    return found


# -- damage ----------------------------------------------------------------------------------------------------


def _flip(path: Path, r: random.Random) -> None:
    whole = bytearray(path.read_bytes())
    for _ in range(r.choice((1, 1, 1, 8))):
        if whole:
            whole[r.randrange(len(whole))] ^= 1 << r.randrange(8)
    path.write_bytes(whole)


def _cut(path: Path, r: random.Random) -> None:
    whole = path.read_bytes()
    path.write_bytes(whole[: r.randrange(len(whole) + 1)])


def _longer(path: Path, r: random.Random) -> None:
    path.write_bytes(path.read_bytes() + r.choice((b"\0", b"\n", b"{}", b"1,2\n", r.randbytes(99))))


def _gone(path: Path, r: random.Random) -> None:
    path.unlink()


OTHERS = [
    b"",
    b"null",
    b"[]",
    b"3",
    b'"x"',
    b"{}",
    b"NaN",
    b"[" * 100_000,
    b'{"a":' * 100_000,
    b"9" * 10_000,
    b"\xff\xfe",
]
OTHERS += [b'{"round": 1, "round": 2}', b"1e999", b"-0", b'{"metrics": NaN}', b"\0" * 4096]


def _other(path: Path, r: random.Random) -> None:
    path.write_bytes(r.choice(OTHERS))


def _swapped(path: Path, r: random.Random) -> None:
    """By another file of the same folder."""
    others = sorted(p for p in path.parent.rglob("*") if p.is_file() and p != path)
    path.write_bytes(r.choice(others).read_bytes()) if others else path.unlink()


def _special(path: Path, r: random.Random) -> None:
    """By something that is no file, or has no end."""
    path.unlink()
    kind = r.randrange(6)
    if kind == 0:
        path.mkdir()
    elif kind == 1:
        os.mkfifo(path)
    elif kind == 2:
        path.symlink_to("/dev/zero")
    elif kind == 3:
        with socket.socket(socket.AF_UNIX) as there:
            there.bind(os.path.relpath(path))
    elif kind == 4:
        path.symlink_to(path.name)  # to itself
    else:
        with path.open("wb") as file:
            file.truncate(5 << 30)  # a hole: it takes no room


VALUES: list[Any] = [None, -1, 0, 1, 2.5, 1e308, 10**30, "", ESCAPE, "x" * 300, [], {}, [[]], True, {"a": 1}, [1, "x"]]


def _paths(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where in a JSON value something stands."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inner:
        yield (*at, key)
        yield from _paths(one, (*at, key))


def _put(value: Any, r: random.Random, values: Sequence[Any] = VALUES) -> None:
    """Replace one of the values, or add or remove a key."""
    where = list(_paths(value))
    if not where or (r.random() < 0.1 and isinstance(value, dict)):
        value[r.choice(("new", "run", "round", ESCAPE))] = r.choice(values)
        return
    *way, last = r.choice(where)
    for key in way:
        value = value[key]
    if r.random() < 0.15:
        del value[last]
    else:
        value[last] = r.choice(values)


def _value(path: Path, r: random.Random) -> None:
    """One value of a JSON file or a line of one, one cell of a table."""
    if path.suffix == ".json":
        found = json.loads(path.read_text())
        _put(found, r)
        path.write_text(json.dumps(found))
        return
    if path.suffix not in (".jsonl", ".csv"):
        return _flip(path, r)
    lines = path.read_text().splitlines()
    at = r.randrange(len(lines)) if lines else 0
    if not lines:
        return
    if path.suffix == ".jsonl":
        found = json.loads(lines[at])
        _put(found, r)
        lines[at] = json.dumps(found)
    else:
        cells = lines[at].split(",")
        cells[r.randrange(len(cells))] = r.choice(["", "-1", "nan", "1e999", ESCAPE, "9" * 5000, '"', "x", "0.123"])
        lines[at] = ",".join(cells)
    path.write_text("\n".join(lines) + "\n")


HARMS = [_flip, _flip, _cut, _longer, _gone, _other, _swapped, _special, _value, _value]


def _files(folder: Path) -> list[Path]:
    found = sorted(path for path in folder.rglob("*") if path.is_file())
    return found if folder.is_dir() else [folder]


def damaged(n: int, seed: int, scene: Scene, rare: float = 0.02) -> Counts:
    """One file of a folder is damaged, and then read."""
    counts = Counts()
    for case in range(n):
        r = random.Random(f"{seed} {case}")
        kind = r.choices(list(READERS), [10, 6, 2, 2, 1])[0]
        words = r.choice(RARE[kind] if kind in RARE and r.random() < rare else READERS[kind])
        harms = [harm for harm in HARMS if kind != "own.npz" or harm is not _swapped]  # other data are other data
        harm, chosen = r.choice(harms), r.random()

        def done(here: Path, r: random.Random = r, kind: str = kind, harm: Any = harm, chosen: float = chosen) -> None:
            files = _files(here / kind)
            harm(files[int(chosen * len(files))], r)

        files = _files(scene.root / kind)
        what = f"{seed} {case} {harm.__name__} {files[int(chosen * len(files))].relative_to(scene.root)}"
        said = scene.said(words, done)
        _note(counts, scene, words, said, what)
    return counts


def _note(counts: Counts, scene: Scene, words: list[str], said: Said, what: str) -> None:
    became = scene.judge(words, said)
    last = said.err[-1] if said.err else ""
    counts.add(became, f"{what}: {' '.join(words)[:60]}: {last[:300]}")


# -- forgery ---------------------------------------------------------------------------------------------------


def _right_again(folder: Path) -> None:
    """Make all digests of a folder right."""

    def again(path: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        with contextlib.suppress(OSError, ValueError):
            found = json.loads(path.read_text())
            if isinstance(found, dict):
                path.write_text(json.dumps(change(found)))

    config = json.loads((folder / "config.json").read_text())
    known = [digest_of_values(config)] if isinstance(config, dict) else []
    again(folder / "environment.json", lambda found: _checked(found | {"settings": known}))
    for path in [*(folder / "checkpoints").glob("*.json"), folder / "best.json"]:
        again(path, _checked)
    if (folder / "digests.json").is_file():
        names = json.loads((folder / "digests.json").read_text())["files"]
        summary = (folder / "summary.json").read_bytes()
        Folder(folder).finish({}, list(names))
        (folder / "summary.json").write_bytes(summary)
        found = json.loads((folder / "digests.json").read_text())
        from polycentric.runs.folder import _mark

        found["files"]["summary.json"] = _mark(folder / "summary.json")
        (folder / "digests.json").write_text(json.dumps(_checked(found)))


def _checked(found: dict[str, Any]) -> dict[str, Any]:
    return found | {"check": check_of(found)}


SMALL = [None, -1, 0, 1, 2, 0.5, "", ESCAPE, [], {}, True, "fedavg", "cpu", "own.npz", "x:y", "1e9"]  # work stays small


def forged(n: int, seed: int, scene: Scene) -> Counts:
    """A value of a folder is replaced, all digests are right, and then it is read: only tracebacks and hangs count."""
    counts = Counts()
    for case in range(n):
        r = random.Random(f"forged {seed} {case}")
        kind = r.choices(["finished", "begun", "compared", "swept"], [4, 3, 2, 1])[0]
        words = r.choice(RARE[kind] if kind in RARE and r.random() < 0.02 else READERS[kind])
        names = [
            p for p in _files(scene.root / kind) if p.suffix in (".json", ".jsonl", ".csv") and p.name != "digests.json"
        ]
        name = r.choice(names).relative_to(scene.root)

        def done(here: Path, r: random.Random = r, name: Path = name, kind: str = kind) -> None:
            if name.name == "config.json":
                found = json.loads((here / name).read_text())
                _put(found, r, SMALL)
                (here / name).write_text(json.dumps(found))
            else:
                _value(here / name, r)
            _right_again(here.joinpath(*name.parts[: 1 if kind in ("finished", "begun") else 2]))

        said = scene.said(words, done)
        became = scene.judge(words, said)
        counts.add(
            {"silent": "other"}.get(became, became), f"{seed} {case} {name}: {' '.join(words)[:60]}: {said.err[-1:]}"
        )
    return counts


# -- edits -----------------------------------------------------------------------------------------------------


def _edits(name: str, found: dict[str, Any]) -> list[tuple[str, Any]]:
    """Every key: changed, removed; and keys that are not there."""
    out: list[tuple[str, Any]] = [(key, ...) for key in found]
    for key, value in found.items():
        values = {
            bool: [not value],
            int: [value + 1, 0] if isinstance(value, int) else [],
            float: [0.25],
            str: ["x", ""],
        }
        out += [(key, other) for other in values.get(type(value), [1, "x", []])]
    if name == "config.json":
        said = {"seed": 1, "held_out": 0.4, "precision": "bf16", "block": 2, "dtype": "float64", "model": "mlp"}
        said |= {"state": "disk", "workers": 2, "checkpoint_every": 2, "device": "cpu", "rounds": 4, "method": "fedavg"}
        out += [*said.items(), ("new", 1), ("given", ["model"])]
        assert set(found) <= set(Settings.model_fields)
    return out


def edited(n: int | None, seed: int, scene: Scene) -> Counts:
    """A key is edited by hand; `resume` must come to the same bits, or refuse in one line."""
    counts, words = Counts(), READERS["begun"][0]
    names = ["config.json", "environment.json", "checkpoints/round-000002.json", "best.json"]
    every = [
        (name, *edit) for name in names for edit in _edits(name, json.loads((scene.root / "begun" / name).read_text()))
    ]
    if n is not None:
        every = random.Random(f"edited {seed}").sample(every, min(n, len(every)))
    for name, key, value in every:

        def done(here: Path, name: str = name, key: str = key, value: Any = value) -> None:
            path = here / "begun" / name
            found = json.loads(path.read_text())
            if value is ...:
                del found[key]
            else:
                found[key] = value
            path.write_text(json.dumps(found, indent=2))

        said = scene.said(words, done)
        became = scene.judge(words, said)
        if became == "said" and said.files == scene.right(words).files:
            became = "same, and said"
        elif became == "said":
            became = "silent"  # a word does not make other bits right
        counts.add(became, f"{name} {key}={'removed' if value is ... else value}: {said.err[-1:]}")
    return counts


def main(words: Sequence[str]) -> int:
    """`damage.py [damaged [forged]]`: so many cases of each, and all edits."""
    import torch

    torch.set_num_threads(1)
    os.environ.setdefault("POLYCENTRIC_DEVICE", "cpu")
    os.fsync = lambda descriptor: None  # type: ignore[assignment]
    numbers = [int(word) for word in words] + [3000, 2000][len(words) :]
    bad = 0
    with tempfile.TemporaryDirectory() as folder:
        scene = Scene(Path(folder) / "scene")
        for name, count in (("damaged", damaged(numbers[0], 0, scene)), ("forged", forged(numbers[1], 0, scene))):
            print(name, count, flush=True)
            bad += len(count.bad)
        count = edited(None, 0, scene)
        print("edited", count, flush=True)
    return 1 if bad + len(count.bad) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
