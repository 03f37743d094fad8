"""Arrays, tensors and datasets become pools that say what they were given, or one clear line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import polycentric as pc
from polycentric.data import from_arrays, from_dataset
from polycentric.errors import UsageError

N = 24
OWNER = ["a", "b", "c"] * 8
rng = np.random.default_rng(0)
X, Y = rng.normal(size=(N, 5)), np.arange(N) % 2


def refused(do: Callable[[], Any], *words: str) -> None:
    with pytest.raises(UsageError) as caught:
        do()
    assert "\n" not in str(caught.value) and not [word for word in words if word not in str(caught.value)], caught.value


@pytest.mark.parametrize(
    ("y", "kind", "classes", "shape"),
    [
        (Y, "classes", ("0", "1"), (N,)),
        (Y[:, None], "classes", ("0", "1"), (N,)),
        (Y * 2 - 1, "classes", ("-1", "1"), (N,)),
        (Y + 5, "classes", ("5", "6"), (N,)),
        (Y == 1, "classes", ("False", "True"), (N,)),
        (["no", "yes"] * 12, "classes", ("no", "yes"), (N,)),
        (np.array(["no", "yes"] * 12, dtype=object), "classes", ("no", "yes"), (N,)),
        (X[:, 0], "numbers", (), (N,)),
        (X[:, :1], "numbers", (), (N,)),
        (X[:, :3], "numbers", (), (N, 3)),
        (X[:, :3] > 0, "labels", ("0", "1", "2"), (N, 3)),
        (torch.arange(N) % 3, "classes", ("0", "1", "2"), (N,)),
        (torch.arange(N) / 2, "numbers", (), (N,)),
    ],
)
def test_what_y_is(y: Any, kind: str, classes: tuple[str, ...], shape: tuple[int, ...]) -> None:
    pool = from_arrays(X, y, client=OWNER)
    assert (pool.kind, pool.classes, tuple(pool.y.shape)) == (kind, classes, shape)
    assert pc.load(pool).n_clients == 3


def test_what_x_is() -> None:
    assert torch.equal(from_arrays(torch.tensor(X), Y).x, torch.tensor(X).float())
    assert from_arrays(X[:, 0], Y).x.shape == (N, 1)
    assert from_arrays(np.full((N, 2), 200, np.uint8), Y).x.tolist()[0] == [200, 200]  # features are not pixels
    grey = from_arrays(np.zeros((N, 6, 7), np.uint8), Y).x
    assert grey.shape == (N, 1, 6, 7) and grey.dtype == torch.uint8
    assert from_arrays(np.zeros((N, 3, 6, 7), np.uint8), Y).x.shape == (N, 3, 6, 7)
    assert from_arrays(np.zeros((N, 3, 50)), Y).x.shape == (N, 3, 50)
    words = from_arrays(np.arange(N * 4).reshape(N, 4) % 300, Y, symbols=300)
    assert words.symbols == 300 and words.x.dtype == torch.int32


def test_what_else_there_is() -> None:
    test = Y == 1
    pool = from_arrays(
        X, Y, client=[7, 30, 101] * 8, test=test, group=["g", "h"] * 12, columns="abcde", classes=["n", "y"]
    )
    assert pool.clients == ("7", "30", "101") and pool.group_names == ("g", "h") and pool.classes == ("n", "y")
    assert pool.test is not None and pool.test.tolist() == test.tolist() and pool.columns == tuple("abcde")
    assert from_arrays(X, X[:, :2], targets=["u", "v"]).targets == ("u", "v")
    run = pc.run("fedavg", pool, rounds=1, executor="looped")  # a pool is dealt as settings say
    assert run.federation.n_clients == 3 and len(run.federation.test) == 12
    dealt = pc.run("fedavg", from_arrays(X, Y), partition="iid", clients=4, rounds=0, executor="looped", valid=0.25)
    assert dealt.federation.n_clients == 4 and len(dealt.federation.valid) > 0


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"x": X * np.nan}, ["x", "NaN"]),
        ({"x": [[1.0], [1.0, 2.0]]}, ["x is ragged"]),
        ({"x": [["a"]] * N}, ["strings", "from_frame"]),
        ({"x": np.zeros((N, 2, 2, 2, 2))}, ["shape"]),
        ({"x": np.zeros((N, 8, 8, 3), np.uint8)}, ["channels come first", "transpose(0, 3, 1, 2)"]),
        ({"x": np.zeros((0, 2)), "y": []}, ["no examples"]),
        ({"x": np.array([{}] * N)}, ["object"]),
        ({"y": 3}, ["y is a single int"]),
        ({"y": Y[:-1]}, ["23", "24"]),
        ({"y": np.arange(N)}, ["24 different whole numbers", "astype(float)"]),
        ({"y": X[:, 0], "classes": ["a", "b"]}, ["whole numbers"]),
        ({"y": ["u", "v"] * 12, "classes": ["a", "b"]}, ["leave classes out"]),
        ({"y": np.arange(N).reshape(N // 2, 2), "x": X[: N // 2]}, ["0 and 1"]),
        ({"client": OWNER[:-1]}, ["client", "(23,)"]),
        ({"client": X[:, 0]}, ["client is float64"]),
        ({"test": ["x"] * N}, ["test must be True or False"]),
        ({"columns": "ab"}, ["2 names in columns for 5"]),
        ({"targets": ["u"]}, ["targets names 1"]),
        ({"x": np.arange(N * 2).reshape(N, 2), "symbols": 3}, ["0 to 2"]),
        ({"x": {}}, ["at least one input"]),
        ({"x": {"a": X, "b": X[1:]}}, ["'b' has 23", "24"]),
    ],
)
def test_what_is_wrong_is_said(how: dict[str, Any], words: list[str]) -> None:
    given = {"x": X, "y": Y} | how
    refused(lambda: from_arrays(given.pop("x"), given.pop("y"), **given), *words)


class Two(nn.Module):
    """A picture and an age."""

    def __init__(self) -> None:
        super().__init__()
        self.image, self.age = nn.Linear(16, 2), nn.Linear(1, 2)

    def forward(self, image: Tensor, age: Tensor) -> Tensor:
        assert image.shape[-3:] == (1, 4, 4) and age.shape[-1] == 1
        return self.image(image.flatten(-3)) + self.age(age)


def test_several_inputs_reach_the_model_one_by_one() -> None:
    images, ages = rng.integers(0, 256, (N, 4, 4), dtype=np.uint8), rng.normal(size=N)
    pool = from_arrays({"image": images, "age": ages}, Y, client=OWNER)
    assert pool.inputs == (("image", (1, 4, 4)), ("age", (1,)))
    assert torch.allclose(pool.x[:, :16], torch.tensor(images / 255).float().flatten(1))
    assert torch.equal(pool.x[:, 16], torch.tensor(ages).float())
    ended = pc.run("fedavg", pool, model=Two, rounds=1, executor="looped", fine_tune=0)
    assert ended.history[-1]["micro_loss"] > 0


class Listed:
    """A dataset of torch's kind."""

    def __init__(self, *examples: Any) -> None:
        self.examples = examples

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, at: int) -> Any:
        return self.examples[at]


def test_a_dataset_becomes_a_pool() -> None:
    tensors = torch.utils.data.TensorDataset(torch.tensor(X).float(), torch.tensor(Y))
    pool = from_dataset(tensors, client=lambda at: at % 3, test=lambda at: at >= 18)
    assert torch.equal(pool.x, torch.tensor(X).float()) and pool.clients == ("0", "1", "2")
    assert pool.client is not None and pool.client.tolist() == [k % 3 for k in range(N)]
    assert pool.test is not None and pool.test.sum() == 6
    pictures = Listed(*((Image.fromarray(np.full((4, 6, 3), k, np.uint8)), k % 2) for k in range(6)))
    pictures.classes = ["cat", "dog"]  # type: ignore[attr-defined]
    seen = from_dataset(pictures, client=["u", "v"] * 3)
    assert seen.x.shape == (6, 3, 4, 6) and seen.x.dtype == torch.uint8 and seen.classes == ("cat", "dog")
    several = from_dataset(Listed(*(({"a": np.ones(2), "b": [k]}, 0.5 * k) for k in range(6))), client=["u", "v"] * 3)
    assert several.inputs == (("a", (2,)), ("b", (1,))) and several.kind == "numbers"


def test_a_dataset_that_cannot_be_one_is_refused() -> None:
    ragged = Listed((np.zeros(3), 0), (np.zeros(3), 1), (np.zeros(4), 0))
    refused(lambda: from_dataset(ragged), "x of example 2", "(4,)", "(3,)", "pad or resize")
    refused(lambda: from_dataset(iter([(1, 2)])), "len(dataset)")
    refused(lambda: from_dataset(Listed()), "no examples")
    refused(lambda: from_dataset(Listed({"x": 1})), "example 0 is dict", "(x, y)")
    refused(lambda: from_dataset(Listed((np.zeros(3), 0), (np.zeros(3), 1)), client=["a"]), "client", "(1,)")


def test_a_transform_that_draws_is_told() -> None:
    class Drawn(Listed):
        def __getitem__(self, at: int) -> Any:
            return rng.normal(size=3), at % 2

    with pytest.warns(UserWarning, match="draws at random"):
        from_dataset(Drawn(1, 2, 3, 4))
