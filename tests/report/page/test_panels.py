"""What the panels of a page hold: the numbers of `compare`, sums that add up, nothing where there is nothing."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import polycentric as pc
from polycentric.errors import UsageError
from polycentric.report.page import Sight, looked_at, of_run, page_of, write_report
from polycentric.report.page.parts import number, series, thinned
from polycentric.runs.folder import Folder

Compared = tuple[Path, list[dict[str, Any]]]
Forged = Callable[..., Path]


@pytest.fixture(scope="module")
def found(compared: Compared) -> dict[str, Any]:
    """All data of the page."""
    _, rows = compared
    return page_of(looked_at([Path(path) for row in rows for path in row["run_dirs"]]))


def panel(found: dict[str, Any], key: str) -> dict[str, Any]:
    (one,) = (panel for panel in found["panels"] if panel["key"] == key)
    return dict(one)


def only(part: dict[str, Any], label: str) -> dict[str, Any]:
    """The part of a run, of a switch by runs."""
    values = part["options"][0]["values"]
    return dict(part["parts"][str(values.index(label))])


# -- the answer ----------------------------------------------------------------------------------------------


def test_the_answer_has_the_numbers_of_compare(found: dict[str, Any], compared: Compared) -> None:
    _, rows = compared
    bars = {bar["label"]: bar for bar in found["answer"]["bars"]}
    assert list(bars) != [] and set(bars) == {"nofed", "fedavg", "fesem"}
    for row in rows:
        values, bar = row["metrics"]["micro_accuracy"], bars[row["method"].partition("(")[0]]
        assert bar["each"] == [number(v) for v in values] and bar["mean"] == number(statistics.fmean(values))
        worst = statistics.fmean(row["metrics"]["worst_decile_accuracy"])
        assert bar["worst"] == number(worst)
        below = row.get("share_below_alone")
        assert bar["below"] == (f"{100 * statistics.fmean(below):.0f} %" if below else "")
    means = [bar["mean"] for bar in found["answer"]["bars"]]
    assert means == sorted(means, reverse=True) and found["answer"]["bars"][0]["best"]


def test_the_sentences_are_those_of_compare(found: dict[str, Any], compared: Compared) -> None:
    _, rows = compared
    told = [row["difference"]["told"].replace("fesem(k=2)", "fesem") for row in rows if row["difference"]]
    assert sorted(found["answer"]["told"]) == sorted(told) and len(told) == 2


def test_the_headline_claims_a_difference_only_beyond_chance() -> None:
    from polycentric.report.page.answer import _headline

    def said(mine: list[float], theirs: list[float]) -> str:
        rows = [_row("a", mine), _row("b", theirs)]
        sight = Sight([])
        sight.__dict__ |= {"metric": "micro_accuracy", "rows": rows}
        groups = [_Named("a"), _Named("b")]
        return _headline(sight, [(groups[0], mine), (groups[1], theirs)])  # type: ignore[list-item]

    assert said([0.9, 0.91, 0.92], [0.8, 0.81, 0.82]) == "a serves clients best: 91.0\xa0%, 10.0 points above b"
    assert "cannot be told apart" in said([0.9, 0.7, 0.8], [0.7, 0.8, 0.85])
    assert "2 seeds are too few to tell it from b" in said([0.9, 0.9], [0.1, 0.1])


class _Named:
    """A label without runs."""

    run = exchange = None

    def __init__(self, label: str) -> None:
        self.label = label


def _row(name: str, values: list[float]) -> dict[str, Any]:
    seeds = list(range(len(values)))
    return {"method": name, "runs": len(values), "metrics": {"micro_accuracy": values}, "seeds": seeds} | {
        "fingerprints": ["x"] * len(values), "personalised": [], "run_dirs": [""] * len(values),
    }  # fmt: skip


def test_tables_are_those_of_compare(found: dict[str, Any], compared: Compared) -> None:
    _, rows = compared
    scores, differences = panel(found, "scores")["parts"]
    line = next(line for line in scores["lines"] if line[0] == "fesem")
    assert line[1] == "{:.1f}±{:.1f}".format(
        *(100 * of(rows[2]["metrics"]["micro_accuracy"]) for of in (statistics.fmean, statistics.stdev))
    )
    assert scores["copies"]["CSV"].count("\n") == 4 and scores["copies"]["Markdown"].count("\n|") == 5
    assert r"\begin{tabular}" in scores["copies"]["LaTeX"]
    assert [line[0] for line in differences["lines"]] == ["fedavg", "fesem"]
    best = max(rows, key=lambda row: statistics.fmean(row["metrics"]["micro_accuracy"]))["method"].partition("(")[0]
    assert [[line[0] for line in scores["lines"]].index(best), 1] in scores["best"]


def test_gains_are_every_clients(found: dict[str, Any], compared: Compared) -> None:
    chart, table = panel(found, "gains")["parts"]
    for line in chart["series"]:
        assert len(line["y"]) == 8 == len(line["text"])  # the data name them: the mean over seeds
        assert line["y"] == sorted(line["y"], reverse=True)
    assert [line[0] for line in table["lines"]] == ["standing", "lying"]


# -- learning ------------------------------------------------------------------------------------------------


def test_curves_are_means_over_seeds_over_all_that_can_be_chosen(found: dict[str, Any], compared: Compared) -> None:
    _, rows = compared
    (part,) = panel(found, "curves")["parts"]
    over, of = (option["values"] for option in part["options"])
    assert over == ["rounds", "seconds", "bytes"] and of[0] == "micro accuracy" and "worst decile accuracy" in of
    assert set(part["parts"]) == {f"{i}.{j}" for i in range(3) for j in range(len(of))}
    lines = {line["name"]: line for line in part["parts"]["0.0"]["series"]}
    each = [[row["micro_accuracy"] for row in Folder(Path(path)).read_metrics()] for path in rows[1]["run_dirs"]]
    assert lines["fedavg"]["x"] == [0, 1, 2, 3, 4]
    assert lines["fedavg"]["y"] == pytest.approx(np.mean(each, 0), abs=1e-4)
    assert lines["fedavg"]["high"] == pytest.approx(np.mean(each, 0) + np.std(each, 0, ddof=1), abs=1e-4)
    assert next(line for line in part["parts"]["2.0"]["series"] if line["name"] == "nofed")["level"]


def test_bytes_by_link_add_up(found: dict[str, Any], compared: Compared) -> None:
    _, rows = compared
    (chart,) = panel(found, "bytes")["parts"]
    moved = {label: sum(line["y"][k] for line in chart["series"]) for k, label in enumerate(chart["series"][0]["x"])}
    for row in rows:
        assert moved[row["method"].partition("(")[0]] == pytest.approx(row["bytes_up"] + row["bytes_down"], rel=1e-3)


# -- clients -------------------------------------------------------------------------------------------------


def test_clients_are_sorted_and_the_worst_tenth_is_that_of_compare(found: dict[str, Any], compared: Compared) -> None:
    _, rows = compared
    (part,) = panel(found, "clients")["parts"]
    times = part["options"][0]["values"]
    assert times == ["before training", "in use", "after fine-tuning"] and part["start"] == {"when": 1}
    for line, row in zip(part["parts"]["1"]["series"], rows, strict=True):
        assert line["y"] == sorted(line["y"]) and len(line["y"]) == 8
        worst = statistics.fmean(row["metrics"]["worst_decile_accuracy"])
        assert line["name"].endswith(f"({100 * worst:.1f}\xa0%)")
        assert all(low <= y <= high for low, y, high in zip(line["low"], line["y"], line["high"], strict=True))
        assert sorted(text.partition(",")[0] for text in line["text"]) == [f"site {k}" for k in range(8)]


def test_fine_tuning_counts_everybody_once(found: dict[str, Any]) -> None:
    part = only(panel(found, "personalisation")["parts"][0], "fedavg")
    assert sum(sum(line["sizes"]) for line in part["series"]) == 8
    gain, same, lose = part["series"]
    assert all(y > x for x, y in zip(gain["x"], gain["y"], strict=True)) and gain["name"].startswith("gain (")
    assert all(y == x for x, y in zip(same["x"], same["y"], strict=True))
    assert all(y < x for x, y in zip(lose["x"], lose["y"], strict=True))


def test_labels_of_a_client_add_up_to_one(found: dict[str, Any]) -> None:
    (heat,) = panel(found, "labels")["parts"]
    assert np.sum(heat["z"], 1) == pytest.approx(np.ones(8), abs=1e-3) and heat["columns"] == ["a", "b", "c"]


# -- topology and clusters -----------------------------------------------------------------------------------


def test_the_topology_is_drawn_with_everybody_in_it(found: dict[str, Any]) -> None:
    (part,) = panel(found, "topology")["parts"]
    alone, star, several = (only(part, label) for label in ("nofed", "fedavg", "fesem"))
    assert (len(alone["links"]), len(star["links"]), len(several["links"])) == (0, 8, 8)
    assert (len(alone["centers"]["n"]), len(star["centers"]["n"]), len(several["centers"]["n"])) == (0, 1, 2)
    assert [colour["name"] for colour in several["colours"]] == ["cluster", "group", "accuracy"]
    for drawn in (alone, star, several):
        every = np.array([drawn["clients"]["x"], drawn["clients"]["y"]])
        assert every.shape == (2, 8) and every.min() >= -1e-9 and every.max() <= 1 + 1e-9
    icons = {bar["label"]: bar["icon"] for bar in found["answer"]["bars"]}
    assert icons == {"nofed": "alone", "fedavg": "star", "fesem": "several"}


def test_the_map_has_a_frame_for_every_evaluated_round_on_the_same_axes(found: dict[str, Any]) -> None:
    (part,) = panel(found, "map")["parts"]
    assert [option["name"] for option in part["options"]] == ["run", "by", "round"] and part["options"][2]["slider"]
    frames = [part["parts"][f"1.0.{k}"] for k in range(4)]
    assert [frame["at"] for frame in frames] == [f"round {k}" for k in (1, 2, 3, 4)]
    assert len({json.dumps([frame["x"], frame["y"]]) for frame in frames}) == 1
    assert all(sum(len(line["x"]) for line in frame["series"]) == 8 for frame in frames)


def test_clusters_over_the_rounds_hold_everybody_and_flows_add_up() -> None:
    from polycentric.report.clusters import over_rounds
    from polycentric.report.page.groups import _flow

    seen = over_rounds({1: [0, 0, 1, 1], 2: [0, 1, 1, 1], 3: [0, 1, 1, 1], 4: [2, 1, 1, 0]})
    assert seen.sizes.sum(0).tolist() == [4, 4, 4, 4] and seen.moved.tolist() == [1, 0, 2]
    flow = _flow(seen)
    assert flow is not None and flow["columns"] == ["round 1", "round 2", "round 4"]
    for k, (_, _, size) in enumerate(flow["nodes"]):
        out, into = (sum(n for *ends, n in flow["links"] if ends[side] == k) for side in (0, 1))
        assert {out, into} - {0} == {size}
    assert _flow(over_rounds({1: [0, 1], 2: [0, 1]})) is None


def test_sizes_of_clusters_in_the_page(found: dict[str, Any]) -> None:
    sizes = only(panel(found, "clusters")["parts"][0], "fesem")
    assert np.sum([line["y"] for line in sizes["series"]], 0).tolist() == [8] * len(sizes["series"][0]["x"])


# -- what is not there ---------------------------------------------------------------------------------------


def test_panels_appear_only_where_a_run_has_something_for_them(found: dict[str, Any]) -> None:
    keys = [panel["key"] for panel in found["panels"]]
    people = ["gains", "scores", "curves", "clients", "personalisation", "topology", "map", "clusters", "examples"]
    assert keys == [*people, "similarity", "labels", "bytes", "reproduce"]
    assert not {"privacy", "relations", "participation", "left-out"} & set(keys)


def test_a_quick_page_reads_no_data(compared: Compared) -> None:
    folder, _ = compared
    sight = looked_at([folder / "runs"], quick=True)
    assert not sight.opened
    keys = {panel["key"] for panel in page_of(sight)["panels"]}
    assert not keys & {"topology", "map", "examples", "labels", "similarity"} and {"curves", "clients"} <= keys


def test_a_run_that_lost_its_data_is_shown_from_its_files_and_that_is_said(tmp_path: Path) -> None:
    data = np.random.default_rng(0)
    np.savez(
        tmp_path / "own.npz",
        x=data.normal(size=(60, 3)).astype(np.float32),
        y=np.arange(60) % 2,
        client=np.arange(60) % 4,
    )
    pc.run("fedavg", tmp_path / "own.npz", rounds=1, model="logistic", device="cpu", out=tmp_path / "run")
    (tmp_path / "own.npz").unlink()
    found = page_of(looked_at([tmp_path / "run"]))
    assert "fedavg is shown without its models and examples" in found["answer"]["notes"][0]
    assert "curves" in [panel["key"] for panel in found["panels"]]


def test_other_rooms_of_the_page_have_their_panels() -> None:
    private = pc.run("dp-fedavg", "digits", clients=12, rounds=2, model="logistic", device="cpu", set={"noise": 1.0})
    tasks = pc.run("mtl", "digits", clients=6, rounds=1, model="logistic", device="cpu", attack="nan(share=0.2)")
    for run, wanted in ((private, {"privacy", "participation"}), (tasks, {"relations", "left-out"})):
        with of_run(run) as sight:
            keys = {panel["key"] for panel in page_of(sight)["panels"]}
        assert wanted <= keys, f"{run.method.name}: {wanted - keys}"


def test_code_that_a_folder_names_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forged: Forged) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "harm.py").write_text("raise SystemExit('run')\n")
    folder = forged(tmp_path / "run", {"model": "harm:net", "metrics": "harm:metric", "loss": "harm:loss"})
    found = page_of(looked_at([folder]))
    assert "names code, harm:" in found["answer"]["notes"][0]


def test_a_run_that_goes_on_has_a_page(tmp_path: Path, forged: Forged) -> None:
    going = forged(tmp_path / "going", {"rounds": 50}, ended=False)
    ended = forged(tmp_path / "ended", {"seed": 1, "method": "fedsgd"})
    found = page_of(looked_at([going, ended], quick=True))
    assert found["answer"]["notes"][0] == "fedavg stopped at round 3 of 50"
    assert found["answer"]["headline"] == "fedavg is ahead so far, with 80.0\xa0%"
    assert len(panel(found, "curves")["parts"][0]["parts"]["0.0"]["series"]) == 2


def test_attackers_and_those_who_never_train_are_told_apart(tmp_path: Path) -> None:
    how: dict[str, Any] = {"rounds": 2, "model": "logistic", "device": "cpu", "sketch": True, "held_out": 0.2}
    how |= {"attack": "sign-flip(share=0.25)", "set": {"aggregate": "median"}, "out": tmp_path / "run"}
    run = pc.run("fedavg", "digits", clients=20, **how)
    with of_run(run) as sight:
        found = page_of(sight)
    (drawn,) = panel(found, "topology")["parts"][0]["parts"].values()
    assert drawn["words"].endswith("; Median takes the place of the mean")
    (role,) = (colour for colour in drawn["colours"] if colour["name"] == "role")
    attackers, out = run.clients.attackers.tolist(), run.clients.held_out_mask.tolist()
    assert [k == 1 for k in role["kinds"]] == attackers and [k == 2 for k in role["kinds"]] == out
    assert role["labels"] == {"0": "trains (12)", "1": "attacks (4)", "2": "never trains (4)"}
    shown = panel(found, "map")["parts"][0]["parts"]["0.0.1"]["series"]
    assert {c for s in shown if s["name"].startswith("attacks") for c in s["who"]} == {
        k for k, lies in enumerate(attackers) if lies
    }
    (line,) = panel(found, "clients")["parts"][0]["parts"]["1"]["series"]
    assert len(line["x"]) == 12  # neither attackers nor those held out
    assert line["name"] == f"fedavg ({100 * run.metrics['worst_decile_accuracy']:.1f}\xa0%)"


def test_a_cloud_is_drawn_and_centers_in_use_are_counted(tmp_path: Path) -> None:
    how: dict[str, Any] = {"clients": 6, "rounds": 1, "model": "logistic", "device": "cpu", "fine_tune": 0}
    for method, cloud, words in (("hierarchical", True, "(3 edges)"), ("ifca(k=5)", False, " of 5 centers)")):
        with of_run(pc.run(method, "digits", **how)) as sight:
            found = page_of(sight)
        (drawn,) = panel(found, "topology")["parts"][0]["parts"].values()
        assert drawn["centers"]["cloud"] is cloud and words in found["answer"]["headline"]


def test_what_is_refused(tmp_path: Path, compared: Compared) -> None:
    folder, _ = compared
    with pytest.raises(UsageError, match=r"must end in \.html"):
        write_report([folder / "runs"], tmp_path / "report.txt")
    with pytest.raises(UsageError, match="unknown row to compare against 'fedavgg'"):
        write_report([folder / "runs"], tmp_path / "report.html", against="fedavgg", quick=True)
    with pytest.raises(UsageError, match="needs a path"):
        pc.run("fedavg", "digits", clients=4, rounds=0, model="logistic", device="cpu").report()


# -- parts ---------------------------------------------------------------------------------------------------


def test_numbers_and_places_of_a_page() -> None:
    assert [number(v) for v in (1.0, 1e300, float("inf"), None, 1 / 3, -0.0)] == [1, 1e300, None, None, 0.33333, 0]
    for n, most in ((1, 1), (5, 5), (1000, 7), (10_000, 1200)):
        at = thinned(n, most)
        assert (at[0] == 0 and at[-1] == n - 1) or n == 1
        assert len(at) == min(n, most) == len(set(at)) and at == sorted(at)
    assert series("a", 0, [1], [float("nan")], low=[float("inf")], text=None) == {
        "name": "a", "n": 0, "x": [1], "y": [None], "mode": "line", "low": [None],
    }  # fmt: skip
