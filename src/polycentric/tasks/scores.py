"""How well every client is served: a few numbers for each, and what they come to over all of them.

A number of every client stands in every table as

    micro_NAME          sum n_i v_i / sum n_i      every example counts the same
    macro_NAME          mean of v_i                every client counts the same
    worst_decile_NAME                              the mean over the worst tenth of the clients

and some are made of all clients' examples together. Clients without examples count nowhere, and are counted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

Reals = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Mark:
    """One more number for each client."""

    values: Reals  # (clients,) NaN where there are no examples
    lower_is_better: bool | None = False  # None: nobody said
    root: bool = False  # of a mean: over clients the means are averaged

    def summary(self, name: str, count: Integers) -> dict[str, float]:
        """Over all examples, over clients, and the worst tenth of the clients."""
        there = (count > 0) & ~np.isnan(self.values)
        if not there.any():
            return {}
        v, n = self.values[there], count[there]
        with np.errstate(over="ignore"):
            micro = float(np.sqrt(n @ v**2 / n.sum()) if self.root else n @ v / n.sum())
        found = {f"micro_{name}": micro, f"macro_{name}": float(v.mean())}
        if self.lower_is_better is None:
            return found
        sign = -1 if self.lower_is_better else 1
        return found | {f"worst_decile_{name}": sign * worst_decile(sign * v)}


@dataclass(frozen=True, eq=False)
class Scores:
    """What every client's model does on its own examples."""

    count: Integers  # (clients,) examples
    loss: Reals  # (clients,) mean loss; NaN where there are no examples
    accuracy: Reals = field(default_factory=lambda: np.zeros(0))  # (clients,) NaN where nothing is right or wrong
    f1: Reals = field(default_factory=lambda: np.zeros(0))  # (clients,) the same
    pooled: Mapping[str, float] = field(default_factory=dict)  # of all clients' examples together; NaN: not defined
    marks: Mapping[str, Mark] = field(default_factory=dict)  # of numbers to predict, several labels, a user's own
    serves: str = ""  # the mark that says how well a client is served, where accuracy does not

    def __post_init__(self) -> None:
        for name in ("accuracy", "f1"):
            if not len(getattr(self, name)):
                object.__setattr__(self, name, np.full(len(self.count), np.nan))

    @property
    def there(self) -> npt.NDArray[np.bool_]:
        """Clients that have examples."""
        return self.count > 0

    def only(self, which: npt.NDArray[np.bool_]) -> Scores:
        """The scores of some clients; what is pooled over all cannot be told for them."""
        mine = {name: getattr(self, name)[which] for name in ("count", "loss", "accuracy", "f1")}
        marks = {name: replace(mark, values=mark.values[which]) for name, mark in self.marks.items()}
        return replace(self, **mine, pooled={}, marks=marks)

    def beside(self, part: str, alone: Scores) -> Scores:
        """The same, with how well a part of the models would do alone: its accuracy, how far it is off, its mark."""
        name = self.serves or ("rmse" if "rmse" in alone.marks else "accuracy")
        mark = alone.marks[name] if name in alone.marks else Mark(alone.accuracy)
        return replace(self, marks={**self.marks, f"{name}_{part}": mark})

    @property
    def chief(self) -> tuple[str, Reals]:
        """The number that says most of every client, and its name: accuracy; or a mark; or the loss."""
        if not np.isnan(self.accuracy[self.there]).any():
            return "accuracy", self.accuracy
        return (self.serves, self.marks[self.serves].values) if self.serves else ("loss", self.loss)

    @property
    def served(self) -> Reals:
        """How well every client is served, more is better."""
        name, values = self.chief
        less = name == "loss" or (name in self.marks and self.marks[name].lower_is_better)
        return -values if less else values

    def summary(self) -> dict[str, float]:
        """The numbers of one evaluation, by name."""
        if not self.there.any():
            return {"clients_without_examples": float(len(self.count))}
        n, loss = self.count[self.there], self.loss[self.there]
        out = {"micro_loss": float(n @ loss / n.sum()), "macro_loss": float(loss.mean())}
        pooled = {name: value for name, value in self.pooled.items() if not math.isnan(value)}
        if not np.isnan(self.accuracy[self.there]).any():
            a, f = self.accuracy[self.there], self.f1[self.there]
            out |= {
                "micro_accuracy": float(n @ a / n.sum()),
                "macro_accuracy": float(a.mean()),
                "micro_f1": float(n @ f / n.sum()),
                "macro_f1": float(f.mean()),
                **pooled,
                "worst_decile_accuracy": worst_decile(a),
                "accuracy_p10": float(np.percentile(a, 10)),
                "accuracy_p50": float(np.percentile(a, 50)),
                "accuracy_p90": float(np.percentile(a, 90)),
                "accuracy_std": float(a.std()),
            }
        else:
            out |= pooled
        for name, mark in self.marks.items():
            out |= mark.summary(name, self.count)
        out["clients_without_examples"] = float((~self.there).sum())
        return out


def mean_by_client(values: Reals, owner: Integers, count: Integers) -> Reals:
    """The mean over each client's examples, (clients,); NaN where there are none."""
    with np.errstate(invalid="ignore"):
        mean: Reals = np.bincount(owner, weights=values, minlength=len(count)) / count
    return mean


def worst_decile(accuracy: Reals) -> float:
    """The mean of the worst tenth, at least one client."""
    return float(np.sort(accuracy)[: max(1, len(accuracy) // 10)].mean())
