"""Edges with overlapping cells: clients between two edges carry models across, and no cloud is needed."""

import polycentric as pc

training = {"lr": 0.1, "epochs": 2}
apart = pc.CellRegions("0:7 1:7 2:7")  # three edges, seven clients each, nobody between them
overlap = pc.CellRegions("0:4 1:4 2:4 0+1:3 1+2:3 0+2:3")
ways = {
    "isolated cells": pc.hierarchical(cells=apart, every=0, **training),
    "a cloud every 3 rounds": pc.hierarchical(cells=apart, every=3, **training),
    "fedmes, 9 in overlaps": pc.fedmes(cells=overlap, **training),
}

print("way                      micro   mean of the edges   simulated seconds")
for name, method in ways.items():
    federation = pc.load("digits", partition="dirichlet=0.3", clients=21)
    run = pc.run(method, federation, model="mlp", rounds=6, evaluate_every=6, clock="normalised(t_c=10)")
    micro, mean = run.metrics["micro_accuracy"], run.metrics["average_accuracy"]
    print(f"{name:22} {micro:7.1%} {mean:19.1%} {run.tally.seconds:19.0f}")
