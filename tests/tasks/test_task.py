"""What may be learned, and what a user's own loss and metric must be."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import polycentric as pc
from polycentric.data import Pool
from polycentric.errors import UsageError
from polycentric.tasks.multi_label import label_error
from polycentric.tasks.regression import squared_error

N, CLIENTS = 96, 4


def pool(y: Tensor, classes: tuple[str, ...] = (), **more: Any) -> Pool:
    client, names = torch.arange(N) % CLIENTS, tuple(f"site {k}" for k in range(CLIENTS))
    return Pool("made", features(), y, classes, client=client, clients=names, **more)


def features() -> Tensor:
    return torch.randn(N, 4, generator=torch.Generator().manual_seed(0))


def trained(data: Pool, **how: Any) -> pc.Run:
    return pc.run(pc.fedavg(lr=0.1), pc.load(data), **({"rounds": 2, "model": "logistic", "fine_tune": 0} | how))


KINDS = {
    "classes": (features().argmax(1), ("a", "b", "c", "d")),
    "labels": ((features() > 0).float(), ("a", "b", "c", "d")),
    "numbers": (features()[:, 0], ()),
    "several numbers": (features()[:, :3], ()),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_learned_and_stacking_changes_nothing(kind: str) -> None:
    y, classes = KINDS[kind]
    runs = [trained(pool(y, classes), executor=executor, dtype="float64") for executor in ("looped", "stacked")]
    assert runs[0].federation.kind == kind.removeprefix("several ")
    torch.testing.assert_close(runs[0].state.centers["model"], runs[1].state.centers["model"], rtol=0, atol=1e-12)
    assert runs[0].history[-1]["micro_loss"] < runs[0].history[0]["micro_loss"]


def test_losses_of_labels_and_numbers_are_what_they_say() -> None:
    z, y = torch.tensor([[2.0, -1.0]]), torch.tensor([[1.0, 1.0]])
    expected = (torch.log1p(torch.exp(torch.tensor(-2.0))) + torch.log1p(torch.exp(torch.tensor(1.0)))) / 2
    torch.testing.assert_close(label_error(z, y), expected[None])
    assert squared_error(z, y).tolist() == [(1 + 4) / 2] and squared_error(z[:, :1], y[:, 0]).tolist() == [0.5]


REFUSED = {
    "a mean over examples": (nn.CrossEntropyLoss(), "classes", r"one number for 2 examples.*reduction='none'"),
    "shapes that broadcast": (nn.MSELoss(reduction="none"), "numbers", r"\(2, 2\).*squeeze"),
    "a number for each label": (nn.BCEWithLogitsLoss(reduction="none"), "labels", r"mean over the last axis"),
    "what looks at the others": (lambda z, y: (z - z.mean()).sum(1), "classes", "alone"),
    "what fails": (lambda z, y: z @ y, "classes", "RuntimeError"),
    "what has no gradient": (lambda z, y: (z.argmax(-1) != y).float(), "classes", "no gradient"),
}


@pytest.mark.parametrize("why", REFUSED)
def test_a_loss_that_cannot_be_stacked_is_refused_before_anything_runs(why: str) -> None:
    loss, kind, message = REFUSED[why]
    with pytest.raises(UsageError, match=message):
        trained(pool(*KINDS[kind]), loss=loss)


def test_a_loss_of_ones_own_acts() -> None:
    ours, same, other = (
        trained(pool(*KINDS["classes"]), loss=loss).state.centers["model"]
        for loss in (
            None,
            nn.CrossEntropyLoss(reduction="none"),
            nn.CrossEntropyLoss(reduction="none", label_smoothing=0.5),
        )
    )
    assert torch.equal(ours, same) and not torch.equal(ours, other)


# -- metrics ---------------------------------------------------------------------------------------------------


def off(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs.squeeze(-1) - targets).abs()


def worst(outputs: Tensor, targets: Tensor) -> Tensor:
    return off(outputs, targets).max()


def test_metrics_of_examples_and_of_clients_stand_in_every_row() -> None:
    done = trained(pool(KINDS["numbers"][0]), metrics=[pc.Metric(off, lower_is_better=True), worst])
    scores, test = done.scores["in_use"], done.federation.test
    assert done.metrics["micro_off"] == pytest.approx(done.metrics["micro_mae"])
    for k in range(CLIENTS):
        mine = test.of(k)
        found = off(done.model_of(k)(mine.x), mine.y)
        assert scores.marks["off"].values[k] == pytest.approx(float(found.mean().detach()), rel=1e-5)
        assert scores.marks["worst"].values[k] == pytest.approx(float(found.max().detach()), rel=1e-5)
    assert done.metrics["worst_decile_off"] == pytest.approx(scores.marks["off"].values.max())  # less is better
    assert "worst_decile_worst" not in done.metrics  # nobody said which way is better
    assert {"micro_off", "macro_worst"} <= done.history[0].keys()


def test_early_stopping_goes_by_what_is_monitored() -> None:
    def rises(outputs: Tensor, targets: Tensor) -> Tensor:
        return outputs.abs().mean(-1)

    how: dict[str, Any] = {"rounds": 6, "patience": 2}
    for lower, rounds in ((True, 3), (False, 6)):  # outputs grow from the first round on
        metric = pc.Metric(rises, lower_is_better=lower)
        data = pc.load(pool(10 * KINDS["numbers"][0]), valid=0.2)
        done = pc.run(pc.fedavg(lr=0.02), data, model="logistic", metrics=[metric], monitor="macro_rises", **how)
        assert done.history[-1]["round"] == rounds
    with pytest.raises(UsageError, match="which way is better"):
        pc.run(pc.fedavg(), data, model="logistic", metrics=[rises], monitor="macro_rises", **how)
    with pytest.raises(UsageError, match="did you mean 'macro_rises'"):
        pc.run(pc.fedavg(), data, model="logistic", metrics=[metric], monitor="macro_rise", **how)


def test_a_metric_is_refused_in_one_line() -> None:
    for metric, message in ((lambda z, y: z, "'<lambda>'"), (pc.Metric(lambda z, y: z, name="all"), r"\(2, 1\)")):
        with pytest.raises(UsageError, match=message):
            trained(pool(KINDS["numbers"][0]), metrics=[metric])


# -- several inputs, several heads -------------------------------------------------------------------------------


class Two(nn.Module):
    """An image and a number in; two heads out."""

    def __init__(self, shape: dict[str, tuple[int, ...]], n_outputs: int) -> None:
        super().__init__()
        assert shape == {"left": (1, 3), "right": (1,)}
        self.a, self.b = nn.Linear(3, 1), nn.Linear(1, n_outputs - 1)

    def forward(self, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
        return self.a(left.flatten(1)), self.b(right)


def test_several_inputs_and_heads_are_one_row_each() -> None:
    inputs = (("left", (1, 3)), ("right", (1,)))
    data = pool(*KINDS["classes"], inputs=inputs)
    runs = [trained(data, model=Two, executor=executor, dtype="float64") for executor in ("looped", "stacked")]
    torch.testing.assert_close(runs[0].state.centers["model"], runs[1].state.centers["model"], rtol=0, atol=1e-12)
    assert trained(data).history[-1]["micro_loss"] > 0  # a named model takes all of it as one row
    with pytest.raises(UsageError, match="inputs are 5 numbers"):
        pc.load(pool(*KINDS["classes"], inputs=(("left", (1, 3)), ("right", (2,)))))
