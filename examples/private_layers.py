"""Layers that stay at home: features or head, what each costs in bytes and gives in accuracy."""

import polycentric as pc

federation = pc.load("digits", partition=pc.Rotations(4), clients=20)
training = {"lr": 0.1, "epochs": 5}
ways = {
    "share everything": pc.fedavg(**training),
    "private features": pc.fedavg(cut=pc.KeepPrivate("dense1*"), **training),
    "private head": pc.fedavg(cut=pc.KeepPrivate("head*"), **training),
    "share nothing": pc.nofed(**training),
}

print("way                 micro   worst tenth   sent a round")
for name, method in ways.items():
    run = pc.run(method, federation, model="mlp", rounds=5)
    micro, worst = run.metrics["micro_accuracy"], run.metrics["worst_decile_accuracy"]
    print(f"{name:17} {micro:7.1%} {worst:13.1%} {run.tally.bytes_up / 5 / 1e3:11.1f} kB")

# What is private lives in the state by client and never leaves; a center alone is not a whole model.
run = pc.run(ways["private features"], federation, model="mlp", rounds=1)
print("at the center:", {name: tuple(rows.shape) for name, rows in run.state.centers.items()})
print("at the clients:", {name: tuple(rows.shape) for name, rows in run.state.kept.items()})
whole = run.model_of(client=7)
try:
    run.model_of(center=0)
except pc.UsageError as mistake:
    print("no model of the center:", mistake)
