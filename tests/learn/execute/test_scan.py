"""What scans share: stretches, and rows that begin with a line of memory."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings, strategies as st

from polycentric.learn.execute.scan import empty_aligned, stretches

bounded = settings(max_examples=60)


@bounded
@given(st.lists(st.integers(0, 9), min_size=1, max_size=8).map(lambda steps: sorted(steps, reverse=True)))
def test_stretches_are_all_steps_of_all_clients(steps: list[int]) -> None:
    taken = [0] * len(steps)
    for first, last, active in stretches(steps):
        assert taken[:active] == [first] * active and first < last
        taken[:active] = [last] * active
    assert taken == steps


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("width", [1, 16, 17, 100])
def test_rows_have_room_to_begin_with_a_line(width: int, dtype: torch.dtype) -> None:
    room = empty_aligned(torch.empty(1, width, dtype=dtype).expand(3, -1))
    assert room.shape == (3, width) and room.dtype == dtype and room.stride(1) == 1
    assert room.stride(0) * room.element_size() % 64 == 0 and width <= room.stride(0) < width + 16
    assert empty_aligned(torch.empty(3, dtype=dtype)).shape == (3,)
