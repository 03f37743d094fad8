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
from typing import Any

import numpy as np
import numpy.typing as npt

from ..tasks.scores import Integers as Integers, Reals as Reals, Scores as Scores, worst_decile as worst_decile


def is_share(name: str) -> bool:
    """Whether a metric lies between 0 and 1 and is shown to people in percent.

    >>> is_share("worst_decile_accuracy"), is_share("condition")
    (True, False)
    """
    return any(word in name for word in ("accuracy", "f1", "share", "auc", "recall", "exact", "ap50", "pooled_map"))


def lower_is_better(name: str) -> bool:
    """Whether less of one of our own metrics is better.

    >>> lower_is_better("valid_macro_rmse"), lower_is_better("micro_accuracy")
    (True, False)
    """
    return any(word in name for word in ("loss", "rmse", "mae", "disagreement", "dissimilarity", "consensus", "probe"))


def plain(numbers: Mapping[str, float]) -> dict[str, float | None]:
    """Numbers as JSON can hold them: what is not finite is nothing."""
    return {name: value if math.isfinite(value) else None for name, value in numbers.items()}


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
