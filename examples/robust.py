"""Three of twenty clients send garbage; the mean follows them, robust rules do not."""

from dataclasses import dataclass

import torch

import polycentric as pc
from polycentric.learn import Learner, Plan


@dataclass(frozen=True)
class Lie(Learner):
    """Some clients send noise in place of what they learned: a learner that takes no step of its own."""

    who: tuple[int, ...]

    def plan(self, cohort):
        return Plan(steps=torch.zeros_like(cohort.sizes), batch=None)

    def begin(self, rows, cohort, task):
        return {"model": rows["model"]}

    def step(self, carry, row, batch, client):
        return carry

    def end(self, carry, rows, cohort):
        noise = torch.randn(carry["model"].shape, generator=torch.Generator().manual_seed(cohort.round))
        lies = torch.isin(cohort.index, torch.tensor(self.who))[:, None]
        return {"model": torch.where(lies, 10 * noise, carry["model"])}


def method(name: str, rule, *learners: Learner) -> pc.Method:
    return pc.Method.of(name, pc.Exchange(learn=learners, topology=pc.Star(equal=True), aggregate=rule))


federation = pc.load("digits", partition=pc.Iid(20))
train, lie = pc.Train(lr=0.1, epochs=5), Lie(who=(3, 8, 11))
rules = {"mean": pc.Mean(), "median": pc.Median(), "trimmed": pc.TrimmedMean(0.2), "krum": pc.Krum(0.2)}

print("rule       honest   3 of 20 lie")
for name, rule in rules.items():
    honest = pc.run(method(name, rule, train), federation, rounds=3, fine_tune=0)
    attacked = pc.run(method(name, rule, train, lie), federation, rounds=3, fine_tune=0)
    print(f"{name:9} {honest.metrics['micro_accuracy']:7.1%} {attacked.metrics['micro_accuracy']:11.1%}")
