"""Your own data: numpy arrays become a pool, and a pool becomes a federation."""

import numpy as np
import torch

import polycentric as pc
from polycentric.data import Pool, deal, heterogeneity

# Twelve people with a wrist sensor: 3 channels, 40 times, three gestures; everybody moves a little differently.
rng = np.random.default_rng(0)
n, people, gestures = 1200, 12, ("circle", "wave", "tap")
who, what = rng.integers(people, size=n), rng.integers(len(gestures), size=n)
time = np.linspace(0, 2 * np.pi, 40)
pace = 1 + what + 0.1 * who / people
x = np.stack([np.sin(pace[:, None] * time + shift) for shift in (0, 1, 2)], axis=1)  # (n, channels, time)
x += 2 * rng.normal(size=x.shape)

pool = Pool(
    name="gestures",
    x=torch.from_numpy(x).float(),
    y=torch.from_numpy(what),
    classes=gestures,
    client=torch.from_numpy(who),  # leave it out, and deal with Iid, Dirichlet, ... instead
    clients=tuple(f"person {k}" for k in range(people)),
    note="made by a formula",
)
federation = deal(pool, pc.Natural(), seed=0, test=0.25)
print(federation)
print(f"heterogeneity of labels {heterogeneity(federation):.2f}")

run = pc.run(pc.fedavg(lr=0.1, epochs=2), federation, model="logistic", rounds=10)
print(f"accuracy {run.metrics['micro_accuracy']:.1%}, worst tenth {run.metrics['worst_decile_accuracy']:.1%}")
