"""Learning curves of runs: what stands where, who is one band, what is said when it cannot be drawn."""

import json
from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import polycentric as pc
from polycentric.cli import outcome
from polycentric.errors import UsageError
from polycentric.report import curves
from polycentric.report.curves import curve, figure, gathered, rows_of, together
from polycentric.report.figure import colour, panels
from polycentric.runs.settings import Settings

LAW = settings(max_examples=30)


def a_run(folder, seed=0, method="fedavg", rounds=5, speed=1.0, lr=0.1, **config):
    folder.mkdir(parents=True)
    made = Settings(method=method, seed=seed, set={"lr": lr}, rounds=rounds, **config)
    (folder / "config.json").write_text(made.model_dump_json())
    rows = [
        {
            "round": r, "bytes_up": 10 * r, "bytes_down": 20 * r, "simulated_seconds": speed * r,
            "micro_accuracy": r / 10 + seed / 100,
        }
        for r in range(rounds + 1)
    ]  # fmt: skip
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_a_point_for_every_evaluation(tmp_path):
    run = a_run(tmp_path / "run", speed=2.5, rounds=3)
    for over, x in (("rounds", [0, 1, 2, 3]), ("seconds", [0, 2.5, 5, 7.5]), ("bytes", [0, 30, 60, 90])):
        at, y = curve(run, over=over)
        assert at.tolist() == x and y.tolist() == [0.0, 0.1, 0.2, 0.3]


def test_bytes_up_and_down_by_themselves(tmp_path):
    run = a_run(tmp_path / "run", rounds=3)
    assert curve(run, over="bytes_up")[0].tolist() == [0, 10, 20, 30]
    assert curve(run, over="bytes_down")[0].tolist() == [0, 20, 40, 60]


def test_seconds_and_trips_to_the_edge_have_no_axis_in_common(tmp_path, capsys):
    a_run(tmp_path / "runs" / "a")
    a_run(tmp_path / "runs" / "b", method="fesem", clock="normalised(t_c=20)")
    out = str(tmp_path / "x.png")
    assert outcome(["curves", str(tmp_path / "runs"), "--over", "seconds", "--out", out]) == 2
    said = capsys.readouterr().err
    assert "'fesem' was run under a normalised clock" in said and "'fedavg' was run under a clock of seconds" in said
    assert outcome(["curves", str(tmp_path / "runs"), "--over", "rounds,bytes", "--out", out]) == 0


def test_seconds_of_a_real_federation_are_not_called_simulated(tmp_path):
    run = a_run(tmp_path / "real")
    assert curves.unit_of({"fedavg": [run]}) == "simulated seconds"
    config = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps(config | {"given": ["nodes"]}))
    assert curves.unit_of({"fedavg": [run]}) == "seconds of rounds and scores"


def test_long_labels_leave_room_for_the_curves(tmp_path, monkeypatch):
    widths = []

    @contextmanager
    def measured(*args, **how):
        with panels(*args, **how) as axes:
            yield axes
            axes[0, 0].figure.canvas.draw()
            widths.append(axes[0, 0].get_position().width)

    monkeypatch.setattr(curves, "panels", measured)
    settings = "cells=overlap(u=20, v=10), select=by-cell(n=20), alpha_v=1.3, clock=physical(distance=200, fading=true)"
    figure({f"fedmes, {settings}, lr={n}": [a_run(tmp_path / f"{n}")] for n in range(3)}, tmp_path / "long.png")
    assert widths[0] > 0.5  # of the figure


def test_what_a_run_really_writes_can_be_drawn(tmp_path, blobs):
    ran = pc.run(pc.fedavg(), blobs(), rounds=3, out=tmp_path / "run")
    at, y = curve(tmp_path / "run", "micro_loss", "seconds")
    assert at.tolist() == [row["simulated_seconds"] for row in ran.history] and len(y) == 4
    assert gathered([tmp_path / "run"]) == {"fedavg": [tmp_path / "run"]}


@LAW
@given(st.lists(st.tuples(st.floats(0.1, 3), st.integers(2, 9)), min_size=1, max_size=4))
def test_curves_meet_where_all_of_them_are_and_straight_lines_stay_so(runs):
    curves = [(speed * np.arange(n + 1), 2 * speed * np.arange(n + 1)) for speed, n in runs]
    x, y = together(curves)
    assert y.shape == (len(runs), len(x))
    assert x[0] == 0 and x[-1] == pytest.approx(min(speed * n for speed, n in runs))
    np.testing.assert_allclose(y, np.broadcast_to(2 * x, y.shape), atol=1e-9)


def test_seeds_are_one_band_and_whatever_differs_is_another(tmp_path):
    for seed in (0, 1):
        a_run(tmp_path / f"all/a{seed}", seed)
        a_run(tmp_path / f"all/b{seed}", seed, lr=0.5)
        a_run(tmp_path / f"all/c{seed}", seed, method="fesem")
    a_run(tmp_path / "apart", 7, method="fesem")
    found = gathered([tmp_path / "all", tmp_path / "apart"])
    assert {label: sorted(path.name for path in paths) for label, paths in found.items()} == {
        "fedavg, lr=0.1": ["a0", "a1"],
        "fedavg, lr=0.5": ["b0", "b1"],
        "fesem": ["apart", "c0", "c1"],
    }


def test_another_device_or_executor_is_not_another_method(tmp_path):
    a_run(tmp_path / "all/a", 0, device="cpu", executor="looped")
    a_run(tmp_path / "all/b", 1, block=3, checkpoint_every=2)
    assert list(gathered([tmp_path / "all"])) == ["fedavg"]


def test_the_same_figure_has_the_same_bytes(tmp_path):
    for seed in (0, 1):
        a_run(tmp_path / f"all/a{seed}", seed, speed=1 + seed)
        a_run(tmp_path / f"all/b{seed}", seed, method="nofed", speed=0.1)
    for name in ("one.png", "two.png"):
        figure(gathered([tmp_path / "all"]), tmp_path / name, over=("rounds", "seconds", "bytes"), log=True)
    assert (tmp_path / "one.png").read_bytes() == (tmp_path / "two.png").read_bytes()


def test_the_mean_is_drawn_with_a_band(tmp_path):
    for seed in (0, 1, 2):
        a_run(tmp_path / f"all/{seed}", seed)
    with panels(tmp_path / "shown.png") as axes:
        pc.report.curves.draw(axes[0, 0], gathered([tmp_path / "all"]))
        (line,), (area,) = axes[0, 0].lines, axes[0, 0].collections
        np.testing.assert_allclose(line.get_ydata(), np.arange(6) / 10 + 0.01)
        edges = area.get_paths()[0].vertices[:, 1]
        assert edges.min() == pytest.approx(0.0) and edges.max() == pytest.approx(0.52)


def test_a_metric_and_an_axis_can_be_made_from_evaluations(tmp_path):
    run = a_run(tmp_path / "run", rounds=3)
    x, y = curve(
        run, lambda row: 100 * row["micro_accuracy"] if row["round"] else None, lambda at, r: [2 * k for k in r]
    )
    assert x.tolist() == [2, 4, 6] and y.tolist() == pytest.approx([10, 20, 30])


def test_a_panel_of_curves_keeps_the_colours_of_who_was_not_run(tmp_path):
    run = a_run(tmp_path / "run")
    shown = curves.Curves({"never": [], "unscored": [tmp_path], "fedavg": [run]}, level=0.4, dress={"title": "a"})
    assert shown.there and not curves.Curves({"never": [], "unscored": [tmp_path]}).there
    with panels(tmp_path / "shown.png") as axes:
        shown.draw(axes[0, 0])
        assert [line.get_color() for line in axes[0, 0].lines] == [colour(2), "#999999"]
        assert axes[0, 0].get_title(loc="left") == "a"


def test_who_moves_nothing_is_a_line_at_its_end(tmp_path):
    run = a_run(tmp_path / "run", method="nofed")
    still = [row | {"bytes_up": 0, "bytes_down": 0} for row in rows_of(run)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in still))
    with panels(tmp_path / "shown.png") as axes:
        pc.report.curves.draw(axes[0, 0], {"nofed": [run]}, over="bytes")
        assert set(axes[0, 0].lines[0].get_ydata()) == {0.5}


def test_what_cannot_be_drawn_is_said(tmp_path):
    run = a_run(tmp_path / "run")
    with pytest.raises(UsageError, match=r"unknown metric 'micro_acuracy': did you mean 'micro_accuracy'"):
        curve(run, "micro_acuracy")
    with pytest.raises(UsageError, match="nothing is neither a run nor a folder of runs"):
        gathered([tmp_path / "nothing"])
    (run / "metrics.jsonl").write_text("")
    with pytest.raises(UsageError, match="has no evaluation with micro_accuracy yet"):
        figure({"fedavg": [run]}, tmp_path / "no.png")
    assert not (tmp_path / "no.png").exists()
    (run / "metrics.jsonl").write_text('{"round": 0, "micro_accuracy": 0.1}\n')
    with pytest.raises(UsageError, match="has no simulated seconds"):
        curve(run, over="seconds")
    (run / "metrics.jsonl").write_text("{")
    with pytest.raises(UsageError, match=r"metrics\.jsonl cannot be read"):
        curve(run)


def test_the_command_draws(tmp_path, capsys):
    a_run(tmp_path / "all/a")
    drawn = tmp_path / "c.svg"
    assert outcome(["curves", str(tmp_path / "all"), "--over", "rounds, seconds", "--out", str(drawn)]) == 0
    assert drawn.read_text().count("simulated seconds") >= 1
    for wrong, said in (
        (["--over", "minutes"], "unknown axis 'minutes'"),
        (["--metric", "accuracy"], "unknown metric 'accuracy'"),
        (["--out", "figure.gif"], "must end in .png, .svg or .pdf, got 'figure.gif'"),
    ):
        assert outcome(["curves", str(tmp_path / "all"), *wrong]) == 2
        assert said in capsys.readouterr().err


def test_the_command_runs_by_another_clock(tmp_path, capsys):
    words = ["run", "fedavg", "--clients", "4", "--rounds", "2", "--clock", "normalised(t_c=3, t_comp=0.5)", "--json"]
    assert outcome([*words, "--out", str(tmp_path / "run")]) == 0
    assert json.loads(capsys.readouterr().out)["simulated_seconds"] == pytest.approx(7.0)
    assert outcome(["run", "fedavg", "--clock", "sundial"]) == 2
    assert "unknown clock 'sundial'" in capsys.readouterr().err


def test_more_curves_than_colours_are_told_apart(tmp_path):
    """No two of forty lines look alike, the first eight as ever; and the legend stands beside the panel."""
    groups = {f"m{n}": [a_run(tmp_path / f"{n}")] for n in range(40)}
    with panels(tmp_path / "many.png") as axes:
        curves.draw(axes[0, 0], groups)
        looks = [(line.get_color(), line.get_linestyle(), line.get_marker()) for line in axes[0, 0].lines]
    assert len(set(looks)) == 40 and {look[1:] for look in looks[:8]} == {("-", "None")}


def test_a_legend_of_many_does_not_hide_the_curves(tmp_path, monkeypatch):
    found = []

    @contextmanager
    def kept(*args, **how):
        with panels(*args, **how) as axes:
            yield axes
            found.append(axes[0, 0])

    monkeypatch.setattr(curves, "panels", kept)
    for n in (8, 9):
        figure({f"m{k}": [a_run(tmp_path / f"{n}-{k}")] for k in range(n)}, tmp_path / "x.png")
    few, many = found
    assert few.get_legend() is not None and not few.figure.legends
    assert many.get_legend() is None and len(many.figure.legends[0].get_texts()) == 9


def test_a_method_of_ones_own_is_called_by_its_name(tmp_path):
    a_run(tmp_path / "all/a", method="mine:ditto")
    assert list(gathered([tmp_path / "all"])) == ["mine:ditto"]
