"""A method of your own, in fifteen lines: clients gossip on a ring, each with its own model, no center."""

import networkx

import polycentric as pc


def gossip(graph: networkx.Graph, *, select=pc.Everyone(), **training) -> pc.Method:
    """D-PSGD: train a little, then average with your neighbours.

    client k:   w_k  <-  sum_j M_kj (w_j after its epochs),     M the Metropolis weights of the graph
    """
    return pc.Method.of(
        "gossip",
        pc.Exchange(
            learn=(pc.Train(**training),),
            topology=pc.Graph(pc.metropolis(graph)),
            select=select,
        ),
    )


federation = pc.load("digits", partition=pc.Shards(20, per_client=2))
graphs = {"ring": networkx.cycle_graph(20), "everybody": networkx.complete_graph(20)}
for name, graph in graphs.items():
    run = pc.run(gossip(graph, lr=0.1), federation, rounds=10)
    models = run.state.centers["model"]
    apart = (models - models.mean(0)).norm(dim=1).mean()
    sent = run.tally.bytes_up / 1e6
    print(f"{name:10} accuracy {run.metrics['micro_accuracy']:.1%}, models apart {apart:.3f}, sent {sent:.1f} MB")

star = pc.run(pc.fedavg(lr=0.1, equal=True), federation, rounds=10)
print(f"one center accuracy {star.metrics['micro_accuracy']:.1%}, sent {star.tally.bytes_up / 1e6:.1f} MB")
