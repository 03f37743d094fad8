"""How much of itself a client should trust: alone, together, and the best mixture; by simulation and by formula."""

import torch

import polycentric as pc
from polycentric.topology.mixture import best_share, mixture_error

devices, between, noise = 10, 0.5, 0.3  # variance of what devices should learn, and of what few examples add to it
draw = torch.Generator().manual_seed(0)
target = between**0.5 * torch.randn(20_000, devices, generator=draw)
alone = target + noise**0.5 * torch.randn(20_000, devices, generator=draw)
together = alone.mean(1, keepdim=True)

best = best_share(between, noise)
print("share of itself   simulated   formula")
for name, share in (("local, 1", 1.0), ("global, 0", 0.0), ("a half", 0.5), (f"best, {best:g}", best)):
    found = (share * alone + (1 - share) * together - target).square().mean()
    print(f"{name:15} {found:11.4f} {mixture_error(share, devices, between, noise):9.4f}")

# The same choice for a model: all of it local, all of it global, or layers of both kinds.
federation = pc.load("digits", partition="shards=2", clients=20)
training = {"lr": 0.1, "epochs": 2}
ways = {
    "local": pc.nofed(**training),
    "global": pc.fedavg(**training),
    "local features": pc.lg_fedavg(warm_up=5, **training),
}
print("\nway              own clients   never seen: average  ensemble   vote")
for name, method in ways.items():
    run = pc.run(method, federation, model="mlp", rounds=10, evaluate_every=10, fine_tune=0, unseen=True)
    new = [run.summary()["unseen"][way]["micro_accuracy"] for way in ("average", "ensemble", "vote")]
    print(f"{name:14} {run.metrics['micro_accuracy']:11.1%} {new[0]:20.1%} {new[1]:9.1%} {new[2]:7.1%}")
