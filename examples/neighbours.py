"""No center: clients on a graph average with their neighbours; what a sparser graph costs and saves."""

import polycentric as pc
from polycentric.topology.graphs.networks import Complete, ErdosRenyi, Ring

federation = pc.load("digits", partition="iid", clients=16)
training = {"lr": 0.1, "steps": 4}
ways = {
    "ring": pc.dpsgd(graph=Ring(), **training),
    "random, 30 % of links": pc.dpsgd(graph=ErdosRenyi(0.3), **training),
    "everybody": pc.dpsgd(graph=Complete(), **training),
    "matcha, half a ring": pc.matcha(graph=Ring(), budget=0.5, **training),
}

print("graph                    micro   models apart   sent up")
for name, method in ways.items():
    run = pc.run(method, federation, model="mlp", rounds=8, evaluate_every=8)
    micro, apart = run.metrics["micro_accuracy"], run.history[-1]["consensus"]
    print(f"{name:22} {micro:7.1%} {apart:14.2f} {run.tally.bytes_up / 1e6:6.1f} MB")

# How fast they agree is known before anybody trains: zeta is 0 where all agree at once, 1 where they never do.
for graph in (Ring(), ErdosRenyi(0.3), Complete()):
    print(graph, f"zeta {pc.dpsgd(graph=graph).exchanges[0].topology.facts(16)['zeta']:.2f}")
