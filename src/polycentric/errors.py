"""Errors that the user can fix: one line, no traceback.

Every message says *what*, *which value*, *why*, and *what to type instead*.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable
from typing import Any

LARGEST_FLOAT = (2 - 2**-23) * 2.0**127  # what float32 holds: a larger number is infinite in a model

SYNONYMS = {  # what others call it: what it is called here
    **dict.fromkeys(("learning_rate", "client_lr", "step_size", "eta"), "lr"),
    **dict.fromkeys(("batch_size", "local_batch_size", "minibatch"), "batch"),
    **dict.fromkeys(("local_epochs", "num_epochs", "n_epochs", "client_epochs"), "epochs"),
    **dict.fromkeys(("local_steps", "num_steps", "n_steps", "local_iterations"), "steps"),
    **dict.fromkeys(("num_rounds", "n_rounds", "global_rounds", "comm_rounds", "communication_rounds"), "rounds"),
    **dict.fromkeys(("num_clients", "n_clients", "clients_number", "num_users"), "clients"),
    **dict.fromkeys(("random_seed", "random_state"), "seed"),
    **dict.fromkeys(("dataset", "data_set"), "data"),
    **dict.fromkeys(("algorithm", "strategy", "aggregator"), "method"),
    **dict.fromkeys(("num_clusters", "n_clusters", "clusters", "n_centers"), "k"),
    **dict.fromkeys(("early_stopping", "early_stopping_patience"), "patience"),
    **dict.fromkeys(("output", "output_dir", "out_dir", "log_dir"), "out"),
    **dict.fromkeys(("participation", "sampler", "client_selection"), "select"),
    **dict.fromkeys(("l2", "l2_penalty"), "weight_decay"),
    **dict.fromkeys(("net", "network", "architecture"), "model"),
    **dict.fromkeys(("validation", "validation_split", "val_split"), "valid"),
}


def synonym(name: str) -> str | None:
    """What is called here what others call `name`.

    >>> synonym("--batch-size")
    'batch'
    """
    return SYNONYMS.get(name.lower().lstrip("-").replace("-", "_"))


class UsageError(ValueError):
    """A wrong setting, argument or file; the command prints it as one line and exits with code 2."""

    def __init__(self, message: str) -> None:
        # What is quoted may hold line breaks or terminal codes; the message stays one printable line.
        super().__init__("".join(c if c.isprintable() else " " for c in message))


class Diverged(RuntimeError):
    """The training diverged: most of a cohort sent NaN or infinity; the state before that round is kept."""


class Unwritten(UsageError):
    """A file of a run that could not be written: a disk that is full, fails, or is closed to us."""

    def __init__(self, where: object, reason: str, again: str = "`polycentric resume`") -> None:
        self.where, self.reason = where, reason
        super().__init__(
            f"cannot write {where}: {reason}; earlier checkpoints are intact, so free some space and continue with "
            f"{again}"
        )


class Lost(RuntimeError):
    """Another rank of the run has ended or does not answer; the state of the last complete round is kept."""


class OtherRankFailed(RuntimeError):
    """Another rank has failed and prints why, so this one ends silently."""


def unknown(what: str, name: str, choices: Iterable[str]) -> UsageError:
    """The error for an unknown name, with the nearest known one.

    >>> print(unknown("method", "fedavgg", ["fedavg", "fedprox"]))
    unknown method 'fedavgg': did you mean 'fedavg'? Known: fedavg, fedprox
    """
    known = sorted(choices)
    meant = synonym(name)
    near = [meant] if meant in known else difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.5)
    hint = f"did you mean '{near[0]}'? " if near else ""
    return UsageError(f"unknown {what} '{name}': {hint}Known: {', '.join(known)}")


def require(condition: bool, message: str) -> None:
    """Refuse with `message` unless `condition` holds."""
    if not condition:
        raise UsageError(message)


def within(part: Any, **bounds: str | tuple[str, ...]) -> None:
    """Refuse a part with a field outside of its bounds: `lr=">= 0"`, `beta="[0, 1)"`, `how=("a", "b")`; None is inside.

    A bound may name a sensible value, which the message repeats: `eps="> 0; try 1e-3"`.

    >>> within(slice(0, 3), start=">= 0", stop="(0, 3]", step="> 0")
    """
    for name, bound in bounds.items():
        value, hint = getattr(part, name), ""
        if value is None:
            continue
        large = isinstance(value, int | float) and not held(value)
        require(not large, f"{type(part).__name__}.{name} must be at most {LARGEST_FLOAT:.3g}, got {value!r}")
        if isinstance(bound, tuple):
            good, wanted = value in bound, f"{', '.join(bound[:-1])} or {bound[-1]}"
        else:
            bound, semicolon, advice = bound.partition("; ")
            good, wanted = _inside(value, bound), {"> 0": "positive", ">= 1": "at least 1"}.get(bound, bound)
            wanted, hint = wanted if bound[0] == ">" else f"in {bound}", semicolon + advice
        require(good, f"{type(part).__name__}.{name} must be {wanted}, got {value!r}{hint}")


def held(number: float) -> bool:
    """Whether float32 has room for a number; infinity and NaN are what they are.

    >>> held(1e38), held(-1e39), held(math.inf)
    (True, False, True)
    """
    return abs(number) <= LARGEST_FLOAT or not math.isfinite(number)


def _inside(value: Any, bound: str) -> bool:
    """Whether a number is inside of a bound such as `>= 0` or `[0, 1)`."""
    if bound.startswith(">"):
        sign, least = bound.split()
        return bool(value >= float(least) if sign == ">=" else value > float(least))
    low, high = map(float, bound[1:-1].split(","))
    above = value >= low if bound[0] == "[" else value > low
    return bool(above and (value <= high if bound[-1] == "]" else value < high))
