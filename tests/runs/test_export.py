"""An exported model is the run's: the lines that are printed load it, and give the outputs of the run's own."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import polycentric as pc
from polycentric.data import Federation
from polycentric.data.scaling import standardised
from polycentric.runs import export as module
from polycentric.runs.loop import Run
from support import Make, small


def pictures(blobs: Make) -> Federation:
    """Bytes (1, 4, 4), three classes."""
    federation = blobs(shape=(1, 4, 4))

    def as_bytes(x: Tensor) -> Tensor:
        return (40 * x + 120).clamp(0, 255).to(torch.uint8)

    parts = {name: getattr(federation, name) for name in ("train", "valid", "test")}
    return replace(federation, **{name: replace(split, x=as_bytes(split.x)) for name, split in parts.items()})


def in_units(made: Make) -> Federation:
    """A regression on features in different units, standardised."""
    source = torch.Generator().manual_seed(0)
    scale, middle = torch.tensor([1.0, 1000.0, 0.01]), torch.tensor([0.0, 5000.0, 1.0])

    def part(n: int) -> tuple[Tensor, Tensor]:
        x = torch.randn(n, 3, generator=source)
        return middle + scale * x, x @ torch.tensor([1.0, -2.0, 3.0])

    return standardised(made([part(n) for n in (9, 12, 7)], [part(4) for _ in range(3)]))


def raw_examples(done: Run, n: int = 5) -> Tensor:
    """Examples of client 1 before anything was done to them."""
    x, scaling = done.federation.test.of(1).x[:n], done.federation.scaling
    return x if scaling is None else (x.double() * scaling.spread + scaling.mean).float()


def own_outputs(done: Run, n: int = 5, **whose: Any) -> Tensor:
    task = done.clients.task
    with torch.no_grad():
        found: Tensor = done.model_of(**whose)(task.inputs(done.federation.test.of(1).x[:n]))
    return found


def executed(lines: str, x: Tensor, **names: Any) -> Tensor:
    """What the printed lines make of some examples."""
    space: dict[str, Any] = {"x": x, **names}
    exec(lines, space)
    return torch.as_tensor(space["outputs"]).detach()


RUNS: dict[str, tuple[Callable[..., pc.Method], dict[str, Any]]] = {
    "fedavg": (pc.fedavg, {"center": 0}),
    "private": (lambda: pc.fedavg(cut=pc.KeepPrivate("head*")), {"client": "client 1"}),
    "fesem": (lambda: pc.fesem(k=2), {"client": 1}),
    "dpsgd": (pc.dpsgd, {"client": 1}),
    "mtl": (pc.mtl, {"client": 1}),
}


@pytest.mark.parametrize("name", RUNS)
def test_parameters_have_the_names_of_their_layers_and_load(name: str, tmp_path: Path, blobs: Make) -> None:
    method, whose = RUNS[name]
    done = pc.run(method(), pictures(blobs), model="mlp", rounds=2, fine_tune=0, seed=3)
    (one,) = done.export(**whose, out=tmp_path)
    right = done.model_of(**whose).state_dict()
    found = load_file(one.path)
    assert found.keys() == right.keys() and all(torch.equal(found[key], right[key]) for key in right)
    assert one.checked > 0 and one.off < 1e-5
    assert torch.allclose(executed(one.lines, raw_examples(done)), own_outputs(done, **whose), atol=1e-6)
    about = json.loads(one.about.read_text())
    assert about["load"] == one.lines.splitlines() and about["classes"] == ["0", "1", "2"]
    assert about["data"]["fingerprint"] == done.federation.fingerprint
    assert about.get("client", f"center {about.get('center')}") == ("client 1" if "client" in whose else "center 0")


@pytest.mark.parametrize("format", ["safetensors", "torch-export"])
def test_a_regression_is_standardised_as_in_the_run(format: Any, tmp_path: Path, made: Make) -> None:
    done = pc.run(pc.fedavg(lr=0.05), in_units(made), model=small, rounds=3, fine_tune=0)
    (one,) = done.export(out=tmp_path, format=format)
    x = raw_examples(done)
    for n in (1, 4):
        assert torch.allclose(executed(one.lines, x[:n], small=small), own_outputs(done, n), atol=1e-4)
    about = json.loads(one.about.read_text())
    assert done.federation.scaling is not None and about["scaling"]["mean"] == done.federation.scaling.mean.tolist()
    assert "standardised" in about["inside" if format == "torch-export" else "before"]


def test_an_archive_takes_bytes_in_any_number_and_holds_no_pickle(tmp_path: Path, blobs: Make) -> None:
    done = pc.run(pc.fedavg(), pictures(blobs), model="mlp", rounds=1, fine_tune=0)
    (one,) = done.export(out=tmp_path, format="torch-export")
    for n in (1, 5):
        assert torch.allclose(executed(one.lines, raw_examples(done, n)), own_outputs(done, n), atol=1e-6)
    with zipfile.ZipFile(one.path) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    assert not [name for name, text in files.items() if text.startswith((b"\x80", b"PK"))]  # a pickle, or torch.save's
    assert not [name for name, text in files.items() if b'"use_pickle": true' in text]


@pytest.mark.parametrize("federation", ["pictures", "in units"])
def test_onnx_gives_the_same_outputs(federation: str, tmp_path: Path, blobs: Make, made: Make) -> None:
    for package in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(package)
    data = pictures(blobs) if federation == "pictures" else in_units(made)
    done = pc.run(pc.fedavg(lr=0.05), data, model="mlp", rounds=1, fine_tune=0)
    (one,) = done.export(out=tmp_path, format="onnx")
    assert one.checked
    for n in (1, 4):
        found = executed(one.lines, raw_examples(done, n).numpy())
        assert torch.allclose(found, own_outputs(done, n), atol=1e-4)


def test_without_onnx_it_is_said_what_to_install(tmp_path: Path, blobs: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    done = pc.run(pc.fedavg(), blobs(), model=small, rounds=0)
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    with pytest.raises(pc.UsageError, match=r"needs onnx and onnxscript: pip install 'polycentric\[onnx\]'"):
        done.export(out=tmp_path, format="onnx")
    assert not list(tmp_path.iterdir())


def test_all_are_centers_where_models_are_shared_and_clients_where_not(tmp_path: Path, blobs: Make) -> None:
    shared = pc.run(pc.fesem(k=2), blobs(), model=small, rounds=2, fine_tune=0)
    assert [one.path.name for one in shared.export(all=True, out=tmp_path)] == [
        "center-0.safetensors",
        "center-1.safetensors",
    ]
    odd = replace(blobs(), clients=("../a", "a", "a", "b/c", ""))
    alone = pc.run(pc.nofed(), odd, model=small, rounds=1, fine_tune=0)
    written = alone.export(all=True, out=tmp_path / "own")
    assert len({one.path for one in written}) == 5 and all(one.path.parent == tmp_path / "own" for one in written)
    with pytest.raises(pc.UsageError, match="there are 2 centers, so say whose model is wanted"):
        shared.export(out=tmp_path)
    with pytest.raises(pc.UsageError, match=r"of their own, so say whose model is wanted: client='\.\./a'"):
        alone.export(out=tmp_path)


def test_files_that_are_there_stay_as_they_are(tmp_path: Path, blobs: Make) -> None:
    done = pc.run(pc.fesem(k=2), blobs(), model=small, rounds=2, fine_tune=0)
    (tmp_path / "center-1.safetensors").write_text("mine")
    with pytest.raises(pc.UsageError, match=r"center-1.safetensors is there already.*force=True"):
        done.export(all=True, out=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["center-1.safetensors"]
    assert (tmp_path / "center-1.safetensors").read_text() == "mine"
    assert len(done.export(all=True, out=tmp_path, force=True)) == 2
    with pytest.raises(pc.UsageError, match="no folder of its own"):
        done.export(center=0)
    with pytest.raises(pc.UsageError, match="unknown format 'onxx': did you mean 'onnx'"):
        done.export(center=0, out=tmp_path, format="onxx")


def test_what_predicts_something_else_is_not_written(
    tmp_path: Path, blobs: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = pc.run(pc.fedavg(), blobs(), model=small, rounds=1, fine_tune=0)
    right = module.WRITERS["safetensors"]

    def off(run: Run, net: nn.Module, x: tuple[Tensor, ...], path: Path) -> Any:
        for parameter in net.parameters():
            parameter.data += 1
        return right(run, net, x, path)

    monkeypatch.setitem(module.WRITERS, "safetensors", off)
    with pytest.raises(pc.UsageError, match="does not predict what center 0 does in the run: outputs are off by"):
        done.export(out=tmp_path)
    assert not list(tmp_path.iterdir())


class Undecided(nn.Module):
    """Goes by its numbers, which no trace can follow."""

    def __init__(self, shape: tuple[int, ...], n_outputs: int) -> None:
        super().__init__()
        self.head = nn.Linear(shape[0], n_outputs)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(x)
        return out if bool(out.sum() > 0) else -out


def test_a_model_that_cannot_be_traced_is_refused_and_its_parameters_are_not(tmp_path: Path, blobs: Make) -> None:
    done = pc.run(pc.fedavg(), blobs(), model=Undecided, rounds=1, fine_tune=0, executor="looped", dtype="float64")
    with pytest.raises(pc.UsageError, match=r"Undecided cannot be written as torch-export.*use --format safetensors"):
        done.export(out=tmp_path, format="torch-export")
    assert not list(tmp_path.iterdir())
    (one,) = done.export(out=tmp_path)
    found = executed(one.lines, raw_examples(done), Undecided=Undecided)
    assert found.dtype == torch.float64 and torch.allclose(found, own_outputs(done))


class TwoInputs(nn.Module):
    """Two inputs, two heads."""

    def __init__(self, shapes: dict[str, tuple[int, ...]], n_outputs: int) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(2, 1), nn.Linear(4, n_outputs - 1)

    def forward(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        return self.a(a), self.b(b.flatten(1))


@pytest.mark.parametrize("format", ["safetensors", "torch-export"])
def test_several_inputs_and_heads(format: Any, tmp_path: Path, blobs: Make) -> None:
    federation = replace(blobs(dtype=torch.float32), inputs=(("a", (2,)), ("b", (2, 2))))
    done = pc.run(pc.fedavg(), federation, model=TwoInputs, rounds=1, fine_tune=0, executor="looped")
    (one,) = done.export(out=tmp_path, format=format)
    x = raw_examples(done)
    a, b = done.model_of()(x[:, :2], x[:, 2:].reshape(-1, 2, 2))
    found = executed(one.lines, x, TwoInputs=TwoInputs, a=x[:, :2], b=x[:, 2:].reshape(-1, 2, 2))
    assert torch.allclose(found, torch.cat([a, b], 1), atol=1e-6)
    assert np.isfinite(one.off)


class Scan(nn.Module):
    """A picture and a number."""

    def __init__(self, shapes: dict[str, tuple[int, ...]], n_outputs: int) -> None:
        super().__init__()
        self.picture, self.number = nn.Linear(12, n_outputs), nn.Linear(1, n_outputs)

    def forward(self, image: Tensor, age: Tensor) -> Tensor:
        out: Tensor = self.picture(image.flatten(1)) + self.number(age)
        return out


@pytest.mark.parametrize("model", [Scan, "logistic"])
@pytest.mark.parametrize("format", ["safetensors", "torch-export", "onnx"])
def test_several_inputs_go_in_as_they_are(format: Any, model: Any, tmp_path: Path) -> None:
    """Bytes and numbers, standardised in the run: what was given to `from_arrays` is given to the file."""
    for package in ("onnx", "onnxscript", "onnxruntime") if format == "onnx" else ():
        pytest.importorskip(package)
    source = np.random.default_rng(0)
    both = {"image": source.integers(0, 256, (40, 3, 4), dtype=np.uint8), "class": source.normal(50, 9, 40)}
    pool = pc.from_arrays(both, source.integers(0, 2, 40), client=np.arange(40) % 4)
    done = pc.run(
        "fedavg", pc.load(pool, standardise="train"), model=model, rounds=1, fine_tune=0, out=tmp_path / "run"
    )
    (one,) = done.export(out=tmp_path, format=format)
    image, age = torch.from_numpy(both["image"])[:, None], torch.from_numpy(both["class"]).float()[:, None]
    image, age = (image.numpy(), age.numpy()) if format == "onnx" else (image, age)  # type: ignore[assignment]
    found = executed(one.lines, torch.zeros(0), image=image, input_1=age, Scan=Scan)  # class is a word of Python's
    assert torch.allclose(found.double(), done.predict(both).outputs, atol=1e-5)
    about = json.loads(one.about.read_text())
    assert about["inputs"] == [["image", [1, 3, 4], "uint8"], ["class", [1], "float32"]]
    steps = about["before" if format == "safetensors" else "inside"]
    assert "bytes of image are divided by 255; then the inputs are laid end to end in one row; then every" in steps
    assert "among them every pixel of 'image'" in done.federation.note
    np.savez(tmp_path / "new.npz", **both)
    assert torch.equal(done.predict(tmp_path / "new.npz").outputs, done.predict(both).outputs)
    for wrong, said in (
        ({"image": both["image"]}, "input class is missing; the run's are image, class"),
        (
            both | {"image": both["image"] / 255},
            r"'image' is float32 of \(3, 4\), and the run's was uint8 of \(1, 3, 4\)",
        ),
    ):
        with pytest.raises(pc.UsageError, match=said):
            done.predict(wrong)
    if model == "logistic":  # the command has no class of ours, and needs none of the data
        again = pc.open(tmp_path / "run", examples=False)
        assert again.federation.absent and torch.equal(again.predict(both).outputs, done.predict(both).outputs)
        (other,) = again.export(out=tmp_path / "again", format=format)
        assert other.checked == 64
        found = executed(other.lines, torch.zeros(0), image=image, input_1=age)
        assert torch.allclose(found.double(), done.predict(both).outputs, atol=1e-5)


@pytest.mark.parametrize("format", ["safetensors", "torch-export", "onnx"])
def test_the_lines_begin_with_a_table(format: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("onnx", "onnxscript", "onnxruntime") if format == "onnx" else ():
        pytest.importorskip(package)
    lines = [f"{'ab'[i % 2]},{20 + 7 * i % 40},{'xyz'[i % 3]},{'yes' if i % 5 else 'no'}" for i in range(60)]
    (tmp_path / "old.csv").write_text("site,age,kind,sick\n" + "\n".join(lines) + "\n")
    pool = pc.data.table(tmp_path / "old.csv", client="site", target="sick")  # type: ignore[attr-defined]
    done = pc.run("fedavg", pc.load(pool, standardise="train"), model="mlp", rounds=1, fine_tune=0)
    (tmp_path / "new.csv").write_text("kind,age\nz,33\nx,50\n")
    monkeypatch.chdir(tmp_path)
    (one,) = done.export(out="models", format=format)
    space: dict[str, Any] = {}
    exec(one.lines, space)
    assert torch.allclose(torch.as_tensor(space["outputs"]).double(), done.predict("new.csv").outputs, atol=1e-5)
    assert "rows of a table become numbers by the recipe" in json.loads(one.about.read_text())["before"]
