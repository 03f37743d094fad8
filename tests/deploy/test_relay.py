"""Neighbours mix by themselves what the server forwards and cannot read: the bits are those of the simulation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from deploy.test_serve import HOW, Hand, Kill, Killed, federation, hand, settings
from polycentric import open as open_run, run as simulate
from polycentric.deploy.keys import make_node
from polycentric.deploy.letters import Spoiled
from polycentric.deploy.relay import Relay
from polycentric.deploy.seal import Bound, Seal
from polycentric.deploy.serve import Waiting, serve
from polycentric.errors import UsageError

NAMES = [f"ward-{k}" for k in range(4)]
SEALED = Waiting(4, sealed=True)


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Keys of four nodes, and a folder with all public ones."""
    folder = tmp_path_factory.mktemp("keys")
    (folder / "public").mkdir()
    for name in NAMES:
        make_node(folder / name, name)
        (folder / "public" / f"{name}.pub").write_bytes((folder / name / f"{name}.pub").read_bytes())
    return folder


def seal_of(keys: Path, name: str) -> Seal:
    return Seal.of(keys / name / f"{name}.key", keys / "public")


def sealing(folder: Path, keys: Path) -> Hand:
    carrier = hand(folder)
    for name, client in carrier.clients.items():
        client.seal = seal_of(keys, name)
    return carrier


@pytest.mark.parametrize("method", ["dpsgd", "matcha", "dpsgd, momentum", "nofed"])
def test_nodes_end_with_the_models_of_the_simulation_and_the_server_with_none(
    method: str, tmp_path: Path, keys: Path
) -> None:
    """Also after the server was killed; whatever it stored, no model is in it."""
    name, _, more = method.partition(", ")
    words: dict[str, Any] = {"lr": 0.1, "steps": 3} | ({"momentum": 0.5} if more else {})
    how = HOW | {"set": words}
    plain = simulate(name, federation(), executor="looped", block=1, **how)
    asked, out = settings(name, set=words), tmp_path / "served"
    with pytest.raises(Killed):
        serve(asked, sealing(tmp_path / "n", keys), out, SEALED, callbacks=[Kill(2)])
    (out / "lock").unlink(missing_ok=True)
    ended = serve(asked, sealing(tmp_path / "n", keys), out, SEALED)
    task = plain.clients.task
    for k in range(4):
        left = load_file(tmp_path / "n" / str(k) / "served" / "model.safetensors")
        right = plain.model_of(client=k).state_dict()
        assert left.keys() == right.keys() and all(torch.equal(left[layer], right[layer]) for layer in left)
    assert [row["micro_accuracy"] for row in ended.history] == [row["micro_accuracy"] for row in plain.history]
    assert "consensus" not in ended.history[-1] and "consensus" in plain.history[-1]
    assert task.width > 1000 and not bool(ended.state.centers["model"].any())
    with pytest.raises(UsageError, match="theirs alone"):
        open_run(out, examples=False).model_of(client=1)


def test_a_method_that_somebody_must_see_all_of_is_refused(tmp_path: Path, keys: Path) -> None:
    for name in ("fedavg", "dpa-sgd"):
        with pytest.raises(UsageError, match=r"--sealed is for methods whose clients mix"):
            serve(settings(name), sealing(tmp_path / "n", keys), tmp_path / name, SEALED)


def test_a_node_without_its_neighbours_keys_refuses(tmp_path: Path, keys: Path) -> None:
    carrier, said = sealing(tmp_path / "n", keys), list[str]()
    for name in ("ward-0", "ward-2"):
        carrier.clients[name].log = said.append
    carrier.clients["ward-0"].seal = None
    own = carrier.clients["ward-2"].seal
    assert own is not None
    carrier.clients["ward-2"].seal = Seal(own.own, {"ward-0": own.neighbours["ward-0"]})  # not of 1 and 3, its own
    ended = serve(settings("dpsgd", set={"lr": 0.1}, rounds=1), carrier, tmp_path / "served", SEALED)
    assert ended.tally.took is not None and ended.tally.took.tolist() == [0, 1, 0, 1]
    assert any("--neighbours" in line for line in said) and any("not among the neighbours'" in line for line in said)


def test_a_sealed_letter_opens_only_where_it_belongs(keys: Path) -> None:
    zero, one, two = (seal_of(keys, name) for name in NAMES[:3])
    rows, bound = {"model": torch.arange(6.0)[None]}, Bound("a run", 3, 0, "ward-0")
    sent = zero.close(rows, {1: "ward-1"}, bound)
    parts = sent["sealed"], sent["signature"], sent["key/1"]
    assert torch.equal(one.open(*parts, "ward-1", bound)["model"], rows["model"])
    assert rows["model"].numpy().tobytes() not in b"".join(part.numpy().tobytes() for part in sent.values())
    for other in (Bound("a run", 4, 0, "ward-0"), Bound("b run", 3, 0, "ward-0"), Bound("a run", 3, 0, "ward-2")):
        with pytest.raises(Spoiled):
            one.open(*parts, "ward-1", other)
    with pytest.raises(Spoiled):
        two.open(*parts, "ward-2", bound)  # not for it
    for k in range(3):  # a bit of the cipher, the signature, the key
        broken = [part.clone() for part in parts]
        broken[k][0, -1] ^= 1
        with pytest.raises(Spoiled):
            one.open(*broken, "ward-1", bound)
    forged = two.close(rows, {1: "ward-1"}, bound)  # somebody else's key under ward-0's name
    with pytest.raises(Spoiled):
        one.open(forged["sealed"], forged["signature"], forged["key/1"], "ward-1", bound)


def test_the_server_keeps_what_somebody_goes_on_from_and_little_more(tmp_path: Path, keys: Path) -> None:
    ended = serve(settings("dpsgd", set={"lr": 0.1}, rounds=9), sealing(tmp_path / "n", keys), tmp_path / "s", SEALED)
    assert isinstance(ended.remote, Relay)
    assert len(list((tmp_path / "s" / "relay").glob("*.json"))) <= 5
    assert ended.remote.store is not None and len(ended.remote.store._held) <= 5
