"""What a run writes into its folder while it goes and when it ends: checkpoints, tables, the summary."""

from __future__ import annotations

import hashlib
import html
import json
import math
import time
from collections.abc import Sequence
from itertools import starmap
from typing import TYPE_CHECKING, Any

import torch

from ..data.table_file import csv_text
from ..errors import UsageError
from ..learn.cpu.library import library
from ..round import Trip
from ..simulate.homes import away
from .checkpoint import Checkpoint, columns
from .folder import Folder, places_line, sketch_name
from .guarantee import smallest, spent
from .loop import Callback
from .machine import versions
from .metrics import is_share, participation, plain, share_below
from .models_apart import edge_scores
from .serving import personal
from .settings import without
from .unseen import told

if TYPE_CHECKING:
    from .loop import Run

SHOWN = ("micro_accuracy", "macro_accuracy", "worst_decile_accuracy", "micro_rmse", "r2", "micro_loss")  # in a notebook


class Recorder(Callback):
    """Writes a run's folder: metrics as they come, a checkpoint now and then, the summary at the end."""

    sees_kept = False

    def __init__(self, folder: Folder, identity: str) -> None:
        self.folder, self.identity = folder, identity
        self.saved, self.dropped, self.places = time.monotonic(), 0, hashlib.sha256()

    def on_start(self, run: Run) -> None:
        """The time to the first checkpoint begins."""
        self.saved, self.dropped = time.monotonic(), run.tally.dropped
        self.places = hashlib.sha256("".join(starmap(places_line, run.places.items())).encode())

    def on_evaluation(self, run: Run, row: dict[str, Any]) -> None:
        """One line of metrics, one of places, and the best state."""
        if run.tally.best_round == run.state.round and run.best is run.state:
            self.folder.save_best(run.state, columns(run.clients.task.layouts, run.state), self.identity)
        if run.state.round in run.places:
            self.places.update(self.folder.append_places(run.state.round, run.places[run.state.round]).encode())
        if run.state.round in run.sketches:
            self.folder.write_sketch(run.state.round, run.sketches[run.state.round])
        self.folder.append_metrics(row)

    def on_round(self, run: Run, trips: Sequence[Trip]) -> None:
        """A checkpoint, when it is time."""
        self.folder.keep()
        if lost := run.tally.dropped - self.dropped:
            self.folder.log(
                f"round {run.state.round - 1}: {lost} client updates were NaN or infinite and were left out"
            )
            self.dropped = run.tally.dropped
        if run.settings.saves(run.state.round, time.monotonic() - self.saved) and not away(run.state):
            self.on_stop(run)

    def on_stop(self, run: Run) -> None:
        """A checkpoint of the last whole round."""
        layout, places = columns(run.clients.task.layouts, run.state), self.places.hexdigest()
        self.folder.save(Checkpoint(run.state, run.tally, tuple(run.history), layout, places), self.identity)
        self.saved = time.monotonic()

    def on_end(self, run: Run) -> None:
        """Tables, and last of all the summary, with the digests of all that was written."""
        self.folder.rewind_metrics(run.history)  # whatever became of the file since its lines were written
        self.folder.write_text("clients.csv", clients_table(run))
        if edges := edges_table(run):
            self.folder.write_text("edges.csv", edges)
        tables = run.now.exchange.topology.tables(run.state.memory)
        for name, tensors in tables.items():
            self.folder.write_tensors(name, tensors)
        sketches = [sketch_name(round) for round in self.folder.sketched()]
        self.folder.finish(summary(run), [*tables, *sketches])
        self.folder.log(f"ended after round {run.state.round}" + (f": {run.stopped}" if run.stopped else ""))


def summary(run: Run) -> dict[str, Any]:
    """The run in one JSON object."""

    def counted(name: str) -> dict[str, Any] | None:
        return plain(run.now.counted(run.scores[name]).summary()) if name in run.scores else None

    mask, scores = run.clients.held_out_mask.numpy(), run.scores if run.clients.held_out else {}
    held_out: dict[str, Any] = {name: told(found.only(mask), name) for name, found in scores.items()}
    if held_out and (own := personal(run)):  # they were never trained there: their scores in use are no results
        held_out["untrained"] = list(own)
    tuned = counted("personalised")
    if tuned is not None:  # and the share of clients that fine-tuning made worse
        after, before = (run.now.counted(run.scores[name]) for name in ("personalised", "in_use"))
        tuned |= plain({"share_worse": share_below(after, before)})
    metrics, promises = plain(run.metrics), spent(run)
    if "alone" in run.scores:
        below = share_below(*(run.now.counted(run.scores[name]) for name in ("in_use", "alone")))
        metrics |= plain({"share_below_alone": below})
    return {
        "method": run.method.name,
        "data": run.federation.name,
        "model": run.model,
        "clients": run.federation.n_clients,
        "seed": run.clients.seed,
        "rounds": run.state.round,
        "seconds": round(run.seconds, 3),
        "run_dir": str(run.folder.path) if run.folder else None,
        "metrics": metrics,
        "initial": counted("initial"),
        "personalised": tuned,
        **({"unseen": run.unseen.summary(run)} if run.settings.unseen and run.unseen else {}),
        **optimistic_scores(run),
        "held_out": held_out or None,
        "bytes_up": run.tally.bytes_up,
        "bytes_down": run.tally.bytes_down,
        "bytes_by_link": dict(run.tally.links),
        "work": run.tally.work,  # of a client in a round: local steps, and examples
        "simulated_seconds": run.tally.seconds,
        "late": run.tally.late,
        "participation": took_part(run),
        "epsilon": (smallest(promises) or {"epsilon": None})["epsilon"],
        "privacy": promises or None,
        "dropped": run.tally.dropped,
        "attack": repr(run.clients.attack) if run.clients.attack else None,
        "attackers": int(run.clients.attackers.sum()),  # their scores count nowhere
        "best_round": run.tally.best_round,
        "best_validation": run.tally.best,
        "validation": run.validation,
        "rounds_to_target": run.rounds_to_target,
        "stopped": run.stopped or None,
        "executor": run.clients.executor,
        "fingerprint": run.federation.fingerprint,
        "note": run.federation.note or None,
    }


def in_notebook(run: Run) -> str:
    """A small table in HTML; names are text, whatever is in them."""
    told = {"before training": "initial", "in use": "in_use", "after fine-tuning": "personalised"}
    found = {head: run.now.counted(run.scores[key]).summary() for head, key in told.items() if key in run.scores}
    data, of = run.federation, f"{run.state.round} of {run.settings.rounds} rounds"
    head = html.escape(f"{run.method.name} on {data.name}, {data.n_clients} clients, {of}")
    shown = [name for name in SHOWN if any(name in scores for scores in found.values())]

    def cell(name: str, value: float | None) -> str:
        text = (
            "-" if value is None or not math.isfinite(value) else f"{value:.1%}" if is_share(name) else f"{value:.4g}"
        )
        return f"<td style='text-align:right'>{text}</td>"

    lines = [
        f"<tr><th style='text-align:left'>{name}</th>{''.join(cell(name, s.get(name)) for s in found.values())}</tr>"
        for name in shown
    ]
    columns = "".join(f"<th>{column}</th>" for column in found)
    return f"<table><caption>{head}</caption><tr><th></th>{columns}</tr>{''.join(lines)}</table>"


def optimistic_scores(run: Run) -> dict[str, Any]:
    """What centers chosen by the test labels would score: to be shown beside a result, never as one."""
    if not run.settings.optimistic:
        return {}
    if "optimistic" not in run.scores:
        return {"optimistic": None}
    each, one = (plain(run.now.counted(run.scores[name]).summary()) for name in ("optimistic", "one_center"))
    return {"optimistic": {**each, "one_center": one}}


def took_part(run: Run) -> dict[str, Any] | None:
    """How often those who train took part, where there was a round."""
    return None if run.tally.took is None else participation(run.tally.took[run.now.trains].numpy()) or None


def clients_table(run: Run) -> str:
    """Every client's scores, a line each."""
    columns = [name for name in ("initial", "in_use", "personalised") if name in run.scores]
    marks = list(run.scores["in_use"].marks)  # of numbers to predict, several labels, a user's own
    heads = [f"{what}_{c}" for what in ("accuracy", "loss", *marks) for c in columns]
    group, trains, names = run.federation.group, run.now.trains, run.federation.group_names
    rows: list[list[Any]] = [
        ["client", "group", *(["group_name"] if names else []), "test_examples", *heads, "took_part"]
    ]
    for k, name in enumerate(run.federation.clients):
        values = [run.scores[c].accuracy[k] for c in columns] + [run.scores[c].loss[k] for c in columns]
        values += [run.scores[c].marks[mark].values[k] for mark in marks for c in columns]
        counts = not bool(run.clients.attackers[k])  # an attacker's scores count nowhere
        shown = [f"{v:.6g}" if counts and not math.isnan(v) else "" for v in values]
        took = str(int(run.tally.took[k])) if run.tally.took is not None and bool(trains[k]) else ""
        place = [""] if group is None else [int(group[k]), *([names[int(group[k])]] if names else [])]
        rows.append([name, *place, int(run.scores["in_use"].count[k]), *shown, took])
    return csv_text(rows)


def edges_table(run: Run) -> str:
    """Every edge's accuracy on all examples and in its own cell; empty where there are no edges."""
    edges = edge_scores(run.method, run.state, run.clients, run.federation.test)
    if edges is None:
        return ""
    both = zip(*map(torch.Tensor.tolist, edges), strict=True)
    lines = [f"{k},{a:.6g},{h:.6g}" for k, (a, h) in enumerate(both)]
    return "\n".join(["edge,accuracy,accuracy_in_cell", *lines, ""])


def identity(made: Run, threads: int | None) -> str:
    """A digest of all that decides what a run comes to: what a checkpoint must share with the run it is loaded into.

    None: of how many threads is not known, and neither are names and blocks, as in earlier versions.
    """
    bound = made.settings.model_dump(exclude=without("bound"), exclude_defaults=True)  # later options orphan nobody
    facts: list[Any] = [
        bound,
        repr(made.method),
        repr(made.clock),
        repr(made.clients.attack),
        made.federation.fingerprint,
    ]
    facts += [made.clients.task.width, made.clients.task.precision]
    if threads is not None:
        data = made.federation
        groups = None if data.group is None else data.group.tolist()
        facts += [threads, made.clients.block, data.classes, data.clients, data.group_names, groups]
    text = json.dumps(facts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _attribute(made: Run) -> dict[str, str]:
    """A digest of the protected attribute, where it is learned from besides x and y, and here."""
    values = made.federation.train.protected
    if not made.clients.task.auxiliary or values is None or made.federation.absent:
        return {}
    return {"protected attribute": hashlib.sha256(values.contiguous().cpu().numpy().data).hexdigest()[:16]}


def environment(made: Run) -> dict[str, Any]:
    """What a number depends on besides the settings."""
    threads = 1 if made.clients.by_work else torch.get_num_threads()
    return versions() | {
        "device": str(made.clients.task.device),
        "threads": threads,
        "workers": made.clients.n_workers,
        "executor": made.clients.executor,
        "compiled": library() is not None,
        "block": made.clients.block_size,
        "ranks": made.clients.ranks.size,
        "fingerprint": made.federation.fingerprint,
        "parameters": made.clients.task.width,
        "precision": made.clients.task.precision,
        "method": repr(made.method),
        "clock": repr(made.clock),
        "attack": repr(made.clients.attack),
        "identity": identity(made, threads),
        **_attribute(made),
    }


def check_the_same(made: Run, folder: Folder) -> str:
    """Refuse a run that is not the one in a folder: other data, another method, other cells; returns its identity."""
    was = folder.read_environment()
    if was.get("fingerprint") != made.federation.fingerprint:
        raise UsageError(
            f"the data are not those the run was started with (fingerprint {made.federation.fingerprint}, then "
            f"{was.get('fingerprint')}): restore them, or start a new run"
        )
    same = {"parameters": made.clients.task.width, "method": repr(made.method)}
    same |= {"attack": repr(made.clients.attack), "clock": repr(made.clock), **_attribute(made)}
    for what, now in same.items():
        if was.get(what, now) != now:
            again = "restore its config.json and the files it names, or start a new run"
            raise UsageError(f"not the {what} that the run was started with: {again}")
    known = identity(made, was.get("threads"))
    if was.get("identity", known) not in (known, *([] if was["settings"] else [identity(made, None)])):
        raise UsageError(
            f"not what {folder.path} was started with: its config.json, or names of classes, clients or groups in its "
            "data, were changed since; restore them, or start a new run"
        )
    executor, compiled = made.clients.executor, library() is not None
    if was.get("executor", executor) != executor:
        folder.log(f"resumed with executor {executor}, started with {was['executor']}: equal only to rounding")
    elif executor == "traced" and was.get("compiled", compiled) != compiled:
        now, then = ("with", "without") if compiled else ("without", "with")
        folder.log(f"resumed {now} compiled steps, started {then} them: equal only to rounding")
    return str(was.get("identity", known))
