"""Several centers: clients in hidden groups, found by four methods without being told."""

import polycentric as pc

federation = pc.load("digits", partition=pc.Rotations(2), clients=20)  # half of the clients see digits upside down
training = {"lr": 0.1, "epochs": 3}
ways = {
    "one center": pc.fedavg(**training),
    "fesem, two centers": pc.fesem(k=2, **training),
    "ifca, two centers": pc.ifca(k=2, **training),
    "fesem counts them": pc.fesem(k="auto", **training),
}

print("way                  micro   worst tenth   centers   as the groups")
for name, method in ways.items():
    run = pc.run(method, federation, model="mlp", rounds=8, evaluate_every=8)
    micro, worst = run.metrics["micro_accuracy"], run.metrics["worst_decile_accuracy"]
    place = run.places.get(run.state.round)  # every client's center, after the last round
    pairs = set(zip(place, federation.group.tolist(), strict=True)) if place else set()
    found = "yes" if len(pairs) == 2 else "no" if place else "-"
    centers = len(set(place)) if place else 1
    print(f"{name:18} {micro:7.1%} {worst:13.1%} {centers:9} {found:>15}")
