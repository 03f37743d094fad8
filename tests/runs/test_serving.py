"""Which model serves whom: by name and by number, whole models and personal parts, and who was never trained."""

from __future__ import annotations

import warnings
from dataclasses import replace

import pytest
import torch

import polycentric as pc
from polycentric.runs.serving import Holder, client_number, personal, untrained
from support import Make, small

METHODS = {
    "fedavg": (pc.fedavg(), ()),
    "private": (pc.fedavg(cut=pc.KeepPrivate("head*")), ("private",)),
    "fesem": (pc.fesem(k=2), ()),
    "ifca": (pc.ifca(k=2), ()),
    "nofed": (pc.nofed(), ("model",)),
    "dpsgd": (pc.dpsgd(), ("model",)),
    "dpa_sgd": (pc.dpa_sgd(), ("model", "task")),
    "mtl": (pc.mtl(), ("task",)),
    "fedmes": (pc.fedmes(cells=pc.RingCells(2)), ()),
}


@pytest.mark.parametrize("name", METHODS)
def test_what_every_client_has_of_its_own(name: str, blobs: Make) -> None:
    method, own = METHODS[name]
    assert personal(pc.run(method, blobs(), model=small, rounds=2, fine_tune=0)) == own


def test_rows_that_models_are_sums_of_are_no_models(blobs: Make) -> None:
    done = pc.run(pc.mocha(), blobs(classes=2), model="logistic", rounds=2, fine_tune=0)
    assert personal(done) == ("model",)
    with pytest.raises(pc.UsageError, match="the centers of mocha hold no models"):
        done.model_of(center=0)


def test_a_client_is_found_by_name_or_number(blobs: Make) -> None:
    federation = replace(blobs(), clients=("ward 1", "ward 2", "1", "twin", "twin"))
    done = pc.run(pc.nofed(), federation, model=small, rounds=1, fine_tune=0)

    def row(who: int | str) -> torch.Tensor:
        return torch.nn.utils.parameters_to_vector(done.model_of(client=who).parameters())

    assert torch.equal(row("ward 2"), row(1)) and not torch.equal(row("ward 2"), row(0))
    assert client_number(done, "1") == 2 and client_number(done, "0") == 0  # a name goes before a number
    for who, said in (
        ("wrd 2", "no client is called 'wrd 2': did you mean 'ward 2'"),
        ("?", "called ward 1, ward 2"),
        ("twin", "2 clients are called 'twin'"),
        (5, "there is no client 5: there are 5, 0 to 4"),
        (-1, "there is no client -1"),
    ):
        with pytest.raises(pc.UsageError, match=said):
            done.model_of(client=who)
    with pytest.raises(pc.UsageError, match="there is no center 7"):
        done.model_of(center=7)
    with pytest.raises(pc.UsageError, match="say one of the two"):
        done.model_of(client=0, center=0)


@pytest.mark.parametrize("method", [pc.nofed(), pc.dpsgd(), pc.fedavg(cut=pc.KeepPrivate("head*"))])
def test_who_never_trained_has_an_untrained_model_and_that_is_said(method: pc.Method, blobs: Make) -> None:
    with pytest.warns(UserWarning, match=r"those held out have untrained ones: their scores in use say nothing"):
        done = pc.run(method, blobs(), model=small, rounds=2, held_out=0.4, fine_tune=0)
    assert torch.equal(untrained(done), done.clients.held_out_mask)
    new, old = (int(mask.nonzero()[0]) for mask in (done.clients.held_out_mask, ~done.clients.held_out_mask))
    with pytest.warns(UserWarning, match=f"'client {new}' never took part.*as it was before training"):
        head = done.model_of(client=new).state_dict()["head.weight"]
    assert torch.equal(head, done.clients.task.module.state_dict()["head.weight"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not torch.equal(done.model_of(client=old).state_dict()["head.weight"], head)


def test_who_shares_a_whole_model_is_served_by_it_untrained_or_not(blobs: Make) -> None:
    done = pc.run(pc.fedavg(), blobs(), model=small, rounds=2, held_out=0.4, fine_tune=0)
    assert not bool(untrained(done).any())
    new = int(done.clients.held_out_mask.nonzero()[0])
    assert torch.equal(done.model_of(client=new).head.weight, done.model_of(center=0).head.weight)  # type: ignore[union-attr]


def test_files_of_two_clients_never_have_one_name() -> None:
    names = ["../../etc", "a/b", "a b", "a_b", "", "3", "é", "x" * 300]
    found = [Holder({}, client=k, name=name).file_name for k, name in enumerate(names)]
    assert len(set(found)) == len(names) and all("/" not in f and "." not in f and len(f) < 100 for f in found)
