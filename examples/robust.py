"""A fifth of twenty clients attacks; the mean follows them, robust rules do not."""

import polycentric as pc

federation = pc.load("digits", partition=pc.Iid(20))
rules = {
    "mean": pc.Mean(),
    "median": pc.Median(),
    "geometric": pc.GeometricMedian(),
    "krum": pc.Krum(0.2),
}
attacks = {
    "honest": None,
    "sign flip": pc.SignFlip(0.2, scale=5.0),
    "large norm": pc.LargeNorm(0.2),
    "collusion": pc.SameValue(0.2),
    "label flip": pc.LabelFlip(0.2),
}

print("rule      ", *(f"{name:>11}" for name in attacks))
for name, rule in rules.items():
    method = pc.fedavg(lr=0.1, epochs=5, equal=True, aggregate=rule)
    runs = [pc.run(method, federation, rounds=2, fine_tune=0, attack=attack) for attack in attacks.values()]
    print(f"{name:10}", *(f"{run.metrics['micro_accuracy']:11.1%}" for run in runs))
