"""What a client of a real federation answers, whatever happens to it and whatever it is asked."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from deploy.in_process import AtOnce, clients_of, deployed, trusting
from deploy.test_center import simulated
from polycentric.deploy import node as at_node
from polycentric.deploy.letters import Reply
from polycentric.runs.loop import Run
from support import Make


def code(reply: bytes) -> str:
    return Reply.told(reply).code


def scene(blobs: Make, folder: Path | None, name: str = "lg-fedavg", **how: Any) -> tuple[Run, dict[int, Any]]:
    """A center and its clients, before the first letter."""
    made = simulated(name, blobs, **how)
    clients = clients_of(made.federation, folder, limits=trusting)
    return deployed(made, clients, lambda terms: AtOnce(clients, terms)), clients


def letter_of(center: Run, round: int = 0, client: int = 0, asks: Any = "learn", tune: int = 0) -> list[bytes]:
    """A parcel of one letter."""
    remote, exchange = center.remote, center.method.at(round)[0]
    block = remote.everyone(round)[client : client + 1]
    return [remote.post.terms(client), remote._letter(exchange, center.state, block, asks, tune)]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("where", ["save_file", "renamed"])
def test_what_failed_is_tried_again(
    number: int, where: str, blobs: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that is full for a while costs a reply, and not all of them: the same letter may come again."""
    center, clients = scene(blobs, tmp_path)
    parcel = letter_of(center)

    def full(*_: Any, **__: Any) -> None:
        raise OSError(number, "no space, or none that can be written")

    with monkeypatch.context() as patch:
        patch.setattr(at_node, where, full)
        assert [code(reply) for reply in clients[0].answer(parcel)] == ["failed"]
    (reply,) = clients[0].answer(parcel)
    assert code(reply) == "ok"
    assert scene(blobs, None)[1][0].answer(parcel) == [reply]  # as if nothing had happened
