"""Many runs as one table: every cell in a folder of its own, done once, gone on with after an interruption.

A cell's folder is named by a digest of its settings. A cell with a summary is read, one that was begun is
resumed, and only the others are run; so a table that was interrupted goes on where it stopped. `compare` makes a table
of methods on the same federation over several seeds, with a row for each method.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import signal
import warnings
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import torch

from ..data import Federation, parse
from ..errors import Diverged
from ..language import files_of
from ..language.own_code import digest_of, own_names
from .folder import Folder, file_name
from .recipes import parameters
from .settings import Settings
from .start import Given, attach_folder, built_method, load_data, prepared, resumed

ProgressCallback = Callable[[int, int, dict[str, Any]], None]  # (cells done, cells in all, the newest summary)


def digest(settings: Settings) -> str:
    """A short name for settings: equal settings, equal names; where and how often they write does not matter."""
    return settings.name(_files(settings))


def _files(settings: Settings) -> dict[str, str]:
    """What is in the files that settings name, such as `table(cells.csv)`: another content is another run."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what is built here is built again, and warns then
        parts: list[object] = [built_method(settings)]
        if settings.partition is not None:
            parts.append(parse(settings.partition, settings.clients))
    files = {path: hashlib.sha256(Path(path).read_bytes()).hexdigest() for path in sorted(files_of(parts))}
    return files | {name: digest_of(name) for name in sorted(own_names(settings.model_dump()))}


def run_dir(settings: Settings, parent: Path) -> Path:
    """Where a cell's run is, or will be."""
    return parent / file_name(f"{settings.method}-{digest(settings)}")


def finished(settings: Settings, parent: Path) -> dict[str, Any] | None:
    """The summary of a cell that was run to its end; None if it was not."""
    folder = Folder(run_dir(settings, parent))
    return folder.read_json("summary.json") if folder.finished else None


def run_cell(
    settings: Settings, parent: Path, federation: Federation | None = None, *, beside: int = 1
) -> dict[str, Any]:
    """The summary of one cell, run only as far as it has to be, with so many `beside` each other."""
    if done := finished(settings, parent):
        return done
    path, given = run_dir(settings, parent), Given(federation=federation)
    try:
        if Folder(path).begun:
            return resumed(Folder.open(path), given)[0].go().summary()
        (path / "checkpoints").mkdir(parents=True, exist_ok=True)
        return attach_folder(prepared(settings, given, beside=beside), Folder(path)).go().summary()
    except Diverged as error:
        found = {"method": settings.method, "seed": settings.seed, "diverged": str(error), "run_dir": str(path)}
        Folder(path).write_json("summary.json", found)  # it would diverge again: once is enough
        return found


def run_cells(
    cells: Sequence[Settings], parent: Path, *, jobs: int = 1, progress: ProgressCallback | None = None
) -> list[dict[str, Any]]:
    """The summaries of all cells, in their order. `jobs` > 1 runs so many processes beside each other."""
    parent.mkdir(parents=True, exist_ok=True)
    if jobs > 1:
        return _beside_each_other(cells, parent, jobs, progress)
    out, federations = [], {}
    for cell in cells:
        dealt = (cell.data, cell.partition, cell.clients, cell.seed, cell.data_seed, cell.standardise)
        data = (*dealt, cell.valid, cell.patience)
        if data not in federations:
            federations = {data: load_data(cell)}  # the newest only: cells of one federation stand together
        out.append(run_cell(cell, parent, federations[data]))
        if progress:
            progress(len(out), len(cells), out[-1])
    return out


def _beside_each_other(
    cells: Sequence[Settings], parent: Path, jobs: int, progress: ProgressCallback | None
) -> list[dict[str, Any]]:
    """Cells for which memory is too short beside the others are run again, half as many at a time."""
    context = multiprocessing.get_context("spawn")  # a forked child cannot use a GPU its parent has used
    out: list[dict[str, Any]] = [{} for _ in cells]
    left, done = list(range(len(cells))), 0
    while left:
        short = []
        others = set(multiprocessing.active_children())
        with ProcessPoolExecutor(jobs, mp_context=context, initializer=_when_stopped, initargs=(_leave,)) as pool:
            waiting = {pool.submit(_work, cells[place], parent, jobs): place for place in left}
            try:
                for future in as_completed(waiting):
                    place = waiting[future]
                    try:
                        out[place] = future.result()
                    except torch.OutOfMemoryError:
                        if jobs == 1:
                            raise
                        short.append(place)
                        continue
                    done += 1
                    if progress:
                        progress(done, len(cells), out[place])
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
    return out


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
    progress: ProgressCallback | None = None,
    **settings: Any,
) -> list[dict[str, Any]]:
    """One row for each method: every metric over the seeds, and the share of clients that would do better alone.

    Arguments:
        methods: by name.
        data: by name or path; a partition beside it says how it is dealt.
        seeds: runs of every method, with seeds 0, 1, ...
        out: a folder for the runs; finished ones in it are not run again.
        jobs: runs beside each other, each in a process of its own.
        settings: of every run, as in `run`; `set={"lr": 0.1}` reaches the methods that have such a setting.
    """
    own = settings.pop("set", {})
    cells = [
        Settings.of({"data": data, **settings, "method": method, "seed": seed, "set": known(method, own)})
        for seed in range(seeds)
        for method in methods
    ]
    return compared(cells, Path(out), jobs, progress)


def known(method: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Of some settings, those that a method has."""
    return {key: value for key, value in settings.items() if key.partition(".")[0] in parameters(method)}


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
    summaries = run_cells(cells, out, jobs=jobs, progress=progress)
    alone = {s["seed"]: _accuracies(s) for s in summaries if s["method"] == "nofed" and "metrics" in s}
    named = [s | {"name": n} for s, n in zip(summaries, names or [c.method for c in cells], strict=True)]
    rows = []
    for name, ran in grouped(named, lambda s: s["name"]).items():
        good = [s for s in ran if "metrics" in s]
        row: dict[str, Any] = {"method": name, "runs": len(good), "diverged": len(ran) - len(good)}
        metrics = good[0]["metrics"] if good else {}
        row["metrics"] = {metric: [s["metrics"].get(metric) for s in good] for metric in metrics}
        tuned = [(s.get("personalised") or {}).get("micro_accuracy") for s in good]
        row["personalised"] = [accuracy for accuracy in tuned if accuracy is not None]
        if alone and ran[0]["method"] != "nofed":
            row["share_below_alone"] = [_below(_accuracies(s), alone[s["seed"]]) for s in good if s["seed"] in alone]
        row |= {key: good[0][key] if good else 0 for key in ("bytes_up", "bytes_down")}
        row["seconds"] = sum(s["seconds"] for s in good)
        rows.append(row)
    return rows


def _accuracies(summary: dict[str, Any]) -> dict[str, float]:
    rows = Folder(Path(summary["run_dir"])).read_clients()
    return {row["client"]: float(row["accuracy_in_use"]) for row in rows if row["accuracy_in_use"]}


def _below(scores: dict[str, float], alone: dict[str, float]) -> float:
    both = scores.keys() & alone.keys()
    return sum(scores[name] < alone[name] for name in both) / len(both) if both else float("nan")
