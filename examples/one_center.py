"""One center: FedAvg and what is built around it, on clients whose labels differ."""

import polycentric as pc

federation = pc.load("digits", partition="dirichlet=0.1", clients=20)
training = {"lr": 0.1, "epochs": 2}
ways = {
    "fedavg": pc.fedavg(**training),
    "fedprox, mu 0.1": pc.fedprox(mu=0.1, **training),
    "5 of 20 a round": pc.fedavg(select=pc.Uniform(n=5), **training),
    "momentum at the center": pc.fedavg(center=pc.Momentum(lr=1.0, beta=0.5), **training),
}

print("way                      micro   worst tenth   sent up")
for name, method in ways.items():
    run = pc.run(method, federation, model="mlp", rounds=6, evaluate_every=6)
    micro, worst = run.metrics["micro_accuracy"], run.metrics["worst_decile_accuracy"]
    print(f"{name:22} {micro:7.1%} {worst:13.1%} {run.tally.bytes_up / 1e6:8.1f} MB")

# Who averages with whom is a pair of matrices, which can be looked at.
everyone = run.clients.everyone(0)
star = run.method.exchanges[0].topology
print("down:", star.down({}, everyone, "model").shape, " up:", star.up({}, everyone, "model").shape)
