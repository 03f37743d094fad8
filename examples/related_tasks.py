"""Related tasks: every client has a task of its own, and learns how the others' are related to it."""

import polycentric as pc

# Twelve clients in two groups that want opposite answers from the same features.
federation = pc.load("digits", partition=pc.Rotations(2), clients=12)
ways = {
    "everybody alone": pc.nofed(lr=0.05, epochs=2),
    "one model for all": pc.fedavg(lr=0.05, epochs=2),
    "dpa-sgd: heads on a ring": pc.dpa_sgd(lr=0.05, steps=None, epochs=2),
    "mtl: shared features, own heads": pc.mtl(lr=0.05, epochs=2),
}

print("way                               micro   worst tenth")
for name, method in ways.items():
    run = pc.run(method, federation, model="mlp", rounds=6, evaluate_every=6)
    print(f"{name:31} {run.metrics['micro_accuracy']:7.1%} {run.metrics['worst_decile_accuracy']:13.1%}")

# What mtl found: how much a client's task pulls at another's, on average within and between the two groups.
omega = run.state.memory["covariance"].view(12, 12)
same = federation.group[:, None] == federation.group
other = ~same
same.fill_diagonal_(False)
print(f"covariance within groups {omega[same].mean():.4f}, between them {omega[other].mean():.4f}")
