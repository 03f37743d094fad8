"""What every partition promises: each example once, the same seed the same cards, test like train."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st

from polycentric.data import (
    Dirichlet,
    Federation,
    Iid,
    Natural,
    Partition,
    Pool,
    Quantity,
    Rotations,
    Shards,
    Split,
    deal,
    digits,
    heterogeneity,
    label_counts,
    load,
    synthetic,
    teacher,
)
from polycentric.data.rotations import turned
from polycentric.errors import UsageError


def numbered(n: int = 600, n_classes: int = 6, *, test: bool = False) -> Pool:
    """A pool whose examples carry their own number, so that they can be followed."""
    at = torch.arange(n)
    image = torch.zeros(n, 1, 4, 4, dtype=torch.float32)
    image[:] = at.view(-1, 1, 1, 1)
    flag = at % 5 == 0 if test else None
    return Pool("numbered", image, at * 7 % n_classes, tuple(map(str, range(n_classes))), test=flag)


def seen(split: Split) -> list[int]:
    """Which examples a part holds, read from a middle pixel, which no turn moves out of the image."""
    return sorted(round(float(x)) for x in split.x[:, 0, 1, 1])


def numbers(federation: Federation) -> list[int]:
    return sorted(seen(federation.train) + seen(federation.valid) + seen(federation.test))


def partitions(clients: int) -> Iterator[Partition]:
    yield Iid(clients)
    yield Dirichlet(clients, 0.5)
    yield Shards(clients, 2)
    yield Quantity(clients, 1.2)
    yield Rotations(min(4, clients), clients)


@settings(max_examples=60)
@given(
    n=st.integers(60, 300),
    clients=st.integers(1, 12),
    seed=st.integers(0, 2**31),
    test=st.booleans(),
    valid=st.sampled_from([0.0, 0.25]),
)
def test_every_example_is_dealt_exactly_once(n: int, clients: int, seed: int, test: bool, valid: float) -> None:
    pool = numbered(n, 5, test=test)
    for partition in partitions(clients):
        federation = deal(pool, partition, seed, valid=valid)
        assert federation.n_clients == clients
        assert numbers(federation) == list(range(n)), partition
        assert int(federation.train.sizes.min()) >= 1, partition
        if test:
            assert seen(federation.test) == list(range(0, n, 5))


@pytest.mark.parametrize("partition", list(partitions(10)), ids=repr)
def test_the_seed_decides(partition: Partition) -> None:
    pool = numbered()
    first, again, other = (deal(pool, partition, seed, valid=0.1) for seed in (3, 3, 4))
    assert first.fingerprint == again.fingerprint
    assert first.fingerprint != other.fingerprint


@pytest.mark.parametrize("partition", [Dirichlet(8, 0.3), Shards(8, 2), Iid(8), Quantity(8, 1.0)], ids=repr)
def test_test_labels_follow_training_labels(partition: Partition) -> None:
    pool = numbered(6_000, 6, test=True)
    federation = deal(pool, partition, 1)
    train = label_counts(federation).double()
    test = label_counts(replace(federation, train=federation.test)).double()
    # Stratified partitions round each count by less than one; the others agree up to chance.
    tolerance = 2.0 if isinstance(partition, Dirichlet | Shards) else 5 * float(test.max()) ** 0.5
    assert float((train / 4 - test).abs().max()) <= tolerance


def test_dirichlet_with_large_alpha_approaches_iid_and_small_alpha_does_not() -> None:
    pool = numbered(6_000, 6)
    distance = [heterogeneity(deal(pool, Dirichlet(10, alpha), 0)) for alpha in (0.05, 0.5, 5.0, 1e6)]
    assert distance == sorted(distance, reverse=True)
    assert distance[0] > 0.5
    assert distance[-1] < 0.03
    sizes = deal(pool, Dirichlet(10, 1e6), 0).train.sizes
    assert int(sizes.max() - sizes.min()) < 20


def test_dirichlet_keeps_its_promise_of_a_least_size_or_says_that_it_cannot() -> None:
    pool = numbered(400, 4, test=True)
    assert int(deal(pool, Dirichlet(10, 0.5, at_least=8), 0).train.sizes.min()) >= 8
    with pytest.raises(UsageError, match="raise alpha"):
        Dirichlet(10, 0.001, at_least=30)(pool, 0)
    with pytest.raises(UsageError, match="fewer clients"):
        Dirichlet(10, 0.5, at_least=300)(pool, 0)


def test_iid_sizes_differ_by_at_most_one() -> None:
    client = Iid(7)(numbered(100, test=True), 0).client
    assert client is not None
    test = torch.arange(100) % 5 == 0
    for part in (client[test], client[~test]):
        sizes = torch.bincount(part, minlength=7)
        assert int(sizes.max() - sizes.min()) <= 1


@pytest.mark.parametrize("per_client", [1, 2, 3])
def test_shards_give_few_classes(per_client: int) -> None:
    pool = numbered(6_000, 6, test=True)
    federation = deal(pool, Shards(20, per_client), 0)
    n_classes = (label_counts(federation) > 0).sum(1)
    assert int(n_classes.max()) <= 2 * per_client  # a shard may lie across one border
    assert float(n_classes.double().mean()) <= per_client + 0.5
    assert bool((federation.train.sizes == 240).all())


def test_quantity_follows_the_power_law() -> None:
    sizes = deal(numbered(20_000), Quantity(10, 1.0), 0, test=0.0).train.sizes.sort(descending=True).values
    expected = 1 / torch.arange(1, 11).double()
    assert torch.allclose(sizes.double() / sizes.sum(), expected / expected.sum(), atol=1e-3)
    equal = deal(numbered(1_000), Quantity(10, 0), 0, test=0.0).train.sizes
    assert bool((equal == 100).all())


def test_four_quarter_turns_change_nothing() -> None:
    images = digits().x[:50]
    back = images
    for _ in range(4):
        back = turned(back, 90)
    assert torch.equal(back, images)
    assert torch.equal(turned(images, 270), turned(turned(images, 90), 180))


def test_turns_between_agree_with_quarter_turns() -> None:
    # Interpolation at almost 90 degrees must land on the exact turn: the same sense of rotation.
    images = digits().x[:50]
    near = turned(images, 90.001)
    assert near.dtype == torch.uint8
    assert int((near.int() - turned(images, 90).int()).abs().max()) <= 1
    assert torch.equal(turned(images.float(), 45).round().clamp(0, 255).to(torch.uint8), turned(images, 45))


@pytest.mark.parametrize("k", [1, 2, 3, 4, 8])
def test_rotations_deal_like_iid_and_know_their_groups(k: int) -> None:
    pool = digits()
    plain = Iid(16)(pool, 5)
    dealt = Rotations(k, 16)(pool, 5)
    assert dealt.client is not None and plain.client is not None and dealt.group is not None
    assert torch.equal(dealt.client, plain.client)
    assert torch.equal(dealt.group, dealt.client % k)
    for g in range(k):
        mine = dealt.group == g
        assert torch.equal(dealt.x[mine], turned(pool.x[mine], 360 * g / k))
    federation = deal(pool, Rotations(k, 16), 5)
    assert federation.group is not None and federation.group.tolist() == [i % k for i in range(16)]
    assert len(federation.group_names) == k and federation.group_names[0] == "0°"


def test_rotations_want_square_images() -> None:
    with pytest.raises(UsageError, match="square images"):
        Rotations(4, 10)(synthetic(0.5, 0.5, clients=3), 0)


def test_what_a_client_holds_out_does_not_depend_on_the_others() -> None:
    pool = synthetic(0.5, 0.5, clients=12)
    whole = deal(pool, Natural(), 7, valid=0.1)
    part = deal(pool, Natural(5), 7, valid=0.1)
    assert part.n_clients == 5
    for k, name in enumerate(part.clients):
        twin = whole.clients.index(name)
        for split in ("train", "valid", "test"):
            assert torch.equal(getattr(part, split).of(k).x, getattr(whole, split).of(twin).x)


@settings(max_examples=30)
@given(sizes=st.lists(st.integers(1, 12), min_size=1, max_size=8), valid=st.sampled_from([0.0, 0.2, 0.9]))
def test_nobody_is_left_without_training_examples(sizes: list[int], valid: float) -> None:
    client = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    pool = numbered(sum(sizes), 1)
    pool = replace(pool, client=client, clients=tuple(map(str, range(len(sizes)))))
    federation = deal(pool, Natural(), 0, valid=valid)
    assert int(federation.train.sizes.min()) >= 1
    for size, held in zip(sizes, federation.test.sizes.tolist(), strict=True):
        assert held == (0 if size == 1 else max(1, round(0.2 * size)))


def test_a_common_test_part_is_used_where_clients_are_not_natural() -> None:
    pool = replace(
        numbered(200, test=True),
        client=torch.arange(200) % 4,
        clients=tuple("abcd"),
        common_test=torch.arange(200) >= 150,
    )
    assert len(deal(pool, Natural()).test) == 40
    assert len(deal(pool, Iid(4)).test) == 50


def test_groups_and_protected_attributes_go_by_majority() -> None:
    pool = replace(
        numbered(9),
        client=torch.tensor([0, 0, 0, 1, 1, 1, 2, 2, 2]),
        clients=tuple("abc"),
        group=torch.tensor([2, 2, 0, 1, 1, 1, 0, 2, 0]),
        group_names=("x", "y", "z"),
        protected=torch.tensor([1, 0, 1, 0, 0, 0, 1, 1, 1]),
    )
    federation = deal(pool, Natural())
    assert federation.group is not None and federation.group.tolist() == [2, 1, 0]
    assert federation.protected is not None and federation.protected.tolist() == [1, 0, 1]


def test_load_chooses_what_fits() -> None:
    assert load("digits").n_clients == 40
    assert load("digits", "rotations=4").group_names == ("0°", "90°", "180°", "270°")
    assert load("digits", Rotations(2), clients=6).n_clients == 6
    assert load("synthetic(1,1)").n_clients == 30
    assert load(teacher()).n_clients == 10
    assert load("synthetic", clients=7).n_clients == 7
    big = numbered(12_000)
    assert load(big, "iid").n_clients == 100
    with pytest.raises(UsageError, match="--partition iid"):  # nobody said whose an example is
        load(big)
    federation = load(big, "iid", clients=3)
    assert load(federation) is federation
    with pytest.raises(UsageError, match="partitioned already"):
        load(federation, "iid")
    with pytest.warns(UserWarning, match="all are kept"):
        assert load("synthetic", clients=99).n_clients == 30
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert load("synthetic", clients=30).n_clients == 30


def test_load_refuses_a_count_that_a_partition_cannot_take() -> None:
    def mine(pool: Pool, seed: int) -> Pool:
        return replace(pool, client=torch.zeros_like(pool.y), clients=("all",))

    assert load("digits", mine).n_clients == 1
    with pytest.raises(UsageError, match="leave out clients=3"):
        load("digits", mine, clients=3)


@pytest.mark.parametrize("wrong", [0, -1, 2.5, "4", True])
def test_counts_are_checked_when_built(wrong: Any) -> None:
    for build in (Iid, Dirichlet, Shards, Quantity, Natural):
        with pytest.raises(UsageError, match=r"clients must be a whole number"):
            build(wrong)


def test_partitions_refuse_what_they_cannot_deal() -> None:
    few = numbered(5)
    for partition in (Iid(6), Shards(3, 2), Quantity(6), Rotations(1, 6), Dirichlet(6)):
        with pytest.raises(UsageError):
            partition(few, 0)
    for partition in (Dirichlet(2), Shards(2)):
        with pytest.raises(UsageError, match="real targets"):
            partition(teacher(), 0)
    with pytest.raises(UsageError, match="no natural clients"):
        Natural()(few, 0)
    with pytest.raises(UsageError, match="valid must be a fraction"):
        deal(few, Iid(2), valid=1.0)


@pytest.mark.parametrize("partition", [Iid(3), Quantity(3)])
def test_examples_with_several_targets_are_dealt(partition: Partition) -> None:
    pool = Pool("several", torch.arange(12.0)[:, None], torch.eye(4)[torch.arange(12) % 4], tuple("abcd"))
    dealt = partition(pool, 0)
    assert dealt.client is not None and torch.unique(dealt.client).tolist() == [0, 1, 2]
