"""Seeing clusters: the numbers behind the figures keep their laws, and the figures are written."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import polycentric as pc
from polycentric import fedavg, fesem, run_round
from polycentric.cli import outcome
from polycentric.errors import UsageError
from polycentric.report import clusters as see
from polycentric.runs.folder import Folder
from polycentric.runs.loop import Run
from polycentric.runs.start import open as open_run
from polycentric.stacks.all_rows import inner_products
from polycentric.topology.clusters.assignment import shared_information
from support import Make


def cloud(n: int = 12, width: int = 30, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.fixture(scope="module")
def turned() -> Run:
    federation = pc.load("digits", partition=pc.Rotations(2, clients=10))
    return pc.run(fesem(k=2, lr=0.1, warm_up=5), federation, model="logistic", rounds=4, dtype="float64")


# -- labels --------------------------------------------------------------------------------------------------


def test_matched_undoes_any_renaming() -> None:
    labels = np.array([0, 0, 1, 2, 2, 2, 3])
    for renamed in itertools.permutations(range(4)):
        assert np.array_equal(see.matched(np.array(renamed)[labels], labels), labels)


def test_matched_agrees_on_as_many_as_any_renaming_can() -> None:
    for seed in range(20):
        draw = np.random.default_rng(seed)
        labels, reference = draw.integers(0, 4, 15), draw.integers(0, 4, 15)
        found = see.matched(labels, reference)
        best = max(int((np.array(p)[labels] == reference).sum()) for p in itertools.permutations(range(4)))
        assert int((found == reference).sum()) == best
        assert len(np.unique(found)) == len(np.unique(labels)) and shared_information(found, labels) == pytest.approx(
            1.0
        )


def test_a_label_without_a_partner_gets_a_free_number() -> None:
    assert see.matched([5, 6, 7], [1, 1, 1]).tolist().count(1) == 1
    assert len(set(see.matched([5, 6, 7], [1, 1, 1]).tolist())) == 3
    with pytest.raises(UsageError, match="3 clients cannot be matched with those of 2"):
        see.matched([0, 1, 2], [0, 1])


# -- distances and axes --------------------------------------------------------------------------------------


def test_principal_is_the_pca_of_the_rows() -> None:
    rows = cloud()
    found, share = see.principal(inner_products(rows).numpy())
    middle = (rows - rows.mean(0)).numpy()
    u, s, _ = np.linalg.svd(middle, full_matrices=False)
    assert np.abs(found) == pytest.approx(np.abs(u[:, :2] * s[:2]), abs=1e-9)
    assert share == pytest.approx(s[:2] ** 2 / (s**2).sum(), abs=1e-12)
    assert (found[np.abs(found).argmax(0), [0, 1]] > 0).all()


def test_principal_depends_neither_on_the_origin_nor_on_the_order() -> None:
    rows, order = cloud(), torch.randperm(12, generator=torch.Generator().manual_seed(1))
    there = (rows @ rows.T).numpy()  # not moved to the mean
    assert see.principal(there)[0] == pytest.approx(see.principal(inner_products(rows + 7).numpy())[0], abs=1e-8)
    moved = see.principal(inner_products(rows[order]).numpy())[0]
    assert moved == pytest.approx(see.principal(inner_products(rows).numpy())[0][order.numpy()], abs=1e-8)


def test_equal_rows_lie_at_one_point() -> None:
    found, share = see.principal(np.zeros((5, 5)))
    assert np.array_equal(found, np.zeros((5, 2))) and np.array_equal(share, np.zeros(2))
    assert see.principal(np.ones((1, 1)))[0].shape == (1, 2)


def test_distances_and_the_objective_are_those_of_the_rows() -> None:
    rows, place = cloud(), np.arange(12) % 3
    gram = inner_products(rows).numpy()
    assert see.squared_distances(gram) == pytest.approx(torch.cdist(rows, rows).square().numpy(), abs=1e-9)
    expected = sum(float((rows[place == k] - rows[place == k].mean(0)).square().sum()) for k in range(3)) / 12
    assert see.intra_cluster_distance(gram, place) == pytest.approx(expected, rel=1e-12)
    assert see.intra_cluster_distance(gram, np.arange(12)) == pytest.approx(0.0, abs=1e-9)


def test_cosines_forget_lengths_and_know_zeros() -> None:
    rows = cloud()
    rows[3] = 0
    found = see.cosines(rows)
    assert found == pytest.approx(see.cosines(rows * torch.arange(1, 13)[:, None]), abs=1e-12)
    expected = torch.nn.functional.cosine_similarity(rows[:, None], rows[None], dim=2).numpy()
    np.fill_diagonal(expected, 1.0)
    assert found == pytest.approx(expected, abs=1e-9) and found[3, 4] == 0.0


def test_t_sne_is_the_same_every_time_and_keeps_groups_together() -> None:
    rows = cloud(20) + 10 * (torch.arange(20) % 2)[:, None]
    gram = inner_products(rows).numpy()
    found = see.neighbours(gram, 3)
    assert np.array_equal(found, see.neighbours(gram, 3)) and np.isfinite(found).all()
    apart = np.linalg.norm(found[:, None] - found[None], axis=2) + 1e9 * np.eye(20)
    assert (apart.argmin(1) % 2 == np.arange(20) % 2).all()
    with pytest.raises(UsageError, match="at least 4"):
        see.neighbours(gram[:3, :3])


# -- what clients learn --------------------------------------------------------------------------------------


def test_local_models_are_what_the_next_round_hears(turned: Run) -> None:
    before = {name: rows.clone() for name, rows in turned.state.centers.items()}
    index, models = see.local_models(turned)
    after, _ = run_round(turned.method, turned.state, turned.clients)
    count = torch.bincount(after.memory["assignment"], minlength=2).double()
    assert index.tolist() == list(range(10))
    assert torch.allclose(models.mean(0), count @ after.centers["model"] / 10, atol=1e-12)  # the M-step keeps the mean
    assert all(torch.equal(rows, turned.state.centers[name]) for name, rows in before.items())
    held = torch.stack([turned.state.centers["model"][k] for k in turned.state.memory["assignment"]])
    assert float((models - held).abs().max()) > 1e-3


def test_updates_start_from_one_model(blobs: Make) -> None:
    run = pc.run(fesem(k=1, lr=0.1, warm_up=1), blobs((9, 14, 20, 11)), model="logistic", rounds=2, dtype="float64")
    index, found = see.updates(run)
    expected = see.local_models(run)[1] - run.state.centers["model"]
    assert index.tolist() == [0, 1, 2, 3] and torch.allclose(found, expected, atol=1e-12)


def test_a_run_without_clusters_says_so(blobs: Make) -> None:
    run = pc.run(fedavg(lr=0.1), blobs(), model="logistic", rounds=1)
    with pytest.raises(UsageError, match="fedavg has no clusters to show"):
        see.draw(run, Path("nowhere"))


def test_statistics_count_everybody_once(turned: Run) -> None:
    rows = see.statistics(turned)
    assert sum(row["clients"] for row in rows) == 10
    assert sum(row["examples"] for row in rows) == len(turned.federation.train)
    assert all(sum(row["labels"].values()) == pytest.approx(1.0) for row in rows)


# -- places and figures --------------------------------------------------------------------------------------


def test_figures_are_written_and_the_same_every_time(turned: Run, tmp_path: Path) -> None:
    first, again = (see.draw(turned, tmp_path / name, clients=6) for name in "ab")
    assert [path.name for path in first] == ["rounds.png", "map.png", "similarity.png", "examples.png"]
    assert all(a.read_bytes() == b.read_bytes() for a, b in zip(first, again, strict=True))
    assert see.draw_numbers(turned, tmp_path / "numbers.png")


def test_no_examples_where_there_are_no_images(blobs: Make, tmp_path: Path) -> None:
    run = pc.run(fesem(k=2, lr=0.1, warm_up=1), blobs((9, 14, 20, 11)), model="logistic", rounds=2)
    assert [path.name for path in see.draw(run, tmp_path)] == ["rounds.png", "map.png", "similarity.png"]
    few = pc.run(fesem(k=2, lr=0.1, warm_up=1), blobs((9, 14, 20)), model="logistic", rounds=2)
    with pytest.raises(UsageError, match="at least 4 clients with data, got 3"):
        see.draw(few, tmp_path)


def command(*words: str) -> int:
    return outcome([*words])


RUN = "run fesem --data digits --partition rotations=2 --clients 8 --model logistic --set k=2 --quiet".split()


def test_places_of_a_resumed_run_are_those_of_an_uninterrupted_one(tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    for out in (whole, cut):
        assert command(*RUN, "--rounds", "6", "--out", str(out), "--set", "lr=0.1", "--checkpoint-every", "2") == 0
    text = (whole / "places.csv").read_text()
    rounds = [int(line.partition(",")[0]) for line in text.splitlines()]
    assert rounds == [1, 2, 3, 4, 5, 6] and all(len(line.split(",")) == 9 for line in text.splitlines())
    for stem in ("round-000006.json", "round-000006.safetensors"):
        (cut / "checkpoints" / stem).unlink()
    (cut / "summary.json").unlink()
    with (cut / "places.csv").open("a") as file:
        file.write("7,0,1,0")  # the disk was full
    assert command("resume", str(cut), "--quiet") == 0
    assert (cut / "places.csv").read_text() == text
    looked_at = open_run(cut)
    assert sorted(looked_at.places) == rounds and len(looked_at.history) == 7


def test_the_command_writes_figures_and_says_where(tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "run"
    assert command(*RUN, "--rounds", "2", "--out", str(out), "--set", "lr=0.1") == 0
    capsys.readouterr()
    assert command("clusters", str(out), "--json", "--no-examples") == 0
    found = json.loads(capsys.readouterr().out)
    assert all(Path(path).is_file() for path in found["figures"]) and len(found["figures"]) == 3
    assert sum(found["sizes"].values()) == 8 and {"ari", "nmi"} <= found.keys()
    lines = Path(found["members"]).read_text("utf-8").splitlines()
    assert lines[0].split(",")[:2] == ["client", "cluster"] and len(lines) == 9
    named = [line.split(",")[1] for line in lines[1:]]
    assert {k: named.count(k) for k in found["sizes"]} == found["sizes"]
    assert command("clusters", str(tmp_path)) == 2
    assert "not the folder of a run" in capsys.readouterr().err
    (out / "summary.json").unlink()
    assert command("clusters", str(out)) == 2
    assert "polycentric resume" in capsys.readouterr().err


def test_splits_are_drawn_from_a_run_and_from_its_folder(tmp_path: Path) -> None:
    federation = pc.load("digits", partition=pc.Rotations(2, clients=8))
    eager = pc.cfl(eps1=1.0, eps2=0.0, t_min=1, lr=0.1, epochs=3)
    run = pc.run(eager, federation, model="logistic", rounds=4, out=tmp_path / "run")
    kept = Folder(tmp_path / "run").read_tensors("splits.safetensors")
    first, again = see.splits(run.state.memory), see.splits(kept)
    assert [(s.round, s.center) for s in first] == [(s.round, s.center) for s in again] and first[0].center == 0
    assert first[0].members.tolist() == list(range(8)) and set(first[0].child) == {1, 2}
    assert see.matched(first[0].child, federation.group.numpy()).tolist() == federation.group.tolist()
    assert "splits.png" in [path.name for path in see.draw(run, tmp_path / "a", examples=False)]
    assert see.draw_splits(kept, tmp_path / "b.png")
    assert (tmp_path / "b.png").read_bytes() == (tmp_path / "a" / "splits.png").read_bytes()
    assert not see.draw_splits({}, tmp_path / "c.png") and Folder(tmp_path).read_tensors("splits.safetensors") == {}
