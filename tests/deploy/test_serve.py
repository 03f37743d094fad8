"""A served run is the simulated run: begun, killed, gone on with, joined late; and the two can be verified."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from polycentric import load, open as open_run, run as simulate
from polycentric.cli.deploying import _served
from polycentric.deploy.joining import one_of
from polycentric.deploy.letters import Reply, packed
from polycentric.deploy.participant import Participant
from polycentric.deploy.serve import Waiting, serve
from polycentric.deploy.terms import Limits, Terms
from polycentric.errors import Unwritten, UsageError
from polycentric.runs.folder import Folder
from polycentric.runs.loop import Callback, Run
from polycentric.runs.record import read_record, verify
from polycentric.runs.settings import Settings

DATA = ("digits", "dirichlet=0.5")
HOW: dict[str, Any] = {"set": {"lr": 0.1, "epochs": 1}, "rounds": 4, "seed": 3}


@dataclass(frozen=True)
class Peer:
    id: str
    name: str
    online: bool = True


@dataclass(eq=False)
class Hand:
    """A carrier that hands parcels over in this process."""

    clients: dict[str, Participant]
    keys: bool = True
    online: set[str] = field(default_factory=set)
    replies: list[tuple[str, list[bytes]]] = field(default_factory=list)
    parcels: int = 0

    def __post_init__(self) -> None:
        self.online = self.online or set(self.clients)

    def peers(self) -> list[Peer]:
        return [Peer(f"id-{name}", name if self.keys else "") for name in self.clients if name in self.online]

    def send(self, parcels: Mapping[str, Sequence[bytes]], seconds: float) -> None:
        for id, parcel in parcels.items():
            name = id.removeprefix("id-")
            if name in self.online:
                self.parcels += 1
                self.replies.append((id, self.clients[name].answer(list(parcel))))

    def fetch(self) -> list[tuple[str, list[bytes]]]:
        found, self.replies = self.replies, []
        return found


def federation() -> Any:
    return load(DATA[0], DATA[1], clients=4, seed=3)


def hand(folder: Path, **how: Any) -> Hand:
    """Four nodes that keep things in folders of their own."""
    data = federation()
    return Hand({f"ward-{k}": Participant(one_of(data, k), folder / str(k), name=f"ward-{k}") for k in range(4)}, **how)


def settings(method: str, **how: Any) -> Settings:
    return Settings.of({"method": method, **HOW, **how})


def simulated(method: str, out: Path, **how: Any) -> Run:
    return simulate(method, federation(), executor="looped", block=1, record=True, out=out, **HOW, **how)


class Killed(BaseException):
    """Ends a process wherever it is."""


@dataclass
class Kill(Callback):
    after: int

    def on_round(self, run: Run, trips: Any) -> None:
        if run.state.round == self.after:
            raise Killed


@pytest.mark.parametrize("method", ["fedavg", "fesem", "lg-fedavg"])
def test_a_served_run_is_the_simulated_one_also_after_it_was_killed(method: str, tmp_path: Path) -> None:
    plain = simulated(method, tmp_path / "plain")
    carrier, out, how = hand(tmp_path / "nodes"), tmp_path / "served", Waiting(4)
    with pytest.raises(Killed):
        serve(settings(method), carrier, out, how, callbacks=[Kill(2)])
    (out / "lock").unlink(missing_ok=True)  # as the process that held it is gone
    ended = serve(settings(method), hand(tmp_path / "nodes"), out, how)
    for part in ("centers", "memory"):
        mine, theirs = getattr(ended.state, part), getattr(plain.state, part)
        assert mine.keys() == theirs.keys() and all(torch.equal(mine[name], theirs[name]) for name in mine)
    found = verify(out, tmp_path / "plain")
    assert found.difference is None and found.rounds == 4 and found.compared >= 4 * 5
    record = tmp_path / "plain" / "exchanges.jsonl"
    record.write_text("".join(record.read_text().splitlines(keepends=True)[:-1]))
    short = verify(out, tmp_path / "plain")
    assert short.difference is not None and short.difference.round == 3  # what is not there is not equal
    assert [row["micro_accuracy"] for row in ended.history] == [row["micro_accuracy"] for row in plain.history]
    assert ended.scores["personalised"].accuracy.tolist() == plain.scores["personalised"].accuracy.tolist()
    with pytest.raises(UsageError, match="is finished"):
        serve(settings(method), carrier, out, how)


def test_whose_versions_are_others_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    carrier, said = hand(tmp_path / "nodes"), list[str]()
    serve(settings("fedavg", rounds=1), carrier, tmp_path / "alike", Waiting(4), log=said.append)
    assert not any("install the same" in line for line in said)
    monkeypatch.setattr("polycentric.deploy.roster.__version__", "0.0.7")
    serve(settings("fedavg", rounds=1), hand(tmp_path / "nodes"), tmp_path / "run", Waiting(4), log=said.append)
    assert sum("has polycentric 0.0.7 and torch" in line for line in said) == 4


def test_scores_and_the_next_training_travel_together(tmp_path: Path) -> None:
    """A greeting, then a parcel for each round, one for the last scores and one for fine-tuned ones."""
    carrier = hand(tmp_path / "nodes")
    serve(settings("fedavg", evaluate_every=1), carrier, tmp_path / "served", Waiting(4))
    assert carrier.parcels == 4 * (1 + 4 + 1 + 1)


def test_a_finished_run_is_a_run_like_any_other(tmp_path: Path) -> None:
    serve(settings("fedavg"), hand(tmp_path / "nodes"), tmp_path / "served", Waiting(4))
    opened = open_run(tmp_path / "served", examples=False)
    answers = opened.predict(federation().test.x[:5].numpy())
    assert len(answers.answers if hasattr(answers, "answers") else answers.labels) == 5
    assert {"clients.csv", "summary.json", "metrics.jsonl", "exchanges.jsonl"} <= {
        path.name for path in (tmp_path / "served").iterdir()
    }


def test_who_comes_late_takes_part_from_then_on_and_a_stranger_does_not(tmp_path: Path) -> None:
    carrier, said = hand(tmp_path / "nodes"), list[str]()
    carrier.online = {"ward-0", "ward-1", "ward-2"}
    names = sorted(carrier.clients)

    class Late(Callback):
        def on_round(self, run: Run, trips: Any) -> None:
            if run.state.round == 2:
                carrier.clients["other"] = carrier.clients["ward-0"]
                carrier.online |= {"ward-3", "other"}
                run.remote.post.roster._looked = -1e9  # a second later

    how: dict[str, Any] = {"names": names, "callbacks": [Late()], "log": said.append}
    serve(settings("fedavg", rounds=6), carrier, tmp_path / "served", Waiting(3), **how)
    lines = [line for line in read_record(tmp_path / "served" / "exchanges.jsonl") if "sent" in line]
    assert [set(line["sent"]) for line in lines[:2]] == [{"0", "1", "2"}] * 2
    assert set(lines[-1]["sent"]) == {"0", "1", "2", "3"}
    assert any("other came too late" in line for line in said)


def test_nodes_without_keys_say_their_own_names(tmp_path: Path) -> None:
    ended = serve(settings("fedavg", rounds=1), hand(tmp_path / "n", keys=False), tmp_path / "served", Waiting(4))
    assert ended.federation.clients == ("ward-0", "ward-1", "ward-2", "ward-3")


def test_a_run_that_was_begun_otherwise_is_not_gone_on_with(tmp_path: Path) -> None:
    with pytest.raises(Killed):
        serve(settings("fedavg"), hand(tmp_path / "n"), tmp_path / "served", Waiting(4), callbacks=[Kill(1)])
    (tmp_path / "served" / "lock").unlink(missing_ok=True)
    with pytest.raises(UsageError, match=r"other settings \(seed\)"):
        serve(settings("fedavg", seed=4), hand(tmp_path / "n"), tmp_path / "served", Waiting(4))


def test_a_run_whose_record_has_lost_lines_is_not_gone_on_with(tmp_path: Path) -> None:
    with pytest.raises(Killed):
        serve(settings("lg-fedavg"), hand(tmp_path / "n"), tmp_path / "served", Waiting(4), callbacks=[Kill(1)])
    path = tmp_path / "served" / "exchanges.jsonl"
    lines = path.read_text()
    path.write_text(lines[:-9])
    with pytest.raises(UsageError, match="was changed or has lost lines"):
        serve(settings("lg-fedavg"), hand(tmp_path / "n"), tmp_path / "served", Waiting(4))
    assert path.read_text() == lines[:-9]  # nothing was written


@pytest.mark.parametrize("name", ["partition", "attack", "standardise", "alone", "held_out", "clock", "valid"])
def test_what_only_a_simulation_can_do_is_refused(name: str, tmp_path: Path) -> None:
    values = {"partition": "iid", "attack": "sign-flip(share=0.2)", "standardise": "train", "alone": True}
    values |= {"held_out": 0.2, "clock": "normalised(t_c=10)", "valid": 0.1}
    with pytest.raises(UsageError, match=f"{name}=.* is for simulations"):
        serve(settings("fedavg", **{name: values[name]}), hand(tmp_path / "n"), tmp_path / "served", Waiting(4))


def test_a_run_that_was_killed_before_its_first_or_amid_its_last_files_goes_on(tmp_path: Path) -> None:
    """Before it had begun it begins anew; with a summary and no digests it writes its last files again."""
    out, asked = tmp_path / "served", settings("fedavg", rounds=1)
    ended = serve(asked, hand(tmp_path / "n"), out, Waiting(4))
    whole = (out / "clients.csv").read_bytes()
    (out / "digests.json").unlink()
    again = serve(asked, hand(tmp_path / "n"), out, Waiting(4))
    assert torch.equal(again.state.centers["model"], ended.state.centers["model"])
    assert (out / "clients.csv").read_bytes() == whole and not Folder.open(out).damaged()
    for left in out.iterdir():
        if left.name not in ("config.json", "outline.json", "checkpoints", "log.txt"):
            left.unlink()
    for left in (out / "checkpoints").iterdir():
        left.unlink()
    anew = serve(asked, hand(tmp_path / "n"), out, Waiting(4))
    assert torch.equal(anew.state.centers["model"], ended.state.centers["model"])


def test_patience_is_refused_where_clients_keep_parts_of_their_own(tmp_path: Path) -> None:
    """Nodes have only the newest of them, so the best round could not be scored as it was."""
    data = load(*DATA, clients=4, seed=3, valid=0.2)
    carrier = Hand({f"ward-{k}": Participant(one_of(data, k), name=f"ward-{k}") for k in range(4)})
    with pytest.raises(UsageError, match="patience=2 goes back to the best round"):
        serve(settings("lg-fedavg", patience=2), carrier, tmp_path / "served", Waiting(4))
    assert not (tmp_path / "served" / "config.json").exists()


LIMITS = {
    "methods": (Limits(methods=("fesem",)), "method fedavg"),
    "rounds": (Limits(rounds=3), "4 rounds"),
    "epsilon": (Limits(epsilon=1.0), "without a privacy part"),
    "clients": (Limits(clients=5), "4 clients that train"),
}


@pytest.mark.parametrize("what", LIMITS)
def test_a_node_refuses_what_it_has_not_agreed_to(what: str, tmp_path: Path) -> None:
    """It is left out; the others go on, and the reason stays with it."""
    carrier, said, at_home = hand(tmp_path / "n"), list[str](), list[str]()
    limits, reason = LIMITS[what]
    node = carrier.clients["ward-1"]
    node.limits, node.log = limits, at_home.append
    serve(settings("fedavg"), carrier, tmp_path / "served", Waiting(4), log=said.append)
    lines = [line for line in read_record(tmp_path / "served" / "exchanges.jsonl") if "sent" in line]
    assert all(set(line["sent"]) == {"0", "2", "3"} and line["left_out"] == [1] for line in lines)
    assert any(reason in line for line in at_home) and not any(reason in line for line in said)
    assert any("ward-1 (refused)" in line for line in said)


def test_code_that_terms_name_is_not_run_without_consent(tmp_path: Path) -> None:
    carrier = hand(tmp_path / "n")
    for node in carrier.clients.values():
        node.limits = Limits(trust=node.name != "ward-2")
    serve(settings("fedavg", model="support:small", rounds=1), carrier, tmp_path / "served", Waiting(4))
    (line,) = [line for line in read_record(tmp_path / "served" / "exchanges.jsonl") if "sent" in line]
    assert line["left_out"] == [2]


def test_terms_make_a_node_read_no_file(tmp_path: Path) -> None:
    """A center that is not ours could name any file of the node."""
    table = tmp_path / "cells.csv"
    table.write_text("1,1,0,0\n0,1,1,1\n")
    how: dict[str, Any] = {"set": {"lr": 0.1, "cells": f"table({table})"}}
    with pytest.raises(UsageError, match=r"cells.csv is a file of this machine"):
        serve(settings("fedmes", **how), hand(tmp_path / "n"), tmp_path / "served", Waiting(4))
    said: list[str] = []
    node = Participant(one_of(federation(), 0), log=said.append)
    words = settings("fedmes", **how).model_dump(mode="json", exclude_defaults=True)
    terms = Terms(run="r", client=0, clients=4, able=4, largest=10, classes=[str(k) for k in range(10)], settings=words)
    assert Reply.read(node.answer([packed(terms, {}), b"a letter"])[0], 1 << 20).facts.code == "refused"
    assert "words of somebody else" in said[0]


def test_a_page_says_who_is_there_and_what_became_of_replies(tmp_path: Path) -> None:
    from polycentric.report.page import looked_at, page_of

    carrier = hand(tmp_path / "n")
    carrier.clients["ward-1"].limits = Limits(rounds=1)  # refuses
    serve(settings("fedavg", rounds=2), carrier, tmp_path / "served", Waiting(4))
    found = page_of(looked_at([tmp_path / "served"]))
    (panel,) = [each for each in found["panels"] if each["key"] == "nodes"]
    lines = panel["parts"][0]["parts"]["0"]["lines"]
    assert [line[:4] for line in lines[:2]] == [("ward-0", "yes", "1", "2"), ("ward-1", "yes", "-", "0")]
    assert lines[1][5] == "2" and lines[0][5] == "0"


def test_a_server_whose_disk_is_full_names_the_command_that_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not `polycentric resume`: nodes have the examples."""

    def full(*given: Any, **named: Any) -> Run:
        raise Unwritten(tmp_path / "run/metrics.jsonl", "No space left on device")

    monkeypatch.setattr("polycentric.deploy.serve.serve", full)
    how: dict[str, Any] = {"trust": False, "track": [], "as_json": False, "quiet": True}
    with pytest.raises(UsageError) as wrong:
        _served(Settings(method="fedavg"), None, tmp_path / "run", Waiting(1), [], **how)
    assert str(wrong.value) == (
        f"cannot write {tmp_path}/run/metrics.jsonl: No space left on device; earlier checkpoints are intact, so free "
        f"some space and continue with the same command with --out {tmp_path}/run"
    )
