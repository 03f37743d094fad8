"""Answers to new examples are those of the model that the run has, whatever form the examples come in."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

import polycentric as pc
from polycentric.data import Pool
from polycentric.data.from_table import rows_to_inputs, table
from polycentric.runs.loop import Run

SOURCE = np.random.default_rng(0)


def told(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def ran(y: Any, classes: tuple[str, ...], x: Tensor | None = None, **how: Any) -> Run:
    """Sixty examples of three clients."""
    x = torch.from_numpy(SOURCE.normal(size=(60, 3)).astype(np.float32)) * 100 + 7 if x is None else x
    more = {"columns": ("age", "size", "dose")} if x.dim() == 2 else {}
    pool = Pool("made", x, torch.as_tensor(y), classes, client=torch.arange(60) % 3, clients=("a", "b", "c"), **more)
    scale = "train" if x.is_floating_point() else "no"
    return pc.run(pc.nofed(lr=0.1), pc.load(pool, standardise=scale), model="mlp", rounds=2, fine_tune=0, **how)


def outputs(done: Run, x: Tensor, client: str) -> Tensor:
    """By the module, and the scaling, themselves."""
    scaling = done.federation.scaling
    with torch.no_grad():
        found: Tensor = done.model_of(client=client)(scaling(x) if scaling else x / 255)
    return found.double()


@pytest.fixture(scope="module")
def three() -> Run:
    return ran(torch.arange(60) % 3, ("low", "mid", "high"))


def test_a_file_with_targets(three: Run, tmp_path: Path) -> None:
    x = (SOURCE.normal(size=(7, 3)) * 100).astype(np.float32)
    classes = np.array(["high", "low"])  # in another order, and not all of them
    y = np.array([0, 1, 0, 0, 1, 1, 0])
    np.savez(tmp_path / "new.npz", x=x, y=y, classes=classes, columns=np.array(["age", "size", "dose"]))
    found = three.predict(tmp_path / "new.npz", client="b")
    right = outputs(three, torch.from_numpy(x), "b")
    assert torch.allclose(found.outputs, right, atol=1e-6)
    rows = told(found.table())
    names = ("low", "mid", "high")
    for row, z, t in zip(rows, right, classes[y], strict=True):
        assert row["predicted"] == names[int(z.argmax())] and row["true"] == t
        chances = [float(row[f"probability_{name}"]) for name in names]
        assert chances == pytest.approx(z.softmax(0).tolist(), rel=1e-4) and sum(chances) == pytest.approx(1, abs=1e-5)
        assert float(row["right"]) == (row["predicted"] == t)
        assert float(row["loss"]) == pytest.approx(-float(z.log_softmax(0)[names.index(str(t))]), rel=1e-4)
    assert found.summary()["accuracy"] == pytest.approx(np.mean([float(row["right"]) for row in rows]))


def test_a_file_without_targets_and_a_tensor_say_the_same(three: Run, tmp_path: Path) -> None:
    x = torch.randn(4, 3, generator=torch.Generator().manual_seed(1))
    np.savez(tmp_path / "bare.npz", x=x.numpy())
    bare, tensor = three.predict(tmp_path / "bare.npz", client="a"), three.predict(x, client="a")
    assert torch.equal(bare.outputs, tensor.outputs) and bare.summary() == {}
    assert set(told(bare.table())[0]) == {"example", "predicted"} | {f"probability_{n}" for n in ("low", "mid", "high")}
    assert not torch.equal(bare.outputs, three.predict(x, client="c").outputs)


def test_what_does_not_fit_is_refused(three: Run, tmp_path: Path) -> None:
    x, y = np.zeros((2, 3), np.float32), np.zeros(2, np.int64)
    files: dict[str, tuple[dict[str, Any], str]] = {
        "shape": ({"x": x[:, :2]}, r"examples have shape \(2,\), and the run's \(3,\)"),
        "bytes": ({"x": x.astype(np.uint8)}, r"examples are bytes \(uint8\), and the run's numbers \(float32\)"),
        "order": ({"x": x, "columns": np.array(["size", "age", "dose"])}, "column 0 is 'size', and 'age' in the run's"),
        "class": ({"x": x, "y": y, "classes": np.array(["huge"])}, "a class 'huge', which is none of the run's: low"),
        "kind": ({"x": x, "y": y.astype(np.float32)}, "has numbers as targets, and the run's data classes"),
    }
    for name, (arrays, said) in files.items():
        np.savez(tmp_path / f"{name}.npz", **arrays)
        with pytest.raises(pc.UsageError, match=said):
            three.predict(tmp_path / f"{name}.npz", client="a")
    (tmp_path / "new.csv").write_text("age,size,dose\n1,2,3\n")
    with pytest.raises(pc.UsageError, match="the run's data did not come from a table"):
        three.predict(tmp_path / "new.csv", client="a")
    with pytest.raises(pc.UsageError, match="there is no file or folder"):
        three.predict(tmp_path / "nowhere.npz", client="a")
    with pytest.raises(pc.UsageError, match="hold NaN or infinity"):
        three.predict(torch.full((1, 3), torch.nan), client="a")
    with pytest.raises(pc.UsageError, match="so say whose model is wanted"):
        three.predict(torch.zeros(1, 3))


def test_numbers_are_told_with_their_error(tmp_path: Path) -> None:
    done = ran(SOURCE.normal(size=(60, 2)).astype(np.float32), ())
    x, y = SOURCE.normal(size=(5, 3)).astype(np.float32), SOURCE.normal(size=(5, 2)).astype(np.float32)
    np.savez(tmp_path / "new.npz", x=x, y=y)
    found = done.predict(tmp_path / "new.npz", client="a")
    right = outputs(done, torch.from_numpy(x), "a")
    rows = told(found.table())
    assert float(rows[3]["predicted_1"]) == pytest.approx(float(right[3, 1]), rel=1e-5)
    assert float(rows[3]["true_0"]) == pytest.approx(float(y[3, 0]), rel=1e-5)
    assert found.summary()["rmse"] == pytest.approx(float((right - torch.from_numpy(y)).square().mean().sqrt()))


def test_several_labels_are_told_one_by_one() -> None:
    y = torch.stack([torch.arange(60) % 2, torch.arange(60) % 3 == 0], 1).float()
    done = ran(y, ("red", "round"))
    x = torch.randn(4, 3)
    row = next(done.predict(x, client="a").rows())
    z = outputs(done, x, "a")[0]
    assert [row["predicted_red"], row["predicted_round"]] == (z > 0).long().tolist()
    assert row["probability_round"] == pytest.approx(float(z[1].sigmoid()), rel=1e-5)


def test_pictures_side_by_side_and_by_class(tmp_path: Path) -> None:
    x = torch.from_numpy(SOURCE.integers(0, 256, (60, 1, 4, 4)).astype(np.uint8))
    done = ran(torch.arange(60) % 2, ("cat", "dog"), x)
    for at in range(3):
        (tmp_path / "flat").mkdir(exist_ok=True)
        (tmp_path / "sorted" / "dog").mkdir(exist_ok=True, parents=True)
        picture = Image.fromarray(x[at, 0].numpy())
        picture.save(tmp_path / "flat" / f"{at}.png")
        picture.save(tmp_path / "sorted" / "dog" / f"{at}.png")
    flat, known = (done.predict(tmp_path / name, client="a") for name in ("flat", "sorted"))
    assert torch.allclose(flat.outputs, outputs(done, x[:3], "a"), atol=1e-6) and flat.names == (
        "0.png",
        "1.png",
        "2.png",
    )
    assert torch.equal(flat.outputs, known.outputs) and flat.targets is None
    assert known.targets is not None and known.targets.tolist() == [1, 1, 1]
    (tmp_path / "sorted" / "dog").rename(tmp_path / "sorted" / "cow")
    with pytest.raises(pc.UsageError, match="'cow' is no class of the run's data: put them side by side"):
        done.predict(tmp_path / "sorted", client="a")


def test_rows_of_a_table_go_through_the_recipe(tmp_path: Path) -> None:
    lines = [f"{'ab'[i % 2]},{20 + 7 * i % 40},{'xyz'[i % 3]},{'yes' if i % 5 else 'no'}" for i in range(60)]
    (tmp_path / "old.csv").write_text("site,age,kind,sick\n" + "\n".join(lines) + "\n")
    pool = table(tmp_path / "old.csv", client="site", target="sick")
    done = pc.run(pc.fedavg(lr=0.1), pc.load(pool, standardise="train"), model="mlp", rounds=2, fine_tune=0)
    (tmp_path / "new.csv").write_text("kind,age\nz,33\nx,50\n")
    found = done.predict(tmp_path / "new.csv")
    x = rows_to_inputs(done.federation.recipe, [{"kind": "z", "age": "33"}, {"kind": "x", "age": "50"}])
    scaling = done.federation.scaling
    assert scaling is not None
    with torch.no_grad():
        assert torch.allclose(found.outputs, done.model_of()(scaling(x)).double(), atol=1e-6)
    (tmp_path / "known.csv").write_text("kind,age,sick\nz,33,no\nx,50,yes\n")
    assert [row["true"] for row in done.predict(tmp_path / "known.csv").rows()] == ["no", "yes"]
