"""How a run is shared out: by counted work, in blocks and by rules that know nothing of the machine's cores."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st

import polycentric as pc
from polycentric import fedavg
from polycentric.runs.start import prepare, prepared
from polycentric.simulate import share_out
from polycentric.simulate.share_out import blocks_by_work, cores, is_enough, one_math_thread, parts_of
from polycentric.stacks.cohort import Cohort
from support import Make


def cohort(work: list[int]) -> Cohort:
    sizes = torch.tensor(sorted(work, reverse=True))
    return Cohort(torch.arange(len(work)), sizes, torch.ones(len(work)).double(), len(work), seed=0, round=0)


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=200), st.integers(1, 40), st.integers(1, 64))
def test_blocks_hold_everybody_once_and_no_more_than_a_part(work: list[int], most: int, parts: int) -> None:
    everyone = cohort(work)
    blocks = list(blocks_by_work(everyone, everyone.sizes, most, parts))
    assert torch.equal(torch.cat([block.index for block in blocks]), everyone.index)
    part, left = sum(work) / parts, float(sum(work))
    for block in blocks:
        own = int(block.sizes.sum())
        assert 1 <= len(block) <= most
        assert len(block) == 1 or own <= part * 1.126  # who has more than a part is alone
        assert len(block) == 1 or own <= max(part / 2, 4 * left / parts) + part * 0.126  # and the last ones are smaller
        left -= own
    for one, following in itertools.pairwise(blocks):  # but none is less than a quarter of a part without need
        assert len(one) == most or int(one.sizes.sum()) + int(following.sizes[0]) > part / 4


def test_a_large_client_keeps_nobody_waiting() -> None:
    everyone = cohort([1000] + [10] * 100)
    blocks = list(blocks_by_work(everyone, everyone.sizes, 64, 20))
    sizes = [len(block) for block in blocks]
    assert sizes[0] == 1 and max(sizes) == 10 and sizes[1] == 10 and sizes[-1] <= 5


def test_a_short_round_is_cut_in_equal_blocks_and_a_few_left_over_are_no_block() -> None:
    everyone = cohort([10] * 100)
    assert [len(block) for block in blocks_by_work(everyone, everyone.sizes, 64, 2)] == [50, 50]
    for parts in range(1, 40):
        assert all(len(block) > 1 for block in blocks_by_work(everyone, everyone.sizes, 1024, parts) if parts < 13)


@pytest.mark.parametrize("workers", [2, 3, 4, 5, 8, 16])
@pytest.mark.parametrize("clients, parts", [(10, 4), (30, 12), (100, 32), (317, 32)])
def test_whoever_is_free_takes_the_next_block_and_few_wait_at_the_end(workers: int, clients: int, parts: int) -> None:
    everyone = cohort([60] * clients)
    ends = [0] * workers
    for block in blocks_by_work(everyone, everyone.sizes, 64, parts):
        ends[ends.index(min(ends))] += len(block)
    assert max(ends) <= -(-clients // workers) + 1  # in equal blocks of 317 clients 16 workers would end at 27, not 21


def test_short_rounds_are_cut_in_few_parts_and_short_runs_in_none() -> None:
    assert [parts_of(seconds) for seconds in (0.001, 0.1, 0.5, 100.0)] == [1, 5, 25, 32]
    assert is_enough(0.1, 31) and not is_enough(0.1, 29) and not is_enough(0.02, 10_000)


def test_work_is_counted_and_grows_with_what_is_asked_for(blobs: Make) -> None:
    federation = blobs(sizes=(40, 30, 20))

    def shared(rounds: int, **how: Any) -> Any:
        return prepare(fedavg(epochs=200), federation, model="mlp", rounds=rounds, **how).clients

    short, long = shared(1), shared(10**6)
    assert not short.by_work and short.block != "work"
    assert long.by_work and long.block == "work"
    assert not shared(10**6, block=2).by_work  # as it was said
    assert shared(1, block="work").by_work
    first = [block.index.tolist() for block in shared(10**6, workers=1).blocks(long.everyone(0))]
    assert first == [block.index.tolist() for block in shared(10**6, workers=3).blocks(long.everyone(0))]


def test_a_folder_that_does_not_say_how_blocks_are_cut_has_those_that_fit(tmp_path: Path) -> None:
    """As folders of earlier versions, and those of runs that were short and are to be long."""
    how: dict[str, Any] = {"rounds": 1, "device": "cpu", "set": {"epochs": 20}}
    run = pc.run("fedavg", "digits", clients=4, out=tmp_path / "run", **how)
    assert run.clients.block is None and json.loads((tmp_path / "run/config.json").read_text())["block"] is None
    assert pc.open(tmp_path / "run").clients.block is None
    longer = pc.resume(tmp_path / "run", rounds=2)
    assert longer.clients.block is None and not longer.clients.by_work
    settings = longer.settings.changed(rounds=10**7)
    assert prepared(settings).clients.by_work and not prepared(settings, begun=True).clients.by_work


def test_auto_has_a_worker_for_each_core_that_torch_may_use(monkeypatch: pytest.MonkeyPatch, blobs: Make) -> None:
    monkeypatch.setattr(share_out.os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    monkeypatch.setattr(share_out.torch, "get_num_threads", lambda: 6)
    assert (cores(), cores(beside=2), cores(beside=100)) == (6, 3, 1)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")
    assert (cores(ranks=3), cores(ranks=1)) == (2, 6)
    federation = blobs(sizes=(40, 30, 20))
    long = prepare(fedavg(epochs=200), federation, model="mlp", rounds=10**6).clients
    assert long.n_workers == 3  # no more than there are clients
    monkeypatch.setattr(share_out, "free_memory", lambda: 2 * 2 * (share_out.WORKER + 64 * (1 << 20)))
    assert prepare(fedavg(epochs=200), federation, model="mlp", rounds=10**6).clients.n_workers == 2  # nor than fit
    monkeypatch.undo()
    assert 1 << 20 < share_out.free_memory()
    monkeypatch.setattr(share_out.torch, "get_num_threads", lambda: 6)
    assert prepare(fedavg(epochs=200), federation, model="mlp", rounds=1).clients.n_workers == 1


def test_one_math_thread_for_as_long_as_it_is_needed() -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        with one_math_thread(False):
            assert torch.get_num_threads() == 3
        with one_math_thread(True):
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
