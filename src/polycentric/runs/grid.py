"""Many runs as one table: every cell in a folder of its own, done once, gone on with after an interruption.

A cell's folder is named by a digest of its settings. A cell with a summary is read, one that was begun is
resumed, and only the others are run; so a table that was interrupted goes on where it stopped. A cell that another
process writes is left to it: the others are run first, and then it is waited for. `compare` makes a table of methods on
the same federation over several seeds, with a row for each method.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ..data import Federation, parse
from ..errors import Diverged
from ..language import files_of, settings_in
from ..language.files import sha256_of
from ..language.own_code import digest_of, own_names
from .folder import Damaged, Folder, file_name
from .lock import BeingWritten, refused, writer
from .paired import leading, reference_of, served, with_differences, with_who
from .recipes import parameters
from .settings import Settings, unbracketed
from .start import Given, attach_folder, built_method, load_data, prepared, resumed

# (cells done, cells in all, the newest summary; or the cell that is waited for, with `waiting`: for whom)
ProgressCallback = Callable[[int, int, dict[str, Any]], None]
POLL_SECONDS = 0.5
SILENT_SECONDS = 900.0  # without a sign of a process on another machine, nobody waits for it any longer


def digest(settings: Settings) -> str:
    """A short name for settings: equal settings, equal names; where and how often they write does not matter."""
    return settings.name(_files(settings))


def _files(settings: Settings) -> dict[str, str]:
    """What is in the files that settings name, such as `table(cells.csv)`: another content is another run."""
    words = json.dumps(settings.set, sort_keys=True, default=str)
    key = (settings.method, words, settings.partition, settings.clients)
    if key not in _NAMED:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what is built here is built again, and warns then
            parts: list[object] = [built_method(settings)]
            if settings.partition is not None:
                parts.append(parse(settings.partition, settings.clients))
        _NAMED[key] = tuple(sorted(files_of(parts)))
    files = {path: sha256_of(path) for path in _NAMED[key]}
    return files | {name: digest_of(name) for name in sorted(own_names(settings.model_dump()))}


_NAMED: dict[tuple[Any, ...], tuple[str, ...]] = {}  # the files that words name: many cells of a table have the same


def run_dir(settings: Settings, parent: Path) -> Path:
    """Where a cell's run is, or will be."""
    return parent / file_name(f"{settings.method}-{digest(settings)}")


def finished(settings: Settings, parent: Path) -> dict[str, Any] | None:
    """The summary of a cell that was run to its end; None if it was not."""
    return _ended(Folder(run_dir(settings, parent)))


def _ended(folder: Folder) -> dict[str, Any] | None:
    """The summary of a finished run; None where it was changed since, so that the run must write it again."""
    try:
        found = folder.read_summary() if folder.finished else None
        return found and found | {"run_dir": str(folder.path)}  # where it is now
    except Damaged as error:
        if writer(folder.path) is None:  # else somebody is just ending it: the digests come last
            warnings.warn(str(error), stacklevel=3)
        return None


def run_cell(
    settings: Settings, parent: Path, federation: Federation | None = None, *, beside: int = 1
) -> dict[str, Any]:
    """The summary of one cell, run only as far as it has to be, with so many `beside` each other."""
    return finished(settings, parent) or _run_cell(settings, parent, lambda: federation, beside)


def _run_cell(
    settings: Settings, parent: Path, federation: Callable[[], Federation | None], beside: int = 1
) -> dict[str, Any]:
    path = run_dir(settings, parent)
    (path / "checkpoints").mkdir(parents=True, exist_ok=True)
    with Folder(path).alone() as folder:
        if (done := _ended(folder)) is not None:  # by whoever wrote it until now
            return done
        try:
            given = Given(federation=federation())
            if folder.begun:
                made, problems = resumed(folder, given)
                for problem in problems:
                    warnings.warn(problem, stacklevel=2)
                return made.go().summary()
            return attach_folder(prepared(settings, given, beside=beside), folder).go().summary()
        except Diverged as error:
            found = {"method": settings.method, "seed": settings.seed, "diverged": str(error), "run_dir": str(path)}
            folder.finish(found)  # it would diverge again: once is enough
            return found


def run_cells(
    cells: Sequence[Settings], parent: Path, *, jobs: int = 1, progress: ProgressCallback | None = None
) -> list[dict[str, Any]]:
    """The summaries of all cells, in their order. `jobs` > 1 runs so many processes beside each other.

    Cells that other processes write are waited for last of all, with no lock held; and if they end, taken over.
    """
    parent.mkdir(parents=True, exist_ok=True)
    out: dict[int, dict[str, Any]] = {}

    def told(place: int, summary: dict[str, Any]) -> None:
        out[place] = summary
        if progress:
            progress(len(out), len(cells), summary)

    left = list(range(len(cells)))
    while left:
        for place in left:
            if jobs > 1 and (summary := finished(cells[place], parent)):  # no process is started for what is there
                told(place, summary)
        if jobs > 1:
            _beside_each_other(cells, [place for place in left if place not in out], parent, jobs, told)
        else:
            _one_by_one(cells, left, parent, told)
        left = [place for place in left if place not in out]
        if left:
            _wait_for_others(
                [cells[place] for place in left], parent, partial(progress or _unsaid, len(out), len(cells))
            )
    return [out[place] for place in range(len(cells))]


def _unsaid(*_: object) -> None: ...


def _wait_for_others(cells: Sequence[Settings], parent: Path, say: Callable[[dict[str, Any]], None]) -> None:
    """Until one of the cells that others write is finished or free."""
    signs, heard, said = dict[Path, float](), time.monotonic(), ""
    while True:
        unknown = []
        for cell in cells:
            path = run_dir(cell, parent)
            found = writer(path)
            if found is None or finished(cell, parent) is not None:
                return
            owner, sign = found
            if signs.get(path) != sign:  # a file's times are another machine's: only that they change means something
                signs[path], heard = sign, time.monotonic()
            unknown += [(path, owner)] * (owner.alive() is None)
            if not said:
                said = f"waiting for {owner}, which writes {path}"
                warnings.warn(said, stacklevel=3)
                say({"method": cell.method, "seed": cell.seed, "run_dir": str(path), "waiting": str(owner)})
        if len(unknown) == len(cells) and time.monotonic() - heard > SILENT_SECONDS:
            raise refused(*unknown[0])
        time.sleep(POLL_SECONDS)


def _one_by_one(
    cells: Sequence[Settings], left: Sequence[int], parent: Path, told: Callable[[int, dict[str, Any]], None]
) -> None:
    """Run cells in this process, but for those that others write."""
    federations: dict[Any, Federation] = {}

    def dealt(cell: Settings) -> Federation:
        how = (cell.data, cell.partition, cell.clients, cell.seed, cell.data_seed, cell.standardise)
        data = (*how, cell.valid, cell.patience)
        if data not in federations:
            federations.clear()  # the newest only: cells of one federation stand together
            federations[data] = load_data(cell)
        return federations[data]

    for place in left:
        done = finished(cells[place], parent)
        if done is None:  # only then are data needed
            try:
                done = _run_cell(cells[place], parent, partial(dealt, cells[place]))
            except BeingWritten:
                continue
        told(place, done)


def _beside_each_other(
    cells: Sequence[Settings],
    left: Sequence[int],
    parent: Path,
    jobs: int,
    told: Callable[[int, dict[str, Any]], None],
) -> None:
    """Cells for which memory is too short beside the others are run again, half as many at a time."""
    context = multiprocessing.get_context("spawn")  # a forked child cannot use a GPU its parent has used
    while left:
        short = []
        others = set(multiprocessing.active_children())
        with ProcessPoolExecutor(jobs, mp_context=context, initializer=_when_stopped, initargs=(_leave,)) as pool:
            waiting = {pool.submit(_work, cells[place], parent, jobs): place for place in left}
            try:
                for future in as_completed(waiting):
                    place = waiting[future]
                    try:
                        told(place, future.result())
                    except BeingWritten:
                        continue
                    except torch.OutOfMemoryError:
                        if jobs == 1:
                            raise
                        short.append(place)
            except BaseException:  # Ctrl-C, or a cell that cannot be run: nobody waits for the other cells
                pool.shutdown(wait=False, cancel_futures=True)
                for worker in set(multiprocessing.active_children()) - others:
                    worker.terminate()
                raise
        left, jobs = sorted(short), max(1, jobs // 2)
        if left:
            warnings.warn(
                f"not enough memory for {len(left)} runs at once: they continue, {jobs} at a time", stacklevel=2
            )


def _work(settings: Settings, parent: Path, beside: int = 1) -> dict[str, Any]:
    """A cell in a process of its own, which ends after the last whole round when it is told to stop."""
    _when_stopped(_stop)
    try:
        return run_cell(settings, parent, beside=beside)
    except KeyboardInterrupt:
        _leave()
        raise
    finally:
        _when_stopped(_leave)
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.empty_cache()  # the others may want it before the next cell does


def _when_stopped(handler: Callable[..., Any]) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handler)


def _stop(*_: object) -> None:
    _when_stopped(lambda *_: None)  # Ctrl-C reaches the worker twice: from the terminal and from its parent
    raise KeyboardInterrupt


def _leave(*_: object) -> None:
    os._exit(130)


def grouped(
    summaries: Iterable[dict[str, Any]], by: Callable[[dict[str, Any]], Any]
) -> dict[Any, list[dict[str, Any]]]:
    """Summaries that belong together, in the order they first appear."""
    groups: dict[Any, list[dict[str, Any]]] = {}
    for summary in summaries:
        groups.setdefault(by(summary), []).append(summary)
    return groups


def compare(
    methods: Sequence[str],
    data: str = "digits",
    *,
    seeds: int = 3,
    out: str | Path = "runs/compare",
    jobs: int = 1,
    against: str | None = None,
    progress: ProgressCallback | None = None,
    **settings: Any,
) -> list[dict[str, Any]]:
    """One row for each method: every metric over the seeds, and the share of clients that would do better alone.

    Arguments:
        methods: by name, with settings of their own in parentheses where they have any: "fesem(k=2)".
        data: by name or path; a partition beside it says how it is dealt.
        seeds: runs of every method, with seeds 0, 1, ...
        out: a folder for the runs; finished ones in it are not run again.
        jobs: runs beside each other, each in a process of its own.
        against: the method that the others' `difference` is to; None: the first.
        settings: of every run, as in `run`; `set={"lr": 0.1}` reaches the methods that have such a setting.
    """
    own = settings.pop("set", {})
    reference_of(methods, against)  # before anything is run
    cells = [
        Settings.of(unbracketed({"data": data, **settings, "method": method, "seed": seed, "set": known(method, own)}))
        for seed in range(seeds)
        for method in methods
    ]
    rows = compared(cells, Path(out), jobs, progress, list(methods) * seeds)
    return with_who(with_differences(rows, cells, against), cells)


def known(method: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Of some settings, those that a method has and does not set itself, in `fesem(k=2)`."""
    name, own = settings_in("method", method)
    there = parameters(name).keys() - own.keys()
    return {key: value for key, value in settings.items() if key.partition(".")[0] in there}


def compared(
    cells: Sequence[Settings],
    out: Path,
    jobs: int = 1,
    progress: ProgressCallback | None = None,
    names: Sequence[str] = (),
) -> list[dict[str, Any]]:
    """One row for each name, from cells of several seeds.

    `names` has one for each cell, where a method stands in several rows; by default it is the method's.
    """
    return rows_of(run_cells(cells, out, jobs=jobs, progress=progress), names or [cell.method for cell in cells])


def rows_of(summaries: Sequence[dict[str, Any]], names: Sequence[str]) -> list[dict[str, Any]]:
    """One row for each name, from the summaries of its seeds; `names` has one for each of them."""
    alone = {s["seed"]: served(s["run_dir"]) for s in summaries if s["method"] == "nofed" and "metrics" in s}
    named = [s | {"name": n} for s, n in zip(summaries, names, strict=True)]
    rows = []
    for name, ran in grouped(named, lambda s: s["name"]).items():
        good = [s for s in ran if "metrics" in s]
        row: dict[str, Any] = {"method": name, "runs": len(good), "diverged": len(ran) - len(good)}
        row |= {f"{key}s": [s.get(key) for s in good] for key in ("seed", "run_dir", "fingerprint")}
        metrics = good[0]["metrics"] if good else {}
        row["metrics"] = {metric: [s["metrics"].get(metric) for s in good] for metric in metrics}
        tuned = [(s.get("personalised") or {}).get(leading(metrics)) for s in good]
        row["personalised"] = tuned if None not in tuned else []
        if alone and ran[0]["method"] != "nofed":
            row["share_below_alone"] = [
                _below(served(s["run_dir"]), alone[s["seed"]]) for s in good if s["seed"] in alone
            ]
        row |= {key: good[0][key] if good else 0 for key in ("bytes_up", "bytes_down")}
        row["work"] = _mean_work([s.get("work") for s in good])
        row["seconds"] = sum(s["seconds"] for s in good)
        rows.append(row)
    return rows


def _mean_work(found: list[dict[str, float] | None]) -> dict[str, float] | None:
    """Local steps and examples of a client in a round, the mean over seeds; None: an earlier version did not count."""
    each = [work for work in found if work]
    return {key: sum(work[key] for work in each) / len(each) for key in each[0]} if each else None


def _below(scores: dict[str, float], alone: dict[str, float]) -> float:
    both = scores.keys() & alone.keys()
    return sum(scores[name] < alone[name] for name in both) / len(both) if both else float("nan")
