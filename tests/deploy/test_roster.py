"""What nodes tell of themselves makes one federation, or is refused with who differs in what."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from polycentric import from_arrays, load
from polycentric.deploy.arithmetic import fixed_training
from polycentric.deploy.joining import one_of, own_data
from polycentric.deploy.letters import packed
from polycentric.deploy.participant import Participant
from polycentric.deploy.roster import Hello, Present, Sizes, distances, federation_of, presented
from polycentric.deploy.terms import deployable, seated
from polycentric.errors import UsageError
from polycentric.runs.settings import Settings
from polycentric.runs.start import Given, prepared
from support import Largest


def node(labels: list[str], columns: int = 3, n: int = 20) -> Any:
    """A client with examples of these classes."""
    x = torch.arange(n * columns).reshape(n, columns).float().numpy()
    y = [labels[k % len(labels)] for k in range(n)]
    return load(from_arrays(x, y), "iid", clients=1)


def told(*data: Any) -> dict[str, Present | None]:
    clients = [Participant(each, name=f"ward-{k}") for k, each in enumerate(data)]
    return {client.name: presented(client.answer([packed(Hello(), {})])[0]) for client in clients}


def test_classes_are_those_of_all_nodes_and_labels_follow() -> None:
    data = node(["ill", "well"]), node(["well", "dead"])
    federation = federation_of(told(*data))
    assert federation.classes == ("dead", "ill", "well") and federation.absent
    assert federation.train.sizes.tolist() == [len(each.train) for each in data]
    for k, own in enumerate(data):
        there = seated(own, k, 2, list(federation.classes))
        names = [federation.classes[c] for c in there.train.y.tolist()]
        assert names == [own.classes[c] for c in own.train.y.tolist()]
        assert there.train.sizes.tolist() == [len(own.train) * (j == k) for j in range(2)]


def test_classes_that_are_numbers_are_in_their_order() -> None:
    federation = federation_of(told(node(["2", "10"]), node(["10", "1"])))
    assert federation.classes == ("1", "2", "10")


def test_nodes_that_do_not_fit_are_named() -> None:
    with pytest.raises(UsageError, match=r"ward-0 has examples of type and shape .* ward-1"):
        federation_of(told(node(["a", "b"]), node(["a", "b"], columns=4)))
    numbers = load(from_arrays(torch.randn(20, 3).numpy(), torch.randn(20).numpy()), "iid", clients=1)
    with pytest.raises(UsageError, match="ward-0 has targets"):
        federation_of(told(node(["a", "b"]), numbers))
    with pytest.raises(UsageError, match="no node is there"):
        federation_of({"ward-0": None})


def test_examples_that_are_elsewhere_take_no_room_here() -> None:
    """Millions of pictures at the nodes are zeros at the center, and are neither made nor looked through."""
    nodes = {name: present for name, present in told(node(["a", "b"]), node(["a", "b"])).items() if present is not None}
    many = Sizes(train=10**9, valid=10**7, test=10**8)
    lots: dict[str, Present | None] = {
        name: replace(present, facts=present.facts.model_copy(update={"sizes": many, "x": ["float32", [3, 224, 224]]}))
        for name, present in nodes.items()
    }
    with Largest() as made:
        federation = federation_of(lots)
        asked = Settings.of({"method": "fedavg", "rounds": 1, "model": "logistic", "device": "cpu"})
        prepared(deployable(asked), Given(federation=federation, nodes=lambda run: None), needs=("federation", "nodes"))
    assert federation.train.sizes.tolist() == [10**9, 10**9]
    assert made.bytes < 1 << 24  # a model
    assert federation.train.to("meta").x.untyped_storage().nbytes() < 1 << 20


def test_who_has_not_come_has_no_examples_yet() -> None:
    federation = federation_of(told(node(["a", "b"])) | {"ward-9": None})
    assert federation.clients == ("ward-0", "ward-9") and federation.train.sizes.tolist()[1] == 0


def test_a_fixed_training_is_fixed_and_tells_machines_apart() -> None:
    assert torch.equal(fixed_training(), fixed_training())
    assert 0 < float((fixed_training() - fixed_training() * (1 + 1e-7)).abs().max()) < 1e-6
    there = told(node(["a", "b"]))
    assert distances(there) == {"ward-0": 0.0}
    other = there["ward-0"]
    assert other is not None
    assert distances({"x": Present(other.facts, other.trained + 0.5)})["x"] == pytest.approx(0.5)


def test_own_data_is_all_of_a_file_or_one_client() -> None:
    whole = own_data("digits")
    assert whole.n_clients == 1 and len(whole.train) + len(whole.test) == 1797
    dealt = load("digits", "dirichlet=0.5", clients=3, seed=4)
    mine = own_data("digits", client="1", partition="dirichlet=0.5", clients=3, seed=4)
    assert torch.equal(mine.train.x, dealt.train.of(1).x) and torch.equal(mine.test.y, one_of(dealt, 1).test.y)
    for how, said in (
        ({"client": "7", "partition": "iid", "clients": 3}, "clients 0 to 2"),
        ({"client": "x", "partition": "iid", "clients": 3}, "client"),
        ({"clients": 3}, "--client 0"),
    ):
        with pytest.raises(UsageError, match=said):
            own_data("digits", **how)  # type: ignore[arg-type]


def test_a_table_is_joined_with_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "patients.csv"
    path.write_text(
        "age,weight,died\n" + "\n".join(f"{20 + k},{60 + k % 7},{'yes' if k % 3 else 'no'}" for k in range(20))
    )
    own = own_data(str(path), target="died", types="age=number")
    assert own.n_clients == 1 and len(own.train) + len(own.test) == 20 and own.classes == ("no", "yes")
    with pytest.raises(UsageError, match="say which column is to be predicted, such as --target died"):
        own_data(str(path))
    with pytest.raises(UsageError, match="are for tables, and digits is none"):
        own_data("digits", target="died")
