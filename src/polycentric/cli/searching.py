"""Commands that choose: a search over settings by validation, and the number of centers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ..runs.settings import Settings, command_of
from .options import AsJson, Trust, at_point, of_settings, read_grid, settings_of


def searched(
    config: Path,
    options: dict[str, Any],
    how: str,
    trials: int,
    seed: int,
    folder: Path,
    jobs: int,
    trust: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Search the [grid] of a config, and tell the winner: its validation score, its test score, its command."""
    from ..runs.search import checked_axes, drawn_points, rungs, search
    from .screen import counting, say, stdout, tell
    from .tables import for_people, search_result

    values, grid = read_grid(config, trust)
    axes = checked_axes(grid, str(config))
    seeds = axes.pop("seed", None)
    points = drawn_points(axes, trials, seed)
    first = at_point(values, points[0], config, options)
    if not first.valid and not first.patience:
        say("note: valid is not set, so a tenth of every client's training examples is held out to choose by")
        options = options | {"valid": 0.1}

    def cells_at(point: dict[str, Any], rounds: int) -> list[Settings]:
        each = seeds if isinstance(seeds, list) else [None]
        at = [point if s is None else point | {"seed": s} for s in each]
        return [at_point(values, p, config, options | {"rounds": rounds}) for p in at]

    every = [cells_at(point, first.rounds) for point in points]  # a mistake costs nothing now
    total = sum(n * len(every[0]) for n, _ in rungs(len(points), first.rounds, how))
    with counting(f"search {config.stem}", total, quiet) as progress:
        found = search(points, cells_at, first.rounds, how, folder, jobs=jobs, progress=progress)
    best = found[0]
    won = every[points.index(best.point)]
    command = command_of(won[0])
    if as_json:
        lines = [{"grid": t.point, "rounds": t.rounds, "validation": t.scores, "diverged": t.diverged} for t in found]
        winner = lines[0] | {"metric": best.runs[0]["validation"]["metric"], "command": command}
        winner |= {"test": [run["metrics"] for run in best.runs], "run_dirs": [run["run_dir"] for run in best.runs]}
        tell({"config": str(config), "search": how, "trials": lines, "winner": winner})
        return
    stdout.print(for_people(search_result(found, how)))
    for line in _winner(best, len(found)):
        stdout.print(line, soft_wrap=True)
    stdout.print(command, soft_wrap=True)


def _winner(best: Any, trials: int) -> list[str]:
    """The winner in words: chosen by validation, and only then looked at on the test examples."""
    from ..report.tables import shown_metrics, spread
    from ..runs.metrics import is_share

    point = ", ".join(f"{key.removeprefix('set.')}={value}" for key, value in best.point.items())
    metric = best.runs[0]["validation"]["metric"]
    score = spread(best.scores, is_share(metric))
    tests = [
        f"{title} {spread([run['metrics'].get(name) for run in best.runs], is_share(name))}"
        for name, title in shown_metrics(list(best.runs[0]["metrics"])).items()
    ]
    return [
        f"best of {trials}: {point}",
        f"{metric} {score}, the best of {trials} and so too good; on the test examples, which had no say: "
        f"{', '.join(tests)}",
    ]


@of_settings("data", "partition", "clients", "valid", "standardise", "data_seed", "model", "seed", "set")
def choose_k(
    options: dict[str, Any],
    method: Annotated[str, typer.Argument(help="A method with a setting k: fesem, ifca or tkm.")] = "fesem",
    ks: Annotated[str, typer.Option(help="Numbers of centers to try, separated by commas.")] = "1,2,3,4,6,8",
    by: Annotated[str, typer.Option(help="valid: the best validation score. distance: the elbow.")] = "valid",
    sample: Annotated[int, typer.Option(min=1, help="Try on so many of the clients, drawn by the seed.")] = 100,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of each trial.")] = 3,
    trust: Trust = False,
    as_json: AsJson = False,
) -> None:
    """How many centers: try several numbers on some of the clients for a few rounds; the test has no say.

    Example: polycentric choose-k fesem --data digits --partition rotations=4 --clients 40 --set epochs=5
    """
    from ..errors import require, unknown
    from ..runs.choose_k import choose_k as chosen_k
    from ..runs.recipes import build_method, parameters
    from ..runs.start import load_data
    from .screen import say, stdout, tell
    from .tables import for_people, k_result

    words = [word.strip() for word in ks.split(",")]
    good = all(w.isascii() and w.isdigit() and len(w) < 7 for w in words)
    require(good, f"--ks takes whole numbers such as 1,2,4,8, got '{ks}'")
    asked = settings_of(method, options, trust=trust)
    if "k" not in parameters(asked.method):
        raise unknown(f"setting of {asked.method}", "k", parameters(asked.method))
    require("k" not in asked.set, f"k={asked.set.get('k')} is what is chosen: leave it out")
    if by == "valid" and not asked.valid:
        say("note: valid is not set, so a fifth of every client's training examples is held out to choose by")
        asked = asked.changed(valid=0.2)
    recipe = build_method(asked.method, asked.set).recipe
    settings = dict(recipe.arguments) if recipe else {}
    federation = load_data(asked)
    how: dict[str, Any] = {"by": by, "clients": sample, "rounds": rounds, "seed": asked.seed, "model": asked.model}
    k, trials = chosen_k(federation, [int(w) for w in words], method=asked.method, **how, **settings)
    command = command_of(asked.changed(set=asked.set | {"k": k}))
    if as_json:
        tell({"k": k, "by": by, "trials": [vars(trial) for trial in trials], "command": command})
        return
    stdout.print(for_people(k_result(trials, by)))
    stdout.print(f"k = {k}; {command}", soft_wrap=True)
