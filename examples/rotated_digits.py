"""FedAvg on rotated digits, client by client: the mean hides who is served badly.

40 clients, four rotations, one shared model; every client is also trained alone.
"""

import polycentric as pc
from polycentric.runs.metrics import share_below

federation = pc.load("digits", partition=pc.Rotations(4), clients=40)
together = pc.run(pc.fedavg(lr=0.1, epochs=5), federation, rounds=15)
alone = pc.run(pc.nofed(lr=0.1, epochs=5), federation, rounds=15)

print("rotation   clients   together   alone")
for g, name in enumerate(federation.group_names):
    those = (federation.group == g).numpy()
    a, b = (run.scores["in_use"].accuracy[those].mean() for run in (together, alone))
    print(f"{name:>8} {those.sum():9} {a:10.1%} {b:7.1%}")

accuracy = together.scores["in_use"].accuracy
print("\nthe five clients served worst:")
for k in accuracy.argsort()[:5].tolist():
    print(f"  client {federation.clients[k]:>2}: {accuracy[k]:.1%}, alone {alone.scores['in_use'].accuracy[k]:.1%}")

below = share_below(together.scores["in_use"], alone.scores["in_use"])
print(f"\n{below:.0%} of the clients would have done better alone")
