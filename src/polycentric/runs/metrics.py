"""How well every client is served, and what that comes to over all of them.

For client i with n_i test examples, accuracy a_i, and f_i the class-macro F1 over the classes present in its
labels or predictions (0/0 counts as 0):

    micro_accuracy   sum n_i a_i / sum n_i      every example counts the same
    macro_accuracy   mean of a_i                every client counts the same
    micro_f1         sum n_i f_i / sum n_i      weighted by examples ("micro" as the papers use it; the usual
                                                micro-F1 of single labels is nothing but accuracy)
    macro_f1         mean of f_i
    pooled_f1        class-macro F1 of all predictions together
    worst_decile_accuracy                       mean a_i of the worst tenth of the clients
    r2               1 - sum (z - y)^2 / sum (y - mean y)^2      numbers to predict: of all examples together
    auc              P(s > s') + P(s = s') / 2  two classes: s of a random example of class 1, s' of class 0, all
                                                clients' together; the area under the ROC curve
    minority_recall                             two classes: share of the rarer class that is recognised

Where several labels are learned, a_i is the share of labels that are right, f_i the mean F1 over labels, and `exact`
the share of examples with all labels right. Where numbers are predicted, `rmse` is the root of the mean squared error
and `mae` the mean absolute error of a client; micro_rmse is that of all examples. Metrics of the user's own have the
same three forms (micro, macro, worst_decile).

Clients without test examples count nowhere, and are counted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

Reals = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]


POOLED = ("pooled_f1", "auc", "minority_recall", "r2")  # over all clients' examples together


def is_share(name: str) -> bool:
    """Whether a metric lies between 0 and 1 and is shown to people in percent.

    >>> is_share("worst_decile_accuracy"), is_share("condition")
    (True, False)
    """
    return any(word in name for word in ("accuracy", "f1", "share", "auc", "recall", "exact"))


def lower_is_better(name: str) -> bool:
    """Whether less of one of our own metrics is better.

    >>> lower_is_better("valid_macro_rmse"), lower_is_better("micro_accuracy")
    (True, False)
    """
    return any(word in name for word in ("loss", "rmse", "mae", "disagreement", "dissimilarity", "consensus", "probe"))


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
    accuracy: Reals  # (clients,) NaN where there are no examples, or in a regression
    f1: Reals  # (clients,)
    pooled_f1: float
    auc: float = float("nan")  # of all examples together, where there are two classes
    minority_recall: float = float("nan")
    r2: float = float("nan")
    marks: Mapping[str, Mark] = field(default_factory=dict)  # of numbers to predict, several labels, a user's own

    @property
    def there(self) -> npt.NDArray[np.bool_]:
        """Clients that have examples."""
        return self.count > 0

    def only(self, which: npt.NDArray[np.bool_]) -> Scores:
        """The scores of some clients; what is pooled over all cannot be told for them."""
        mine = {name: getattr(self, name)[which] for name in ("count", "loss", "accuracy", "f1")}
        unknown = dict.fromkeys(POOLED, float("nan"))
        marks = {name: replace(mark, values=mark.values[which]) for name, mark in self.marks.items()}
        return replace(self, **(mine | unknown), marks=marks)

    def beside(self, part: str, alone: Scores) -> Scores:
        """The same, with how well a part of the models would do alone: its accuracy, or how far its numbers are off."""
        wrong = np.isnan(alone.accuracy[alone.there]).any()
        mark = alone.marks["rmse"] if wrong and "rmse" in alone.marks else Mark(alone.accuracy)
        return replace(self, marks={**self.marks, f"{'rmse' if mark.root else 'accuracy'}_{part}": mark})

    @property
    def served(self) -> Reals:
        """How well every client is served, more is better: accuracy, or minus the loss where there is none."""
        return -self.loss if np.isnan(self.accuracy[self.there]).any() else self.accuracy

    def summary(self) -> dict[str, float]:
        """The numbers of one evaluation, by name."""
        if not self.there.any():
            return {"clients_without_examples": float(len(self.count))}
        n, loss = self.count[self.there], self.loss[self.there]
        out = {"micro_loss": float(n @ loss / n.sum()), "macro_loss": float(loss.mean())}
        if not np.isnan(self.accuracy[self.there]).any():
            a, f = self.accuracy[self.there], self.f1[self.there]
            out |= {
                "micro_accuracy": float(n @ a / n.sum()),
                "macro_accuracy": float(a.mean()),
                "micro_f1": float(n @ f / n.sum()),
                "macro_f1": float(f.mean()),
                **{name: value for name in POOLED if not math.isnan(value := getattr(self, name))},
                "worst_decile_accuracy": worst_decile(a),
                "accuracy_p10": float(np.percentile(a, 10)),
                "accuracy_p50": float(np.percentile(a, 50)),
                "accuracy_p90": float(np.percentile(a, 90)),
                "accuracy_std": float(a.std()),
            }
        elif not math.isnan(self.r2):
            out["r2"] = self.r2
        for name, mark in self.marks.items():
            out |= mark.summary(name, self.count)
        out["clients_without_examples"] = float((~self.there).sum())
        return out


def plain(numbers: Mapping[str, float]) -> dict[str, float | None]:
    """Numbers as JSON can hold them: what is not finite is nothing."""
    return {name: value if math.isfinite(value) else None for name, value in numbers.items()}


def mean_by_client(values: Reals, owner: Integers, count: Integers) -> Reals:
    """The mean over each client's examples, (clients,); NaN where there are none."""
    with np.errstate(invalid="ignore"):
        mean: Reals = np.bincount(owner, weights=values, minlength=len(count)) / count
    return mean


def score_numbers(answers: Reals, y: Reals, losses: Reals, owner: Integers, n_clients: int) -> Scores:
    """Scores of every client from the numbers predicted, (examples, targets), and the true ones."""
    y = y.reshape(answers.shape).astype(np.float64)
    count, nothing = np.bincount(owner, minlength=n_clients), np.full(n_clients, np.nan)
    off = answers - y
    with np.errstate(over="ignore", invalid="ignore"):
        square = off**2
    rmse = Mark(np.sqrt(mean_by_client(square.mean(1), owner, count)), lower_is_better=True, root=True)
    mae = Mark(mean_by_client(np.abs(off).mean(1), owner, count), lower_is_better=True)
    spread = ((y - y.mean(0)) ** 2).sum(0) if len(y) else np.zeros(1)
    r2 = float((1 - square.sum(0) / spread).mean()) if (spread > 0).all() else float("nan")
    loss = mean_by_client(losses, owner, count)
    return Scores(count, loss, nothing, nothing, float("nan"), r2=r2, marks={"rmse": rmse, "mae": mae})


def score_labels(answers: Integers, y: Integers, losses: Reals, owner: Integers, n_clients: int) -> Scores:
    """Scores of every client from 0 and 1 for each label, (examples, labels), told and true."""
    count = np.bincount(owner, minlength=n_clients)
    right = answers == y
    accuracy = mean_by_client(right.mean(1), owner, count)
    exact = Mark(mean_by_client(right.all(1).astype(np.float64), owner, count))

    def by_label(values: npt.NDArray[Any]) -> Reals:
        out = np.zeros((n_clients, y.shape[1]))
        np.add.at(out, owner, values)
        return out

    counts = [by_label(values) for values in (answers * y, y, answers)]
    f1, pooled = _class_macro_f1(*counts), _class_macro_f1(*(c.sum(0, keepdims=True) for c in counts))
    loss = mean_by_client(losses, owner, count)
    return Scores(count, loss, accuracy, f1, float(pooled[0]), marks={"exact": exact})


def score(
    predicted: Integers,
    labels: Integers,
    losses: Reals,
    owner: Integers,
    n_clients: int,
    n_classes: int,
    margin: Reals | None = None,
) -> Scores:
    """Scores of every client, from one prediction, label, loss and owner for every example.

    `margin` is how much more class 1 is believed in than class 0, where there are two.
    """
    count = np.bincount(owner, minlength=n_clients)
    with np.errstate(invalid="ignore"):
        loss = np.bincount(owner, weights=losses, minlength=n_clients) / count
        right = predicted == labels
        accuracy = np.bincount(owner, weights=right, minlength=n_clients) / count

    there = count > 0  # of a million clients a few hundred may have examples: no table for the others
    mine = (there.cumsum() - 1)[owner]

    def by_class(values: Integers, which: Integers) -> Reals:
        flat = np.bincount(which * n_classes + values, minlength=int(there.sum()) * n_classes)
        return flat.reshape(-1, n_classes).astype(np.float64)

    true_positives = by_class(labels[right], mine[right])
    actual, claimed = by_class(labels, mine), by_class(predicted, mine)
    f1 = np.zeros(n_clients)
    f1[there] = _class_macro_f1(true_positives, actual, claimed)
    pooled = _class_macro_f1(true_positives.sum(0, keepdims=True), actual.sum(0)[None], claimed.sum(0)[None])
    if margin is None:
        return Scores(count, loss, accuracy, f1, float(pooled[0]))
    rarer = labels == int(2 * np.count_nonzero(labels) <= len(labels))  # a tie: class 1
    recall = float(right[rarer].mean()) if rarer.any() else float("nan")
    return Scores(count, loss, accuracy, f1, float(pooled[0]), area_under_roc(margin, labels == 1), recall)


def area_under_roc(score: Reals, positive: npt.NDArray[np.bool_]) -> float:
    """The chance that a positive example has a higher score than a negative one, ties counted half.

    With r the ranks of the n1 positive among all n1 + n0 scores, equal scores sharing their mean rank (Mann, Whitney):
    (sum r - n1 (n1 + 1) / 2) / (n1 n0). NaN where a class, or a score, is missing.
    """
    n1, n0 = int(positive.sum()), int((~positive).sum())
    if not n1 or not n0 or np.isnan(score).any():
        return float("nan")
    _, place, count = np.unique(score, return_inverse=True, return_counts=True)
    rank = (count.cumsum() - (count - 1) / 2)[place]
    return float((rank[positive].sum() - n1 * (n1 + 1) / 2) / n1 / n0)


def _class_macro_f1(true_positives: Reals, actual: Reals, claimed: Reals) -> Reals:
    """(clients, classes) counts -> (clients,): mean of 2 tp / (actual + claimed) over the classes present."""
    total = actual + claimed
    f1 = np.divide(2 * true_positives, total, out=np.zeros_like(total), where=total > 0)
    present = (total > 0).sum(1)
    mean: Reals = np.divide(f1.sum(1), present, out=np.zeros(len(f1)), where=present > 0)
    return mean


def worst_decile(accuracy: Reals) -> float:
    """The mean of the worst tenth, at least one client."""
    return float(np.sort(accuracy)[: max(1, len(accuracy) // 10)].mean())


def share_below(scores: Scores, alone: Scores) -> float:
    """The share of clients who are served worse than by another model: trained alone, or before fine-tuning."""
    both = scores.there & alone.there & ~np.isnan(scores.served) & ~np.isnan(alone.served)
    return float((scores.served[both] < alone.served[both]).mean()) if both.any() else float("nan")


def gini(values: npt.ArrayLike) -> float:
    """How unequally something is shared: sum_ij |x_i - x_j| / (2 m sum_i x_i), 0 where all have the same.

    (m - 1) / m where one has everything; 0 where nobody has anything.

    >>> gini([0, 0, 0, 1])
    0.75
    """
    x = np.sort(np.asarray(values, dtype=np.float64))
    total = float(x.sum())
    if not total > 0:
        return 0.0
    return float((2 * np.arange(1, len(x) + 1) - len(x) - 1) @ x / (len(x) * total))


def participation(took: npt.ArrayLike, bins: int = 20) -> dict[str, Any]:
    """How often clients took part: Gini coefficient, extremes and a histogram (clients by rounds, from .. up)."""
    counts = np.asarray(took, dtype=np.int64)
    if not len(counts):
        return {}
    least, most = int(counts.min()), int(counts.max())
    step = -(-(most - least + 1) // bins)  # whole rounds
    edges = np.arange(least, most + step + 1, step)
    clients, _ = np.histogram(counts, edges)
    return {
        "gini": gini(counts),
        "least": least,
        "mean": float(counts.mean()),
        "most": most,
        "never": int((counts == 0).sum()),
        "rounds": edges[:-1].tolist(),
        "clients": clients.tolist(),
    }
