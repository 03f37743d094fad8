"""What makes scores on a federation mean little: said when it is loaded, and by `polycentric data show`."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import torch
from torch import Tensor

from .federation import Federation, Pool, class_counts, classes_in
from .scaling import moments, scalable

UNLIKE = 100.0  # how many times the largest scale may be the smallest before it is said
LARGER = 10.0  # and how many times the range of one target that of another
FEW = 20  # whole numbers up to which real targets look like classes


def warn(federation: Federation) -> None:
    """Say what leads to wrong conclusions, whatever is done with the data."""
    for found in (*units(federation), *number_or_class(federation)):
        warnings.warn(f"data '{federation.name}': {found}", stacklevel=3)


def warn_of_absent_classes(pool: Pool) -> None:
    """Say where a class has a name and no example in the whole set: a model has an output for it all the same."""
    if pool.kind in ("classes", "boxes") and len(pool.y) and not pool.symbols:  # of an alphabet any may be missing
        there = _occur(pool.y, len(pool.classes))
        if absent := [pool.classes[c] for c in (~there).nonzero()[:, 0].tolist()]:
            warnings.warn(
                f"data '{pool.name}': class {some(absent)} {'has' if len(absent) == 1 else 'have'} a name and no "
                f"example; models put out {len(pool.classes)} classes all the same: leave it out of `classes` if that "
                "is not meant",
                stacklevel=3,
            )


def all_of(federation: Federation) -> list[str]:
    """Everything suspicious, a sentence each."""
    unlike = unlike_targets(federation.train.y, federation.targets) if federation.kind == "numbers" else []
    looks = units, number_or_class, lambda _: unlike, tests, unseen_classes, without_boxes
    found = (look(federation) for look in looks)
    return [sentence for some in found for sentence in some]


def units(federation: Federation) -> list[str]:
    """Features whose scales differ, so that one learning rate does not fit both; features that never vary."""
    if not scalable(federation) or federation.train.x.dim() != 2 or federation.scaling is not None:
        return []
    mean, spread = moments(federation.train)
    names = federation.columns or tuple(f"feature {j}" for j in range(len(mean)))
    said = []
    constant = [names[j] for j in (spread == 0).nonzero()[:, 0].tolist()]
    if constant and federation.columns:
        verb = "is" if len(constant) == 1 else "are"
        said.append(f"{some(constant)} {verb} the same in all training examples, so nothing is learned from it")
    scale = mean.abs() + spread  # how large the numbers are
    varies = (spread > 0).nonzero()[:, 0]
    if len(varies) > 1:
        low, high = (int(varies[at]) for at in (scale[varies].argmin(), scale[varies].argmax()))
        times = float(scale[high] / scale[low])
        if times > UNLIKE:
            said.append(
                f"features are in different units: {names[high]} is about {float(scale[high]):.3g} and {names[low]} "
                f"about {float(scale[low]):.3g}, {times:.3g} times less, so no learning rate fits both and scores may "
                "mean little; --standardise train (in Python standardise='train') brings them to one scale"
            )
    return said


def number_or_class(federation: Federation) -> list[str]:
    """Real targets that look like classes; of a table it was shown, and said, what they are."""
    y = federation.train.y
    if federation.kind != "numbers" or y.dim() != 1 or "columns" in (federation.recipe or {}):
        return []
    values = torch.unique(y)
    if not 1 < len(values) <= min(FEW, len(y) - 1) or not bool((values == values.round()).all()):
        return []
    shown = some([f"{value:g}" for value in values.tolist()])
    return [
        f"the targets are only {shown}, kept as real numbers, so they are learned as a number to predict; if they are "
        "classes, keep them as whole numbers"
    ]


def unlike_targets(y: Tensor, names: Sequence[str] = ()) -> list[str]:
    """Several numbers to predict, of which one is so much larger that the others hardly count in the loss."""
    if y.dim() != 2 or y.shape[1] < 2 or not len(y):
        return []
    wide = y.double().amax(0) - y.double().amin(0)
    low, high = int(wide.argmin()), int(wide.argmax())
    if not float(wide[high]) >= LARGER * float(wide[low]) > 0:
        return []
    names = names or tuple(f"target {j}" for j in range(len(wide)))
    times = float(wide[high] / wide[low])
    return [
        f"the range of {names[high]} is {times:.3g} times that of {names[low]}, so it dominates the loss, which adds "
        "their squared errors: bring the targets to one scale before, or predict them one by one"
    ]


def tests(federation: Federation) -> list[str]:
    """Clients whose test score hardly says anything."""
    sizes = federation.test.sizes
    none, one = int((sizes == 0).sum()), int((sizes == 1).sum())
    said = [f"{none} of {federation.n_clients} clients have no test example, so they are not scored"] if none else []
    if one:
        said.append(f"{one} of {federation.n_clients} clients have one test example: their accuracy is 0 or 1")
    return said


def unseen_classes(federation: Federation) -> list[str]:
    """Classes that are asked for and never shown."""
    if federation.kind not in ("classes", "boxes"):
        return []
    n = len(federation.classes)
    shown, asked = (_occur(split.y.cpu(), n) for split in (federation.train, federation.test))
    never = [federation.classes[c] for c in (asked & ~shown).nonzero()[:, 0].tolist()]
    absent = [federation.classes[c] for c in (~asked & ~shown).nonzero()[:, 0].tolist()]
    said = [f"class {some(never)} occurs in test and never in training, so it cannot be learned"] if never else []
    return said + ([f"class {some(absent)} has a name and no example"] if absent else [])


def without_boxes(federation: Federation) -> list[str]:
    """Images without a box, and clients that have no others or lack a class."""
    if federation.kind != "boxes":
        return []
    train, n = federation.train, federation.n_clients
    empty = int((classes_in(train.y) < 0).all(1).sum())
    said = [f"{empty:,} of {len(train):,} training images have no box: they show background only"] if empty else []
    counts = class_counts(train, len(federation.classes))
    none = (counts.sum(1) == 0) & (train.sizes.cpu() > 0)
    if bool(none.any()):
        names = some([federation.clients[k] for k in none.nonzero()[:, 0].tolist()])
        said.append(f"{int(none.sum())} of {n} clients have no box in any training image: {names}")
    lacking = int(((counts == 0).any(1) & ~none).sum())
    return said + ([f"{lacking} of {n} clients have no training box of some class"] if lacking else [])


def _occur(y: Tensor, n: int) -> Tensor:
    """Which classes occur in targets, (n,) bool."""
    label = classes_in(y)
    return torch.bincount(label[label >= 0], minlength=n) > 0


def some(names: Sequence[str], most: int = 5) -> str:
    """A few of many names."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
