"""How exactly clients multiply: what it changes, what it does not, and where it is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from polycentric import Federation, Task, UsageError, fedavg
from polycentric.learn.execute.looped import channels_last, likes_channels_last
from polycentric.models import build
from polycentric.round import run_round
from polycentric.runs.machine import use_precision
from polycentric.runs.outputs import environment
from polycentric.runs.settings import Settings
from polycentric.runs.start import load_data, prepare, prepared
from polycentric.tasks.task import Batch

Make = Callable[..., Federation]
METHOD = fedavg(lr=0.1, batch=5)
HAS = getattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True)()
needs_bf16 = pytest.mark.skipif(not HAS, reason="this processor does not compute in bfloat16")


def after(federation: Federation, **how: Any) -> torch.Tensor:
    prepared = prepare(METHOD, federation, **({"model": "mlp"} | how))
    state, _ = run_round(METHOD, prepared.state, prepared.clients)
    return state.centers["model"]


@needs_bf16
@pytest.mark.parametrize("executor", ["looped", "stacked"])
def test_bf16_is_near_and_not_the_same_and_models_stay_wide(executor: str, blobs: Make) -> None:
    federation = blobs(sizes=(10, 15, 5))
    exact, near = (after(federation, executor=executor, precision=p) for p in ("float32", "bf16"))
    assert near.dtype == torch.float32 and not torch.equal(exact, near)
    moved = (exact - prepare(METHOD, federation, model="mlp").state.centers["model"]).norm()
    assert float((near - exact).norm() / moved) < 0.05
    assert not torch.equal(near, near.bfloat16().float()), "the model itself is not rounded"


@needs_bf16
def test_scores_are_exact_whatever_the_precision(blobs: Make) -> None:
    federation = blobs(sizes=(10, 15))
    tasks = [Task.of(federation, "mlp", precision=p) for p in ("float32", "bf16")]
    row = {name: value[0] for name, value in tasks[0].start().items()}
    x, y = federation.train.x[:6].float(), federation.train.y[:6]
    batch = Batch(x, y, torch.full((6,), 1 / 6))
    exact, near = (task.mean_loss(row, batch) for task in tasks)
    assert near.dtype == torch.float32 and not torch.equal(exact, near)
    assert torch.equal(*(task.predict(row, x) for task in tasks))
    assert torch.equal(*(task.quiet_loss(row, batch) for task in tasks))


@needs_bf16
def test_the_setting_reaches_the_task_and_is_written_down() -> None:
    settings = Settings.of({"method": "fedavg", "data": "digits", "precision": "bf16", "rounds": 0, "device": "cpu"})
    made = prepared(settings)
    assert made.clients.task.precision == "bf16"
    assert environment(made)["precision"] == "bf16" and settings.model_dump()["precision"] == "bf16"


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"precision": "half"}, "precision in the arguments: input should be"),
        ({"precision": "tf32"}, "precision=tf32 needs a GPU, not cpu: use --device cuda"),
        ({"precision": "bf16", "dtype": "float64"}, "precision=bf16 needs dtype=float32, and dtype is float64"),
    ],
    ids=["no such", "no GPU", "float64"],
)
def test_what_has_no_meaning_is_refused(asked: dict[str, str], said: str, blobs: Make) -> None:
    with pytest.raises(UsageError, match=said):
        prepare(METHOD, blobs(), **asked)


def test_a_processor_without_bf16_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False, raising=False)
    with pytest.raises(UsageError, match="does not compute in bfloat16"):
        use_precision("bf16", torch.device("cpu"), "float32")


@pytest.mark.parametrize("channels", [1, 3])
def test_channels_come_last_and_images_are_the_same(channels: int) -> None:
    x = torch.rand(4, channels, 6, 5)
    seen = channels_last(x)
    assert torch.equal(seen, x)
    assert seen.stride(1) == 1 and seen.stride(3) == channels
    assert (seen.data_ptr() == x.data_ptr()) == (channels == 1), "one channel is not copied"


class Own(nn.Module):
    """Somebody's module that counts on the order of memory."""

    def __init__(self, shape: tuple[int, ...], n_outputs: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(shape[0], 2, 3, padding=1)
        self.head = nn.Linear(2 * shape[1] * shape[2], n_outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """A view of what the convolution gives."""
        made: torch.Tensor = self.head(self.conv(x).view(len(x), -1))
        return made


@pytest.mark.parametrize(
    ("model", "likes"),
    [("femnist-cnn", True), ("mnist-cnn", True), ("celeba-cnn", False), ("vgg11", False), ("mlp", False), (Own, False)],
)
def test_only_rows_of_known_layers_get_channels_last(model: Any, likes: bool) -> None:
    module = build(model, (1, 32, 32), 10, seed=0)
    assert likes_channels_last(module) is likes
    if likes:
        x = torch.rand(3, 1, 32, 32)
        torch.testing.assert_close(module(channels_last(x)), module(x), rtol=1e-4, atol=1e-5)


def test_images_are_learned_by_modules_that_count_on_the_order_of_memory() -> None:
    settings = Settings.of({"method": "fedavg", "data": "digits", "rounds": 1, "device": "cpu"})
    federation = load_data(settings)
    prepared = prepare(METHOD, federation, model=Own, executor="looped")
    state, _ = run_round(METHOD, prepared.state, prepared.clients)
    assert bool(state.centers["model"].isfinite().all())
