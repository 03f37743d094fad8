"""Of a federation without its examples all is known but these, and nothing is taken for them."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from typing import Any

import pytest
import torch

from polycentric.data import Federation, Split
from polycentric.data.outline import from_outline, outline
from polycentric.data.scaling import standardised
from polycentric.errors import UsageError
from support import Make


@pytest.mark.parametrize("shape", [(6,), (2, 3)])
def test_an_outline_says_all_but_the_examples(blobs: Make, shape: tuple[int, ...]) -> None:
    whole = standardised(replace(blobs((13, 7, 0, 7), shape=shape, dtype=torch.float32), group=torch.arange(4) % 2))
    whole = replace(whole, recipe={"inputs": {"a": "uint8"}}, note="mind this", group_names=("u", "v"))
    again = from_outline(json.loads(json.dumps(outline(whole))), "outline.json")
    assert again.fingerprint == whole.fingerprint == again.absent and not whole.absent
    for part in ("train", "valid", "test"):
        one, other = getattr(whole, part), getattr(again, part)
        assert torch.equal(one.sizes, other.sizes) and one.x.dtype == other.x.dtype and not bool(other.x.any())
        assert one.x.shape[1:] == other.x.shape[1:] and one.y.dtype == other.y.dtype
    same = [field.name for field in fields(Federation) if field.name not in ("train", "valid", "test", "absent")]

    def plain(value: Any) -> Any:
        return [part.tolist() for part in (value.mean, value.spread)] if hasattr(value, "spread") else value

    for name in set(same) - {"protected", "source", "group"}:
        assert plain(getattr(again, name)) == plain(getattr(whole, name)), name
    assert torch.equal(again.group, whole.group)  # type: ignore[arg-type]
    assert (again.kind, again.shape, again.n_outputs) == (whole.kind, whole.shape, whole.n_outputs)


def test_a_million_clients_take_no_room(blobs: Make) -> None:
    again = from_outline(outline(blobs((5, 9)).tiled(1000)), "outline.json")
    assert isinstance(again.train, Split) and len(again.train.x) == 14 and int(again.train.sizes.sum()) == 7000


@pytest.mark.parametrize("damage", [{"x": 3}, {"y": ["float16", []]}, {"sizes": {"train": [1]}}, {"scaling": {}}])
def test_a_damaged_outline_is_one_line(blobs: Make, damage: dict[str, Any]) -> None:
    told = outline(blobs()) | damage
    with pytest.raises(UsageError):
        from_outline(told, "outline.json")
    del told["classes"]
    with pytest.raises(UsageError, match=r"outline\.json is damaged"):
        from_outline(told, "outline.json")
