"""Hostile settings and files: whatever is typed or read, it works or is refused in a line.

    python tests/reliability/hostile.py --cases 30000 --seed 0       counts, and every case that went wrong
    python tests/reliability/hostile.py --case 1234 --seed 0         one case again, with its traceback

A case is a function of (seed, number). It is built, and run for at most one round on a few examples, in this process,
as the command does it. What counts as wrong:

    traceback      an error that no line explains
    hang           more than SECONDS
    memory         more than MOST_BYTES asked for
    meaningless    it ended well, and there is no score
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import io
import json
import math
import os
import random
import resource
import signal
import tempfile
import time
import traceback
import typing
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from polycentric import cli
from polycentric.cli import outcome
from polycentric.cli.options import settings_of
from polycentric.data import table, table_report
from polycentric.errors import Diverged, UsageError
from polycentric.language import LARGEST, kinds
from polycentric.language.registry import is_kind
from polycentric.methods import METHODS
from polycentric.runs.folder import Folder
from polycentric.runs.recipes import parameters
from polycentric.runs.settings import Settings
from polycentric.runs.start import NOTHING, Given, _dealt, attach_folder, described, prepared

SECONDS = 10
MOST_BYTES = 2 << 30

NUMBERS = "0 -1 1 2 3 0.5 0.99 -0.0 nan inf -inf 1e308 -1e308 1e39 1e38 1e-320 1e999 9223372036854775808 1099511627776"
NUMBERS = [*NUMBERS.split(), "999999999999", str(2**31), str(2**63 - 1), str(10**30), "1_0", "0x10", "١"]
WHOLE = ["0", "1", "1", "2", "3", "4", "5", "-1", "7", str(2**31), str(2**40), "999999999999"]
REAL = ["0", "0.0", "1", "0.1", "0.5", "0.9", "0.99", "0.999999", "1.5", "10", "1e6", "1e38", "1e-320", "-1", "-0.5"]
WORDS = [
    "",
    " ",
    "none",
    "all",
    "true",
    "yes",
    "é",
    "‮x",
    "\0",
    "\n",
    "'",
    '"',
    "((",
    "))",
    "[",
    ",",
    "=",
    "+",
    "..",
    "a:b",
]
WORDS += ["x" * 5000, "(" * 50, "%s%n", "$(id)", "--rounds", "../../x", "nope.npz", "tiny.npz", "nan(nan(nan))"]
ARRAYS: dict[str, Any] = {}


class Hang(BaseException):
    """Too long; of no kind that anybody catches."""


@dataclass
class Found:
    """What went wrong, and where."""

    cases: int = 0
    seconds: float = 0.0
    refused: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[tuple[int, str, str, str]] = field(default_factory=list)  # number, what, the case, the last line


# -- what is tried -------------------------------------------------------------------------------------------


def scalar(r: random.Random, wanted: Any = None) -> str:
    """Mostly a number that may be one, of the type that is wanted."""
    if wanted in (int, float) and r.random() < 0.85:
        return r.choice(WHOLE if wanted is int else REAL)
    return r.choice(NUMBERS) if r.random() < 0.8 and wanted is not str else r.choice(WORDS)


def value(r: random.Random, wanted: Any, depth: int = 0) -> str:
    """A text where a type is wanted: mostly of that type, at its edges."""
    if r.random() < 0.03:
        return scalar(r)
    options = typing.get_args(wanted) if typing.get_origin(wanted) not in (None, Literal, tuple) else (wanted,)
    one = r.choice(options)
    if typing.get_origin(one) is Literal:
        return str(r.choice(typing.get_args(one)))
    if typing.get_origin(one) is tuple:
        inner = typing.get_args(one)[0]
        return f"({', '.join(value(r, inner, depth + 1) for _ in range(r.randrange(4)))})"
    if is_kind(one):
        return part(r, one, depth)
    if one is bool:
        return r.choice(["true", "true", "false", "maybe"])
    return scalar(r, one)


def part(r: random.Random, kind: Any, depth: int = 0) -> str:
    """A part of a kind with some settings at their edges, which may be parts themselves."""
    entry = r.choice(list(kinds()[kind].values()))
    known = {n: p for n, p in entry.parameters.items() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    likely = [(n, 0.95 if p.default is p.empty else 0.25) for n, p in known.items()]
    chosen = [n for n, chance in likely if r.random() < chance] if depth < 4 else []
    inside = ", ".join(f"{n}={value(r, known[n].annotation, depth + 1)}" for n in chosen)
    return f"{entry.name}({inside})" if inside or r.random() < 0.1 else entry.name


KINDS = {"partition": "Partition", "attack": "Attack", "clock": "Clock", "augment": "Augment"}


def settings(r: random.Random) -> tuple[str, dict[str, Any]]:
    """A method and options, a few of them at their edges."""
    method = r.choice(list(METHODS))
    options: dict[str, Any] = {"data": r.choice(["tiny.npz"] * 4 + ["numbers.npz", "pictures.npz"])}
    options |= {"rounds": r.choice([0, 1, 1, 1]), "executor": r.choice(["looped", "stacked"]), "device": "cpu"}
    options["model"] = r.choice(["logistic"] * 3 + ["mlp"])
    for name in r.sample(list(Settings.model_fields), r.randrange(3)):
        if name in ("method", "set", "device", "executor", "state"):
            continue
        if name in KINDS:
            options[name] = part(r, next(kind for kind in kinds() if getattr(kind, "__name__", "") == KINDS[name]))
        else:
            wanted = Settings.model_fields[name].annotation
            options[name] = typed(value(r, wanted), r)
            if name == "rounds" and str(options[name]).isdecimal() and 1 < int(options[name]) <= LARGEST:
                options[name] = 1  # many rounds are slow, and nothing is wrong with that
    known = parameters(method)
    own = {name: value(r, known[name].annotation) for name in r.sample(list(known), min(len(known), r.randrange(4)))}
    if r.random() < 0.05:
        own[scalar(r)] = scalar(r)
    if r.random() < 0.05:
        own[f"{r.choice(list(known))}.{r.choice(['n', 'lr', '', 'x.y'])}"] = scalar(r)
    return method, options | {"set": own}


def typed(text: str, r: random.Random) -> Any:
    """As TOML and Python give it: a number, or still its text."""
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(text) if r.random() < 0.9 else text
    return {"true": True, "false": False}.get(text, text)


def by_settings(r: random.Random) -> Callable[[], None]:
    method, options = settings(r)
    return named(f"{method} {options}", lambda: go(settings_of(method, options, check=False)))


def by_command(r: random.Random) -> Callable[[], None]:
    method, options = settings(r)
    words = ["run", method]
    for name, given in options.items():
        if name != "set":
            flag = f"--{name.replace('_', '-')}"
            words += [flag] if given is True else [] if given is False else [flag, str(given)]
    for name, given in options["set"].items():
        words += ["--set", f"{name}={given}"]
    return command(words)


def by_toml(r: random.Random) -> Callable[[], None]:
    method, options = settings(r)
    own = options.pop("set")
    lines = [f"method = {json.dumps(method)}", *(f"{k} = {json.dumps(v)}" for k, v in options.items()), "[set]"]
    text = "\n".join([*lines, *(f"{json.dumps(k)} = {json.dumps(v)}" for k, v in own.items())])
    raw = text.encode(errors="replace")
    if r.random() < 0.5:
        raw = mutated(
            raw, r, ['"', "[", "[[", "]", "=", "{", "nan", "inf", "1e400", "9" * 5000, "[" * 2000, "\0", "set."]
        )
    path = Path("hostile.toml")
    path.write_bytes(raw)
    return named(f"toml {raw[:400]!r}", lambda: go(settings_of(str(path), {"rounds": 1, "device": "cpu"}, check=False)))


def by_npz(r: random.Random) -> Callable[[], None]:
    arrays = dict(ARRAYS)
    for name in r.sample([*arrays, "test", "group", "extra", "é"], r.randrange(1, 4)):
        n = r.choice([0, 1, 39, 40, 41])
        arrays[name] = r.choice(
            [
                lambda n=n: np.full(n, r.choice([math.nan, math.inf, 1e308, -1.0, 2.0**63])),
                lambda n=n: np.zeros((n, 0)),
                lambda n=n: np.full((n, 3), r.choice([np.inf, 1e39, 1e308, np.nan, 0]), np.float64),
                lambda n=n: np.array(["x" * r.choice([0, 1, 3000])] * n),
                lambda n=n: np.full(n, r.choice([0, -1, 2**31, 2**62, 2**63 - 1])),
                lambda n=n: np.zeros((n, *[1] * r.randrange(1, 20))),
                lambda n=n: np.zeros(n, np.complex64),
                lambda n=n: np.zeros(n, "M8[s]"),
                lambda n=n: np.zeros(n, [("a", "i4")]),
                lambda n=n: np.zeros(n, bool),
                lambda n=n: np.array(5),
                lambda n=n: np.full((n, 3), 65504, np.float16),
                lambda n=n: np.full((n, 1, 4, 4), 200, np.uint8),
            ]
        )()
    for name in [name for name in arrays if r.random() < 0.1]:
        del arrays[name]
    np.savez("hostile.npz", **arrays)
    how = r.random()
    if how < 0.3:
        raw = mutated(Path("hostile.npz").read_bytes(), r, ["\0", "PK", "é"])
        Path("hostile.npz").write_bytes(raw)
    elif how < 0.4:
        shape = r.choice(
            ["(99999999999, 3)", "(-1, 3)", "(40, 99999999)", "(4" + "0" * 400 + ",)", "(True, 3)", "((1,),)"]
        )
        order = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}"
        header = order.ljust(118 + max(0, len(order) - 117)) + "\n"
        with zipfile.ZipFile("hostile.npz", "w", zipfile.ZIP_DEFLATED) as there:
            there.writestr("x.npy", b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode())
    shapes = {name: (one.dtype, one.shape) for name, one in arrays.items()}
    return data(r, "hostile.npz", f"npz {shapes} {how:.2f}")


def by_csv(r: random.Random) -> Callable[[], None]:
    heads = r.choice(
        [["client", "label", "a", "b"], ["label", "a"], ["client", "client", "label"], ["", "x"], ["label"]]
    )
    cell = lambda: r.choice(["a", "b", "1", "0", "0.5", "", *NUMBERS, *WORDS, "2020-01-01", "1,5", "=1+1"])  # noqa: E731
    plain = lambda: r.choice(["a", "b", "1", "2"])  # noqa: E731
    some = cell if r.random() < 0.5 else plain
    lines = [[f"c{i % 3}" if h == "client" else some() for h in heads] for i in range(r.choice([0, 1, 2, 12]))]
    if lines and r.random() < 0.3:
        lines[-1] = [cell() for _ in range(r.randrange(6))]
    text = io.StringIO(newline="")
    for line in [heads, *lines]:
        text.write(",".join(line if r.random() < 0.7 else [f'"{word}"' for word in line]) + r.choice(["\n", "\r\n"]))
    raw = text.getvalue().encode()
    if r.random() < 0.3:
        raw = mutated(raw, r, ['"', "\0", "\r", ",", "\n\n", "﻿", ";", "\t"])
    raw = r.choice([raw, raw, b"\xef\xbb\xbf" + raw, raw.decode(errors="replace").encode("utf-16"), b""])
    Path("hostile.csv").write_bytes(raw)
    how: dict[str, Any] = {"target": r.choice(["label", "label", "label", "a", "label,a", "", "nope"])}
    how |= {"client": r.choice(["client", "client", "label", "nope"])} if "client" in heads or r.random() < 0.1 else {}
    how |= r.choice(
        [{}, {}, {}, {"labels": True}, {"types": r.choice(["a=number", "label=category", "a=date", "=", "a"])}]
    )
    options = {"rounds": 1, "model": "logistic", "executor": "looped", "device": "cpu", "standardise": "train"}
    options |= {} if "client" in how else {"partition": "iid", "clients": 2}

    def read() -> None:
        pool = table("hostile.csv", **how)
        table_report(pool)
        words, given, needs = described("fedavg", _dealt(pool, options), options=options)
        go(words, given, needs)

    return named(f"csv {raw[:400]!r} {how}", read)


def by_leaf(r: random.Random) -> Callable[[], None]:
    odd: list[Any] = [
        None,
        [],
        {},
        "",
        "x",
        -1,
        1e308,
        math.nan,
        2**70,
        [[]],
        True,
        [[1e39]],
        {"x": 1},
        "é" * 80,
        [["", "a"]],
    ]
    users = {f"u{i}": {"x": [[0.1, float(i)]] * 4, "y": [0, 1, 0, 1]} for i in range(3)}
    whole: Any = {"users": list(users), "num_samples": [4, 4, 4], "user_data": users}
    for _ in range(r.randrange(1, 3)):
        at: Any = whole
        while isinstance(at, dict | list) and at:
            key = r.choice(list(at) if isinstance(at, dict) else range(len(at)))
            if r.random() < 0.35 or not isinstance(at[key], dict | list) or not at[key]:
                if r.random() < 0.2:
                    del at[key]
                else:
                    at[key] = copy.deepcopy(r.choice(odd))
                break
            at = at[key]
    raw = json.dumps(whole).encode()
    if r.random() < 0.3:
        raw = mutated(raw, r, ["[" * 3000, "{", "]", "1e999", "NaN", "\0", "9" * 6000, '"\\ud800"'])
    Path("leaf").mkdir(exist_ok=True)
    Path("leaf/all.json").write_bytes(raw)
    return data(r, "leaf", f"leaf {raw[:400]!r}")


def by_map(r: random.Random) -> Callable[[], None]:
    number = lambda: r.choice(["0", "1", "0.5", "0.5", *NUMBERS, ""])  # noqa: E731
    kind = lambda: r.choice(["edge"] * 3 + ["client"] * 2 + ["x", ""])  # noqa: E731
    n, four = r.randrange(8), r.random() < 0.3
    if four:
        lines = ["round,client,x,y", *(f"{number()},{r.randrange(5)},{number()},{number()}" for _ in range(n))]
    else:
        lines = ["kind,x,y,radius", *(f"{kind()},{number()},{number()},{number()}" for _ in range(n))]
    raw = "\n".join(lines).encode()
    raw = mutated(raw, r, ['"', ",", "\0", "\n"]) if r.random() < 0.2 else raw
    Path("hostile-map.csv").write_bytes(raw)
    cells = r.choice(
        ["map(trace=hostile-map.csv)" if four else "map(places=hostile-map.csv)", "table(hostile-map.csv)"]
    )
    if cells.startswith("map"):
        cells = (
            cells[:-1] + r.choice(["", "", ", nearest=true", ", radius=1e38", ", speed=1e-300", ", metres=1e12"]) + ")"
        )
    options: dict[str, Any] = {
        "data": "tiny.npz",
        "rounds": 1,
        "model": "logistic",
        "executor": "looped",
        "device": "cpu",
    }
    options |= {"set": {"cells": cells}}
    method = r.choice(["fedmes", "hierarchical"])
    return named(f"map {raw!r} {cells}", lambda: go(settings_of(method, options, check=False)))


CASES = {by_settings: 66, by_command: 4, by_toml: 6, by_npz: 8, by_csv: 8, by_leaf: 4, by_map: 4}


def mutated(raw: bytes, r: random.Random, inserts: list[str]) -> bytes:
    """Cut off, bytes changed, something put in between."""
    out = bytearray(raw)
    for _ in range(r.randrange(1, 4)):
        at, how = r.randrange(len(out) + 1), r.randrange(4)
        if how == 0:
            out[at:at] = r.choice(inserts).encode()
        elif how == 1 and at < len(out):
            out[at] = r.randrange(256)
        elif how == 2:
            del out[at : at + r.randrange(20)]
        elif r.random() < 0.3:
            del out[at:]
    return bytes(out)


# -- how it is tried -----------------------------------------------------------------------------------------


def named(name: str, call: Callable[[], None]) -> Callable[[], None]:
    call.__doc__ = name
    return call


def data(r: random.Random, path: str, name: str) -> Callable[[], None]:
    """Data that a run reads, or that are only looked at."""
    if r.random() < 0.1:
        return command(["data", r.choice(["show", "check"]), path], name)
    options = {"data": path, "rounds": 1, "model": "logistic", "executor": "looped", "device": "cpu"}
    more: dict[str, Any] = r.choice(
        [{}, {}, {"standardise": "train"}, {"valid": 0.5}, {"partition": "iid", "clients": 2}]
    )
    return named(name, lambda: go(settings_of("fedavg", options | more, check=False)))


def command(words: list[str], name: str = "") -> Callable[[], None]:
    """A command as it is typed; it writes its folder."""

    def typing() -> None:
        code = outcome([*words, *(["--out", tempfile.mkdtemp(dir=".") + "/run"] if words[0] == "run" else [])])
        if code not in (0, 1, 2):
            raise AssertionError(f"exit code {code}")
        if code:
            raise UsageError("as it was said")

    return named(name or f"command {words}", typing)


def go(asked: Settings, given: Given = NOTHING, needs: Sequence[str] = ()) -> None:
    """A run, with a folder now and then."""
    made = prepared(asked, given, needs=needs)
    if len(asked.method) % 7 == 0:
        attach_folder(made, Folder.new(Path(tempfile.mkdtemp(dir=".")) / "run"))
    made.go()
    summary = made.summary()
    if "micro_loss" not in summary["metrics"] and len(made.federation.test):
        raise LookupError("nothing was measured, and it ended well")


@contextlib.contextmanager
def bounded() -> Iterator[None]:
    """No more than so many seconds and bytes from here on."""

    def late(*_: object) -> None:
        raise Hang

    def held() -> int:
        return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()

    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    before = signal.signal(signal.SIGALRM, late)
    resource.setrlimit(resource.RLIMIT_AS, (held() + MOST_BYTES, hard))
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def tried(call: Callable[[], None]) -> tuple[str, str]:
    """("", "") where it worked, ("refused", line), or what is wrong."""
    out, err = io.StringIO(), io.StringIO()
    try:
        with bounded(), warnings.catch_warnings(), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            warnings.simplefilter("ignore")
            call()
    except Hang:
        return "hang", "".join(traceback.format_exc().splitlines(True)[-7:])
    except LookupError as error:
        return ("meaningless" if "ended well" in str(error) else "traceback"), _end()
    except (UsageError, Diverged) as error:
        said = err.getvalue() + str(error)
        return ("memory" if "not enough memory" in said else "traceback" if "Traceback" in said else "refused"), said[
            -300:
        ]
    except MemoryError:
        return "memory", _end()
    except Exception as error:
        if any(word in str(error) for word in cli.NO_MEMORY):
            return "memory", _end()
        return ("refused", str(error)) if isinstance(error, OSError) and error.filename else ("traceback", _end())
    said = err.getvalue()
    return ("traceback", said[-300:]) if "Traceback" in said else ("", "")


def _end() -> str:
    return "".join(traceback.format_exc().splitlines(True)[-7:])


def prepare_files() -> None:
    """The small data that settings are tried on, where we are."""
    g = np.random.default_rng(0)
    y = g.integers(0, 2, 40)
    x = (g.normal(size=(40, 3)) + y[:, None]).astype(np.float32)
    ARRAYS.update(x=x, y=y, client=np.arange(40) % 4, classes=np.array(["a", "b"]))
    np.savez("tiny.npz", **ARRAYS)
    np.savez("numbers.npz", x=x, y=x[:, 0] * 2, client=np.arange(40) % 4)
    np.savez("pictures.npz", x=g.integers(0, 255, (40, 1, 6, 6), dtype=np.uint8), y=y, client=np.arange(40) % 4)


def case(seed: int, number: int) -> Callable[[], None]:
    """Case `number` of a seed; it may write a file here that it reads."""
    r = random.Random(f"{seed}/{number}")
    return r.choices(list(CASES), list(CASES.values()))[0](r)


def hostile(cases: int, seed: int, first: int = 0, tell: Callable[[str], None] = lambda line: None) -> Found:
    """Try cases `first` .. `first + cases - 1` of a seed, in a folder of their own."""
    found, began, home = Found(), time.monotonic(), Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            prepare_files()
            for number in range(first, first + cases):
                call = case(seed, number)
                what, line = tried(call)
                found.cases += 1
                found.refused += what == "refused"
                if what not in ("", "refused"):
                    found.counts[what] += 1
                    found.wrong.append((number, what, call.__doc__ or "", line))
                    tell(f"case {number} of seed {seed}: {what}\n  {(call.__doc__ or '')[:500]}\n{line}")
        finally:
            os.chdir(home)
    found.seconds = time.monotonic() - began
    return found


def main() -> None:
    """Counts as JSON; exit 1 where anything is wrong."""
    parser = argparse.ArgumentParser(description="Hostile settings and files.")
    parser.add_argument("--cases", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--case", type=int, help="only this one")
    given = parser.parse_args()
    one = given.case is not None
    found = hostile(1 if one else given.cases, given.seed, given.case if one else given.first, tell=print)
    report = {"seed": given.seed, "cases": found.cases, "refused": found.refused, "seconds": round(found.seconds, 1)}
    report |= {what: found.counts[what] for what in ("traceback", "hang", "memory", "meaningless")}
    print(json.dumps(report))
    raise SystemExit(bool(found.wrong))


if __name__ == "__main__":
    import torch

    torch.set_num_threads(1)
    main()
