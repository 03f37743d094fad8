"""All of a federation but its examples, as JSON: what a run's folder keeps of data that no words load again.

Names of clients, classes and columns, shapes and sizes, and what was done to the examples (`recipe`, `scaling`,
`inputs`): enough to use a run's models on other data. In place of the examples are zeros, and `absent` says so; what
would learn from them, score them or choose by them is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ..errors import UsageError
from .federation import Federation, Scaling, Split

_NAMES = ("classes", "clients", "group_names", "targets", "columns")
_PLAIN = ("name", "note", "symbols", "recipe")
_TYPES = {str(dtype)[6:]: dtype for dtype in (torch.uint8, torch.int32, torch.int64, torch.float32, torch.float64)}


def outline(federation: Federation) -> dict[str, Any]:
    """What is known of a federation without its examples."""
    scaling, group, train = federation.scaling, federation.group, federation.train
    told: dict[str, Any] = {name: getattr(federation, name) for name in _PLAIN}
    told |= {name: list(getattr(federation, name)) for name in _NAMES}
    told |= {key: [str(t.dtype)[6:], list(t.shape[1:])] for key, t in (("x", train.x), ("y", train.y))}
    return told | {
        "inputs": [[name, list(shape)] for name, shape in federation.inputs],
        "scaling": None if scaling is None else {"mean": scaling.mean.tolist(), "spread": scaling.spread.tolist()},
        "group": None if group is None else group.tolist(),
        "sizes": {part: getattr(federation, part).sizes.tolist() for part in ("train", "valid", "test")},
        "protected": federation.n_protected,
        "fingerprint": federation.fingerprint,
    }


def from_outline(told: Mapping[str, Any], where: str) -> Federation:
    """The federation of an outline, with zeros for examples; `where`: the file, for a message."""
    try:
        scaling, group = told["scaling"], told["group"]
        same: dict[str, Any] = {name: told[name] for name in _PLAIN} | {name: tuple(told[name]) for name in _NAMES}
        same |= {part: _zeros(told, torch.tensor(sizes, dtype=torch.int64)) for part, sizes in told["sizes"].items()}
        return Federation(
            **same,
            inputs=tuple((name, tuple(shape)) for name, shape in told["inputs"]),
            scaling=None if scaling is None else Scaling(*(_numbers(scaling[key]) for key in ("mean", "spread"))),
            group=None if group is None else torch.tensor(group),
            absent=str(told["fingerprint"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise UsageError(f"{where} is damaged ({type(error).__name__}); open the run with federation=...") from error


def _numbers(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def _zeros(told: Mapping[str, Any], sizes: Tensor) -> Split:
    """As many examples for every client as there were; clients with equally many share theirs."""
    found: Tensor
    found, piece = torch.unique(sizes, return_inverse=True)
    offset = torch.cat([torch.zeros(1, dtype=torch.int64), found.cumsum(0)])
    x, y = (torch.zeros((), dtype=_TYPES[told[key][0]]).expand(int(offset[-1]), *told[key][1]) for key in "xy")
    values = int(told.get("protected", 0))  # of earlier versions: none
    return Split(x, y, offset, piece, torch.tensor(values - 1).expand(len(y)) if values else None)
