"""Many runs as one table: every cell in a folder of its own, done once, gone on with after an interruption.

A cell's folder is named by a digest of its settings. A cell with a summary is read, one that was begun is
resumed, and only the others are run; so a table that was interrupted goes on where it stopped.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import signal
import warnings
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from ..data import Federation, parse
from ..errors import Diverged, UsageError
from ..language import files_of
from ..simulate.ranks import ALONE, Ranks
from .loop import Run, Watcher, environment, resume
from .record import Folder
from .settings import Settings

Told = Callable[[int, int, dict[str, Any]], None]  # (cells done, cells in all, the newest summary)


def digest(settings: Settings) -> str:
    """A short name for settings: equal settings, equal names; where and how often they write does not matter."""
    # Defaults are left out, so that a setting added later does not orphan the runs there are.
    said = settings.model_dump(exclude={"device", "checkpoint_every", "workers", "state"}, exclude_defaults=True)
    files = _files(settings)
    text = json.dumps(said | ({"files": files} if files else {}), sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _files(settings: Settings) -> dict[str, str]:
    """What is in the files that settings name, such as `table(cells.csv)`: another content is another run."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what is built here is built again, and warns then
        parts: list[object] = [settings.build_method()]
        if settings.partition is not None:
            parts.append(parse(settings.partition, settings.clients))
    return {path: hashlib.sha256(Path(path).read_bytes()).hexdigest() for path in sorted(files_of(parts))}


def enter(prepared: Run, settings: Settings, folder: Folder) -> Run:
    """Give a run its folder, and write there what it was made from."""
    prepared.folder = folder
    # `auto` is resolved, so that a resumed run does what this one does whatever it finds later.
    found: dict[str, Any] = {"executor": prepared.clients.executor, "device": str(prepared.clients.task.device)}
    if prepared.clients.block is not None:  # it goes on with the same blocks, whatever there is room for then
        found |= {"block": prepared.clients.block}
    if prepared.clients.ranks.size > 1:  # and with any number of ranks
        found |= {"device": prepared.clients.task.device.type}
    folder.write_json("config.json", settings.model_dump() | found)
    folder.write_json("environment.json", environment(prepared))
    return prepared


def reopen(
    folder: Folder | None,
    watch: Watcher | None = None,
    federation: Federation | None = None,
    ranks: Ranks = ALONE,
) -> tuple[Run, list[str]]:
    """Go on with a run from its folder alone, with as many threads as it began with: sums depend on them.

    Of several ranks only the first has the folder: it tells the others what is in it.
    """
    told = ""
    with ranks.together():
        if folder:
            environment = folder.read_json("environment.json")
            told = json.dumps([settings_of(folder).model_dump(), environment.get("threads")])
    values, threads = json.loads(ranks.text(told))
    with ranks.together():
        settings = Settings.of(values)
        if ranks.size > 1:  # every rank takes its own
            settings = settings.model_copy(update={"device": settings.device.partition(":")[0]})
        prepared = settings.prepare(federation, ranks)
        if isinstance(threads, int) and 1 <= threads <= 1024 and threads != torch.get_num_threads():
            torch.set_num_threads(threads)
    return resume(prepared, folder, watch)


def ended(folder: Folder, device: str | None = None) -> Run:
    """A finished run as it was at its end, for looking at: nothing is trained, nothing written.

    `device`: where to look at it; None: where it was run.
    """
    settings = settings_of(folder)
    prepared = (settings if device is None else settings.model_copy(update={"device": device})).prepare()
    checkpoint, problems = folder.load(prepared.clients.task.device)
    if checkpoint is None:
        raise UsageError(f"{folder.path} has no checkpoint that is whole: {'; '.join(problems) or 'there is none'}")
    prepared.state, prepared.tally, prepared.folder = checkpoint.state, checkpoint.tally, folder
    prepared.history, prepared.places = list(checkpoint.history), folder.read_places()
    if prepared.schedule.patience and checkpoint.tally.best_round is not None:
        prepared.state = folder.load_best(prepared.clients.task.device)
    return prepared


def settings_of(folder: Folder) -> Settings:
    """What a run was made from."""
    values, where = folder.read_json("config.json"), str(folder.path / "config.json")
    if "data" not in values:
        raise UsageError(f"{where} does not say which data: the run was begun in Python, so go on with it from there")
    return Settings.of(values, where)


def home(settings: Settings, parent: Path) -> Path:
    """Where a cell's run is, or will be."""
    return parent / f"{settings.method}-{digest(settings)}"


def finished(settings: Settings, parent: Path) -> dict[str, Any] | None:
    """The summary of a cell that was run to its end; None if it was not."""
    path = home(settings, parent)
    return Folder(path).read_json("summary.json") if (path / "summary.json").is_file() else None


def run_cell(
    settings: Settings,
    parent: Path,
    federation: Federation | None = None,
    watch: Watcher | None = None,
    *,
    beside: int = 1,
) -> dict[str, Any]:
    """The summary of one cell, run only as far as it has to be, with so many `beside` each other."""
    if done := finished(settings, parent):
        return done
    path = home(settings, parent)
    try:
        if (path / "environment.json").is_file():
            return reopen(Folder.open(path), watch, federation)[0].summary()
        (path / "checkpoints").mkdir(parents=True, exist_ok=True)
        prepared = in_its_share(settings.prepare(federation), beside)
        return enter(prepared, settings, Folder(path)).go(watch).summary()
    except Diverged as error:
        found = {"method": settings.method, "seed": settings.seed, "diverged": str(error), "run_dir": str(path)}
        Folder(path).write_json("summary.json", found)  # it would diverge again: once is enough
        return found


def in_its_share(prepared: Run, beside: int) -> Run:
    """The same run in smaller blocks, where several share a GPU and nobody said how large they are.

    A block is twice its share: runs seldom need all their room at the same time.
    """
    clients = prepared.clients
    if beside > 2 and clients.block is None and clients.task.device.type == "cuda":
        prepared.clients = replace(clients, block=max(1, 2 * clients.block_size // beside))
    return prepared


def run_cells(
    cells: Sequence[Settings], parent: Path, *, jobs: int = 1, told: Told | None = None
) -> list[dict[str, Any]]:
    """The summaries of all cells, in their order. `jobs` > 1 runs so many processes beside each other."""
    parent.mkdir(parents=True, exist_ok=True)
    if jobs > 1:
        return _beside_each_other(cells, parent, jobs, told)
    out, federations = [], {}
    for cell in cells:
        data = (cell.data, cell.partition, cell.clients, cell.seed, cell.valid, cell.patience)
        if data not in federations:
            federations = {data: cell.load_data()}  # the newest only: cells of one federation stand together
        out.append(run_cell(cell, parent, federations[data]))
        if told:
            told(len(out), len(cells), out[-1])
    return out


def _beside_each_other(cells: Sequence[Settings], parent: Path, jobs: int, told: Told | None) -> list[dict[str, Any]]:
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
                    if told:
                        told(done, len(cells), out[place])
            except BaseException:  # Ctrl-C, or a cell that cannot be run: nobody waits for the other cells
                pool.shutdown(wait=False, cancel_futures=True)
                for worker in set(multiprocessing.active_children()) - others:
                    worker.terminate()
                raise
        left, jobs = sorted(short), max(1, jobs // 2)
        if left:
            warnings.warn(f"memory was too short for {len(left)} runs: they go on, {jobs} at a time", stacklevel=2)
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
