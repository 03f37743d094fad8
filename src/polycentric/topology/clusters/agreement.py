"""How like a clustering is to groups that are known. (The library behind it is slow to import, and seldom needed.)"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


def agreement(assignment: Ints, group: Ints) -> float:
    """The adjusted Rand index of a clustering with known groups: 1 is the same partition, 0 is chance."""
    from sklearn.metrics import adjusted_rand_score

    return float(adjusted_rand_score(group, assignment))


def shared_information(assignment: Ints, group: Ints) -> float:
    """The normalised mutual information of a clustering with known groups: 1 is the same partition, 0 is unrelated."""
    from sklearn.metrics import normalized_mutual_info_score

    return float(normalized_mutual_info_score(group, assignment))
