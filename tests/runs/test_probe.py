"""The probe is ridge regression, is scored on what it has not seen, and claims no more than it can tell."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from sklearn.metrics import adjusted_rand_score
from torch import Tensor

from conftest import federation_of
from polycentric import Federation, UsageError, load
from polycentric.data import Natural, Pool, deal, mixture
from polycentric.runs.probe import FOLDS, Probe, _Judge, components, grouped, probe, ridge, why_not


def normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_ridge_is_what_least_squares_finds_with_rows_for_the_penalty() -> None:
    z = torch.cat([normal(0, 9, 3), torch.ones(9, 1, dtype=torch.float64)], 1)
    t = normal(1, 9, 2)
    for strength, found in zip((0.5, 20.0), ridge(z.T @ z, z.T @ t, (0.5, 20.0), 1.0), strict=True):
        more = math.sqrt(strength) * torch.eye(4, dtype=torch.float64)
        right = torch.linalg.lstsq(torch.cat([z, more]), torch.cat([t, t[:4] * 0])).solution
        torch.testing.assert_close(found, right)
    far = ridge(z.T @ z, z.T @ t, (1e4,))[0]
    torch.testing.assert_close(far[-1], t.mean(0), atol=0.01, rtol=0)  # the constant is free


def test_components_are_principal() -> None:
    rows = (normal(0, 200, 40) * torch.logspace(1, -2, 40)).float()
    rows = rows - rows.mean(0)
    found = components(rows, 5, 0)
    values = torch.linalg.svdvals(rows)[:5]
    torch.testing.assert_close(found.square().sum(0).sqrt(), values, rtol=1e-3, atol=0)


def test_groups_that_are_there_are_found() -> None:
    truth = torch.arange(12) % 3
    vectors, z = normal(0, 3, 5, 2), normal(1, 12, 15, 5)
    t = z @ vectors[truth] + 0.3 * normal(2, 12, 15, 2)
    found = grouped(z.mT @ z, z.mT @ t, 3, 1.0, 0)
    assert adjusted_rand_score(truth.tolist(), found.tolist()) == 1


def test_what_is_chosen_is_chosen_on_the_other_folds() -> None:
    fold, client = torch.arange(20) % FOLDS, torch.arange(20) // 10
    judge = _Judge("classes", normal(0, 20, 1), normal(1, 20, 1), client, fold)
    scores = torch.stack([torch.full((20,), 0.5), (fold == 0) * 2.1]).double()  # the second is good in one fold only
    assert judge.choices(scores).tolist() == [0, 1, 1, 1, 1]  # 2.1 > 4 * 0.5, but not where fold 0 has no say
    assert judge.chosen(scores)[fold == 0].tolist() == [0.5] * 4


def probed(each: Tensor, client: Tensor) -> Probe:
    zero = torch.zeros(len(client), dtype=torch.float64)
    m = int(client.max()) + 1
    return Probe(tuple(range(m)), client, {"a": each, "b": zero}, {}, zero.view(-1, 1), "", 1, True)


def test_the_error_is_over_clients_or_where_they_are_few_over_examples() -> None:
    client = torch.arange(40) // 4
    each = normal(0, 40) + 1
    own = each.view(10, 4).mean(1)
    many = probed(each, client).difference("a", "b")
    assert (many.mean, many.error) == pytest.approx((float(own.mean()), float(own.std()) / math.sqrt(10)))
    assert many.margin > 2 and many.better == int((own > 0).sum())
    few = probed(each[:8], client[:8]).difference("a", "b")
    variances = each[:8].view(2, 4).var(1) / 4
    assert few.error == pytest.approx(float(variances.sum().sqrt()) / 2) and few.margin == 2


def test_no_difference_is_no_claim() -> None:
    nothing = probed(torch.zeros(40, dtype=torch.float64), torch.arange(40) // 4).difference("a", "b")
    assert nothing.sure == 0 and nothing.better == nothing.worse == 0


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_one_center_pays_for_clients_that_are_alike_and_four_for_four_rotations(seed: int) -> None:
    iid = probe(load("digits", "iid", clients=24, seed=seed), seed)
    assert iid.difference("one", "alone").sure == 1 and iid.difference("several", "one").sure <= 0
    turned = load("digits", "rotations=4", clients=24, seed=seed)
    found = probe(turned, seed)
    assert found.difference("several", "one").sure == 1 and found.k == 4
    assert turned.group is not None
    assert adjusted_rand_score(turned.group.tolist(), found.groups[4]) == 1


def test_two_regressions_are_found_and_their_number() -> None:
    found = probe(deal(mixture(2, clients=30), Natural()))
    assert found.k == 2 and found.difference("several", "alone").sure == found.difference("alone", "one").sure == 1


def test_clients_that_have_nothing_in_common_are_better_alone() -> None:
    x, vectors = normal(0, 8, 60, 8), torch.eye(8, dtype=torch.float64)[:, :, None]
    found = probe(federation_of([(x[k], (x[k] @ vectors[k])[:, 0]) for k in range(8)]))
    assert found.difference("alone", "one").sure == 1 and found.score("alone") > 0.95
    assert found.difference("alone", "several").sure == 1


@pytest.mark.parametrize("partition", ["iid", "rotations=4"])
def test_test_and_validation_examples_have_no_say(partition: str) -> None:
    federation = load("digits", partition, clients=12, valid=0.1)
    test = replace(federation.test, x=federation.test.x.flip(0), y=federation.test.y * 0)
    valid = replace(federation.valid, y=federation.valid.y * 0)
    a, b = probe(federation), probe(replace(federation, test=test, valid=valid))
    assert all(torch.equal(a.scores[way], b.scores[way]) for way in a.scores) and a.groups == b.groups


def test_scores_are_of_examples_that_were_held_out() -> None:
    """Targets that nothing tells: whoever sees an example before it is scored would do better than chance."""
    x, y = normal(0, 10, 40, 30), torch.randint(2, (10, 40), generator=torch.Generator().manual_seed(1))
    found = probe(federation_of([(x[k], y[k]) for k in range(10)], classes=2))
    for way in found.scores:
        own = found.by_client(way)
        assert abs(float(own.mean()) - 0.5) < 4 * 0.5 / math.sqrt(400), way


def test_several_labels_and_several_numbers() -> None:
    x, w = normal(0, 6, 40, 5), normal(1, 5, 3)
    several = federation_of([(x[k], x[k] @ w) for k in range(6)])
    assert probe(several).score("one") > 0.99
    labels = federation_of([(x[k], (x[k] @ w > 0).double()) for k in range(6)], classes=3)
    assert labels.kind == "labels" and 0.8 < probe(labels).score("one") < 1


def test_large_federations_are_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polycentric.runs.probe.MOST_EXAMPLES", 400)
    x = normal(0, 2000, 3).float()
    pool = Pool(
        "many", x, (x[:, 0] > 0).long(), ("a", "b"), client=torch.arange(2000) % 50, clients=tuple(map(str, range(50)))
    )
    found = probe(deal(pool, Natural()))
    assert len(found.clients) == 20 and len(found.client) == 400 and found.most == 20 and not found.whole


def test_the_probe_depends_on_its_seed_alone() -> None:
    federation = load("digits", "iid", clients=8)
    torch.manual_seed(1)
    a = probe(federation, 3)
    torch.manual_seed(2)
    assert torch.equal(a.scores["several"], probe(federation, 3).scores["several"])


def tiny(n: int) -> Federation:
    return federation_of([(normal(k, n, 2), torch.zeros(n, dtype=torch.int64)) for k in range(2)], classes=2)


def test_where_nothing_can_be_said_nothing_is() -> None:
    assert "two clients with 5" in why_not(tiny(4)) and not why_not(tiny(5))
    assert probe(tiny(5)).groups == {}
    with pytest.raises(UsageError, match="no probe of 'made'"):
        probe(tiny(4))
