"""A checkpoint says which layer is where, so that a stranger needs neither the data nor the model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import polycentric as pc
from support import Make, small


def test_layers_of_centers_are_those_of_their_models(tmp_path: Path, blobs: Make) -> None:
    done = pc.run(pc.fesem(k=2), blobs(), model=small, rounds=2, fine_tune=0, out=tmp_path / "run")
    found = pc.layers(tmp_path / "run")
    assert set(found) == {"centers"}
    for center in range(2):
        for name, layer in done.model_of(center=center).state_dict().items():
            assert torch.equal(found["centers"][name][center], layer)


@pytest.mark.parametrize("state", ["memory", "disk"])
def test_what_clients_keep_has_names_too(tmp_path: Path, blobs: Make, state: str) -> None:
    method = pc.fedavg(cut=pc.KeepPrivate("head*"))
    done = pc.run(method, blobs(), model=small, rounds=2, fine_tune=0, out=tmp_path / "run", state=state)
    found = pc.layers(tmp_path / "run")
    assert set(found["kept"]) == {"head.weight", "head.bias"}
    whole = done.model_of(client=4).state_dict()
    assert torch.equal(found["kept"]["head.weight"][4], whole["head.weight"])
    assert all(torch.equal(layer[0], whole[name]) for name, layer in found["centers"].items())


def test_the_best_state_is_the_one_in_use(tmp_path: Path, blobs: Make) -> None:
    how = {"rounds": 4, "patience": 1, "evaluate_every": 1, "fine_tune": 0, "model": small}
    done = pc.run(pc.fedavg(lr=1.0), blobs(valid=4), out=tmp_path / "run", **how)
    found = pc.layers(tmp_path / "run")["centers"]
    assert torch.equal(found["head.weight"][0], done.model_of().state_dict()["head.weight"])


def test_the_manifest_alone_is_enough_to_slice_a_row(tmp_path: Path, blobs: Make) -> None:
    done = pc.run(pc.fedavg(), blobs(), model=small, rounds=1, fine_tune=0, out=tmp_path / "run")
    (manifest,) = (tmp_path / "run" / "checkpoints").glob("*.json")
    rows = load_file(manifest.with_suffix(".safetensors"))
    for key, every in json.loads(manifest.read_text())["layout"].items():
        for layer in every:
            part = rows[key][0, layer["first"] : layer["last"]].reshape(layer["shape"])
            assert torch.equal(part, done.model_of().state_dict()[layer["name"]])


def test_a_checkpoint_that_does_not_say_is_read_all_the_same(tmp_path: Path, blobs: Make) -> None:
    from polycentric.runs.forms import check_of

    done = pc.run(pc.fedavg(), blobs(), model=small, rounds=1, fine_tune=0, out=tmp_path / "run")
    (manifest,) = (tmp_path / "run" / "checkpoints").glob("*.json")
    old = {k: v for k, v in json.loads(manifest.read_text()).items() if k not in ("layout", "check")}
    manifest.write_text(json.dumps(old | {"check": check_of(old)}))
    found = pc.open(tmp_path / "run", federation=done.federation, model=small)
    assert torch.equal(found.state.centers["model"], done.state.centers["model"])
    with pytest.raises(pc.UsageError, match="did not say which layer is where"):
        pc.layers(tmp_path / "run")
