"""A client between two groups: its center alone, a mixture of both centers' parameters, or of their answers.

    python benchmarks/soft_membership.py --seeds 10

Digits, upright and turned by half a turn, 40 clients, of whom `--between` have half of their examples from either
group. FeSEM(2) for 30 rounds; then, for the clients between and by their training examples only:

    hard         c_r                                 the center where it was put
    by loss      c_k,  k = argmin F_i(c_k)
    parameters   s c_1 + (1 - s) c_2                 s of the lowest loss among 0, 0.1, ..., 1
    answers      s p_1(x) + (1 - s) p_2(x)           s by expectation and maximisation (20 iterations)
"""

import argparse
import statistics
from dataclasses import replace
from math import sqrt

import torch
from torch import Tensor

import polycentric as pc
from polycentric.data.federation import Split


def mixed(federation: pc.Federation, between: int) -> tuple[pc.Federation, Tensor]:
    """The federation with every second example of some clients turned, and who they are."""
    chosen = torch.zeros(federation.n_clients, dtype=torch.bool)
    chosen[torch.linspace(0, federation.n_clients - 1, between).round().long()] = True

    def turned(split: Split) -> Split:
        these = chosen[split.owner] & (torch.arange(len(split)) % 2 == 0)
        return replace(split, x=torch.where(these.view(-1, *[1] * (split.x.dim() - 1)), split.x.flip(-1, -2), split.x))

    splits = {name: turned(getattr(federation, name)) for name in ("train", "test")}
    return replace(federation, **splits, source=None, group=None), chosen


def of_client(split: Split, client: int) -> slice:
    """Where a client's examples are."""
    first = int(split.first[client])
    return slice(first, first + int(split.sizes[client]))


def measured(seed: int, between: int) -> dict[str, float]:
    """The accuracy over test examples of the clients between, by way of serving them."""
    federation, chosen = mixed(pc.load("digits", partition=pc.Rotations(2), clients=40, seed=seed), between)
    how = {"rounds": 30, "seed": seed, "fine_tune": 0, "evaluate_every": 30, "model": "mlp"}
    run = pc.run(pc.fesem(k=2, lr=0.1, epochs=2), federation, **how)
    one = pc.run(pc.fedavg(lr=0.1, epochs=2, equal=True), federation, **how)
    task, centers, place = run.clients.task, run.state.centers["model"], run.state.memory["assignment"]
    train, test, right = federation.train, federation.test, dict[str, list[float]]()

    def answers(row: Tensor, split: Split, at: slice) -> Tensor:
        with torch.no_grad():
            return task.predict({"model": row}, task.inputs(split.x[at])).softmax(-1)

    for client in chosen.nonzero()[:, 0].tolist():
        mine, judged = of_client(train, client), of_client(test, client)
        y, truth = train.y[mine], test.y[judged]

        def fit(row: Tensor) -> float:
            return float(-answers(row, train, mine).gather(1, y[:, None]).log().mean())  # noqa: B023

        shares = [s / 10 for s in range(11)]
        best = min(shares, key=lambda s: fit(s * centers[0] + (1 - s) * centers[1]))
        likely = torch.stack([answers(row, train, mine).gather(1, y[:, None])[:, 0] for row in centers])
        share = torch.tensor([0.5, 0.5])
        for _ in range(20):
            belongs = share[:, None] * likely
            share = (belongs / belongs.sum(0)).mean(1)
        both = torch.stack([answers(row, test, judged) for row in centers])
        served = {
            "one center": answers(one.state.centers["model"][0], test, judged),
            "hard": both[int(place[client])],
            "by loss": both[min((0, 1), key=lambda k: fit(centers[k]))],
            "parameters": answers(best * centers[0] + (1 - best) * centers[1], test, judged),
            "answers": (share[:, None, None] * both).sum(0),
        }
        for name, found in served.items():
            right.setdefault(name, []).extend((found.argmax(1) == truth).double().tolist())
    return {name: 100 * statistics.fmean(found) for name, found in right.items()}


def main() -> None:
    """Print the mean over seeds, and the paired difference to the center alone with its standard error."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--between", type=int, default=10, help="clients between the groups, of 40")
    asked = parser.parse_args()
    found = [measured(seed, asked.between) for seed in range(asked.seeds)]
    for name in found[0]:
        gains = [each[name] - each["hard"] for each in found]
        error = statistics.stdev(gains) / sqrt(len(gains)) if len(gains) > 1 else float("nan")
        mean = statistics.fmean(each[name] for each in found)
        print(f"{name:12s} {mean:5.1f} %   against hard {statistics.fmean(gains):+5.1f} ± {error:.1f} points")


if __name__ == "__main__":
    main()
