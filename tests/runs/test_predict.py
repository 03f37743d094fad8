"""Answers to new examples are those of the model that the run has, whatever form the examples come in."""

from __future__ import annotations

import csv
import io
import json
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


def coloured(folder: Path, n: int = 12) -> None:
    """Pictures of several sizes by client and class."""
    for at in range(n):
        path = folder / f"client {at % 2}" / ("cat" if at % 3 else "dog") / f"{at}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(SOURCE.integers(0, 256, (5 + at, 7, 3)).astype(np.uint8)).save(path)


@pytest.mark.parametrize("format", ["safetensors", "torch-export"])
def test_pictures_are_resized_as_the_runs_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, say: Any, format: Any
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("POLYCENTRIC_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    coloured(tmp_path / "pets")
    coloured(tmp_path / "others", 6)
    assert say("data", "import", "pets", "--size", "4x3", "--name", "small").code == 0
    words = "run fedavg --data small --rounds 1 --fine-tune 0 --quiet --executor looped --out r"
    assert say(*words.split()).code == 0
    done = pc.open("r")
    file = Path("others/client 0/dog/0.png")
    file.rename("new.png")
    found = done.predict("new.png")
    with Image.open("new.png") as picture:
        pixels = np.asarray(picture.resize((3, 4), Image.Resampling.BILINEAR)).transpose(2, 0, 1)
    with torch.no_grad():
        right = done.model_of()(torch.from_numpy(pixels.copy())[None] / 255)
    assert torch.allclose(found.outputs, right.double(), atol=1e-6)
    for ask in (done.evaluate, done.assign):
        ask("others")
    (one,) = done.export(out="models", format=format)
    about, space = json.loads(one.about.read_text()), dict[str, Any]()
    exec(one.lines, space)  # which read new.png
    assert torch.allclose(space["outputs"].double(), found.outputs, atol=1e-5)
    assert about["before"].startswith("pictures are resized to 4x3 (height x width, bilinear) and made in colour")


def test_colour_is_made_grey_where_the_runs_pictures_were_and_that_is_said(tmp_path: Path) -> None:
    x = torch.from_numpy(SOURCE.integers(0, 256, (60, 1, 4, 3)).astype(np.uint8))
    pool = Pool("made", x, torch.arange(60) % 2, ("cat", "dog"), client=torch.arange(60) % 3, clients=("a", "b", "c"),
                recipe={"pictures": {"size": [4, 3], "channels": 1}})  # fmt: skip
    done = pc.run("fedavg", pool, model="mlp", rounds=1, fine_tune=0)
    pixels = SOURCE.integers(0, 256, (4, 3, 3)).astype(np.uint8)
    picture = Image.fromarray(pixels)
    picture.save(tmp_path / "colour.png")
    picture.convert("L").save(tmp_path / "grey.png")
    found = done.predict(tmp_path / "colour.png")
    assert torch.equal(found.outputs, done.predict(tmp_path / "grey.png").outputs)
    assert found.said == ("1 of 1 pictures are in colour and were made grey, as the run's are",)


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


class Frame(dict[str, list[Any]]):
    """As much of a data frame as is asked for."""

    @property
    def columns(self) -> list[str]:
        return list(self)


def visits(**more: list[Any]) -> Frame:
    """Sixty rows of two sites; some doses are below what can be measured."""
    dose = [f"{i * 37 % 100 / 10}" if i % 4 else "<0.5" for i in range(60)]
    known = {"site": ["a", "b"] * 30, "age": [20 + 7 * i % 40 for i in range(60)], "kind": ["x", "y", "z"] * 20}
    return Frame(known | {"dose": dose, "sick": ["yes" if i % 5 else "no" for i in range(60)]} | more)


@pytest.fixture(scope="module")
def framed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pool = pc.from_frame(visits(), client="site", target="sick", types="dose=number")
    folder = tmp_path_factory.mktemp("runs") / "framed"
    pc.run("fedavg", pool, standardise="train", model="mlp", rounds=1, fine_tune=0, executor="looped", out=folder)
    return folder


NEW = Frame(age=[33, None, 50, 21], kind=["z", "violet", "", "blue"], dose=["2", "<0.5", "7", "3"])


def test_a_frame_and_the_command_need_no_more_than_the_folder(framed: Path, tmp_path: Path, say: Any) -> None:
    with pytest.raises(pc.UsageError, match=r"federation.*with examples=False to predict or export without its data"):
        pc.open(framed)
    done = pc.open(framed, examples=False)
    pool = pc.from_frame(visits(), client="site", target="sick", types="dose=number")
    whole = pc.open(framed, federation=pc.load(pool, standardise="train"))
    found = done.predict(NEW)
    assert torch.equal(found.outputs, whole.predict(NEW).outputs) and not whole.federation.absent
    rows = [
        "age,kind,dose",
        *(",".join("" if v is None else str(v) for v in r) for r in zip(*NEW.values(), strict=True)),
    ]
    (tmp_path / "new.csv").write_text("\n".join(rows) + "\n")
    told = say("predict", str(framed), str(tmp_path / "new.csv"))
    assert told.code == 0 and told.out == found.table().replace("\r\n", "\n")
    assert say("export", str(framed), "--format", "torch-export", "--out", str(tmp_path / "models")).code == 0
    assert "client is chosen" not in say("predict", str(framed), str(tmp_path / "new.csv"), "--client", "b").err
    assert say("personalize", str(framed)).code == 2  # which trains, and so needs the examples
    with pytest.raises(pc.UsageError, match="got list"):
        done.predict([1, 2])


def test_a_client_whose_model_depends_on_its_examples_is_refused_without_them(tmp_path: Path) -> None:
    pool = pc.from_frame(visits(), client="site", target="sick", types="dose=number")
    how: dict[str, Any] = {"standardise": "train", "model": "mlp", "rounds": 1, "fine_tune": 0, "set": {"k": 2}}
    pc.run("ifca", pool, out=tmp_path / "r", **how)
    done = pc.open(tmp_path / "r", examples=False)
    assert done.predict(NEW, center=1).outputs.shape == (4, 2)
    with pytest.raises(pc.UsageError, match="chosen by its examples, which the run's folder does not hold"):
        done.predict(NEW, client="a")


def test_what_training_did_not_know_is_said(framed: Path, tmp_path: Path, say: Any) -> None:
    kind = "column 'kind' holds a value that was not there in training in 3 of 4 rows ('violet', nothing, 'blue')"
    found = pc.open(framed, examples=False).predict(NEW)
    assert len(found.said) == 2 and kind in found.said[0]
    assert "column 'dose' holds a text that is no number in 1 of 4 rows ('<0.5'): it counts as missing" in found.said[1]
    (tmp_path / "new.csv").write_text("age,kind,dose,site,sick\n1,red,3,a,no\n1,x,3,a,yes\n1,x,3,c,yes\n")
    new = "column 'kind' holds a value that was not there in training in 1 of 3 rows ('red')"
    assert new in say("predict", str(framed), str(tmp_path / "new.csv")).err
    for command in (["predict"], ["assign"], ["evaluate", "--data"]):
        told = json.loads(say(command[0], str(framed), *command[1:], str(tmp_path / "new.csv"), "--json").out)
        assert new in str(told["note" if command[0] == "assign" else "said"])


def test_rows_without_an_outcome_are_predicted_and_the_others_scored(framed: Path, tmp_path: Path, say: Any) -> None:
    done = pc.open(framed, examples=False)
    rows = [f"{20 + 3 * i},x,{i}," for i in range(4)]
    outcomes = ["yes", "", "no", "NA"]
    for name, kept in (("all.csv", range(4)), ("some.csv", (0, 2))):
        text = "\n".join(["age,kind,dose,sick", *(rows[i] + outcomes[i] for i in kept)])
        (tmp_path / name).write_text(text + "\n")
    whole, some = (done.predict(tmp_path / name) for name in ("all.csv", "some.csv"))
    assert whole.summary() == pytest.approx(some.summary()) and len(whole.outputs) == 4
    told_rows = told(whole.table())
    assert [row["true"] for row in told_rows] == ["yes", "", "no", ""]
    assert all((row["loss"] == "") == (row["true"] == "") == (row["right"] == "") for row in told_rows)
    assert "2 of 4 rows say nothing of what is right: they are not scored" in whole.said and not some.said
    found = json.loads(say("predict", str(framed), str(tmp_path / "all.csv"), "--json").out)
    assert (found["examples"], found["scored"]) == (4, 2) and found["predictions"][1]["true"] is None
    (tmp_path / "none.csv").write_text("age,kind,dose,sick\n20,x,1,\n30,x,2,\n")
    assert done.predict(tmp_path / "none.csv").targets is None
    found = json.loads(say("predict", str(framed), str(tmp_path / "none.csv"), "--json").out)
    assert (found["scored"], found["scores"]) == (0, {})


def test_classes_of_a_file_without_names_are_told_by_their_labels(three: Run, tmp_path: Path) -> None:
    x = np.zeros((2, 3), np.float32)
    np.savez(tmp_path / "two.npz", x=x, y=np.array([0, 2]))  # by number: the run's have names
    assert [row["true"] for row in three.predict(tmp_path / "two.npz", client="a").rows()] == ["low", "high"]
    done = ran(torch.arange(60) % 2, ("1", "8"))
    for y, right in (([8, 1], ["8", "1"]), ([8, 8], ["8", "8"])):
        np.savez(tmp_path / "new.npz", x=x, y=np.array(y))
        assert [row["true"] for row in done.predict(tmp_path / "new.npz", client="a").rows()] == right
    np.savez(tmp_path / "new.npz", x=x, y=np.array([0, 1]))
    with pytest.raises(pc.UsageError, match="a class '0', which is none of the run's: 1, 8"):
        done.predict(tmp_path / "new.npz", client="a")
