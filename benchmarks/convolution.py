"""Convolutions of a stack of clients on a GPU: ours against cuDNN's grouped ones, alone and in a whole step.

    python benchmarks/convolution.py            # whole rounds, every convolution, where their time goes, a check
    python benchmarks/convolution.py --tiles    # other tiles as well
    python benchmarks/convolution.py --check    # only how far both are from float64

The net is the FEMNIST-type CNN 5x5x32 - 5x5x64 - 512 - 62 on 28 x 28. A time is that of a captured CUDA graph of many
calls, so that launching costs nothing; the fastest of a few replays counts.
"""

from __future__ import annotations

import argparse
import copy
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from unittest import mock

import torch
from torch import Tensor

from polycentric.learn.execute.captured import Graphs
from polycentric.learn.execute.stacked import launch
from polycentric.learn.gpu import convolve, overrides as instead
from polycentric.learn.gpu.convolve import ConvShape, Tile
from polycentric.runs.bench import Race, Workload, federation
from polycentric.runs.machine import device_of
from polycentric.tasks.task import Task

COHORTS = ((100, 20), (20, 10), (10, 10), (5, 10))
LAYERS = {"conv1": (1, 32, 28), "conv2": (32, 64, 14)}
BEGAN = time.perf_counter()


def say(*words: object) -> None:
    print(f"[{time.perf_counter() - BEGAN:5.1f}]", *words, flush=True)


def milliseconds(call: Callable[[], object], calls: int = 10, replays: int = 3) -> float:
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(2):
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            call()
    return fastest(graph.replay, replays) / calls


def fastest(call: Callable[[], object], times: int = 3) -> float:
    """Milliseconds on the GPU."""
    call()
    best = float("inf")
    for _ in range(times):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        call()
        end.record()
        torch.cuda.synchronize()
        best = min(best, begin.elapsed_time(end))
    return best


class Layer:
    """One convolution of every client: its images, weights, and a gradient of its result."""

    def __init__(self, name: str, clients: int, batch: int) -> None:
        channels, self.out, side = LAYERS[name]
        self.how = ConvShape((side, side), (5, 5), (1, 1), (2, 2))
        self.x = torch.randn(clients, batch, channels, side, side, device="cuda")
        self.w = torch.randn(clients, self.out, channels, 5, 5, device="cuda") / (channels * 25) ** 0.5
        self.b = torch.randn(clients, self.out, device="cuda")
        self.g = torch.randn(clients, batch, self.out, side, side, device="cuda")

    def double(self) -> Layer:
        """The same in float64."""
        other = copy.copy(self)
        other.x, other.w, other.b, other.g = (t.double() for t in (self.x, self.w, self.b, self.g))
        return other

    @property
    def calls(self) -> dict[str, Callable[[], Tensor]]:
        return {
            "forward": lambda: convolve._Convolution.forward(self.x, self.w, self.b, self.how),
            "gradient x": lambda: convolve._GradientInX.forward(self.g, self.w, self.how),
            "gradient w": lambda: convolve._GradientInW.forward(self.x, self.g, self.how),
        }

    @property
    def gigaflops(self) -> float:
        return 2e-9 * self.g.numel() * self.w[0, 0].numel()


def by_cudnn() -> mock._patch[Callable[..., str]]:
    return mock.patch.object(convolve, "backend", lambda a, b: "torch")


@contextmanager
def rounding(tf32: bool) -> Iterator[None]:
    """Whether convolutions may round float32 factors to TF32, as torch lets them unless told otherwise."""
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = tf32
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = before


def check() -> None:
    """How far ours and cuDNN's are from float64, over the largest number; and whether twice gives the same bits."""
    for name in LAYERS:
        layer = Layer(name, 5, 10)
        exact = {what: call() for what, call in layer.double().calls.items()}
        for tf32, allowed in ((False, 1e-5), (True, 3e-3)):
            with rounding(tf32):
                for what, call in layer.calls.items():
                    mine, again = call(), call()
                    with by_cudnn():
                        theirs = call()
                    off, they = (float((t - exact[what]).abs().max() / exact[what].abs().max()) for t in (mine, theirs))
                    same = torch.equal(mine, again)
                    fine = off < allowed and same
                    say(
                        f"{'fine ' if fine else 'WRONG'} {'tf32' if tf32 else 'fp32'} {name} {what}: ours off by "
                        f"{off:.1e}, cuDNN by {they:.1e}; {'the same' if same else 'OTHER'} bits twice"
                    )


def race(clients: int, steps: int, batch: int) -> Race:
    work = Workload("mnist-cnn", (1, 28, 28), 62, clients)
    data = federation(work, clients, steps * batch).to("cuda")
    return Race(work, Task.of(data, "mnist-cnn", device="cuda"), data, steps, batch)


def whole(clients: int, steps: int, batch: int) -> None:
    """A round of FedAvg with Stacked, and its captured steps alone."""
    torch.cuda.empty_cache()
    it = race(clients, steps, batch)
    limit = it.others()["limit"]
    models, said = {}, []
    for name, triton in (("cuDNN", False), ("ours", True)):
        with mock.patch.object(instead, "has_triton", lambda triton=triton: triton):
            way, simulation = it.ours("stacked")
            models[name] = way()
            way()
            took = min(seconds(way) for _ in range(5))
            graph = next(iter(simulation.run.scan.graphs.values()), None)
            alone = float("nan") if graph is None else stretch(graph, clients, steps)
            with mock.patch.object(Graphs, "take", lambda *_: None):
                way()
                rest = min(seconds(way) for _ in range(5))
            said.append(f"{name} {1e3 * took:.2f} ms (its steps {alone:.2f}, all else {1e3 * rest:.2f})")
            del way, simulation, graph
    limit()
    said.append(f"limit {1e3 * min(seconds(limit) for _ in range(5)):.2f} ms")
    kind = "tf32" if torch.backends.cudnn.allow_tf32 else "fp32"
    differ = (models["cuDNN"] - models["ours"]).abs().max().item()
    say(f"{kind} {clients} x {steps} x {batch}: {', '.join(said)}; models differ by {differ:.1e} at most")


def whole_in_fp32() -> None:
    with rounding(False):
        whole(100, 10, 20)


def stretch(graph: Graphs, clients: int, steps: int) -> float:
    """Milliseconds of so many captured steps."""

    def once() -> None:
        graph.at.zero_()
        for _ in range(steps):
            graph.replays[clients]()

    return fastest(once)


def seconds(way: Callable[[], object]) -> float:
    torch.cuda.synchronize()
    began = time.perf_counter()
    way()
    torch.cuda.synchronize()
    return time.perf_counter() - began


def profile(clients: int, steps: int, batch: int, rows: int = 24) -> None:
    """Kernels of one round by time, launched one by one."""
    from torch.profiler import ProfilerActivity

    way, simulation = race(clients, steps, batch).ours("stacked")
    simulation.run.scan = launch
    way()
    with torch.profiler.profile(activities=[ProfilerActivity.CUDA]) as seen:
        way()
        torch.cuda.synchronize()
    kernels = sorted(seen.key_averages(), key=lambda k: -k.self_device_time_total)
    total = sum(k.self_device_time_total for k in kernels)
    say(f"kernels of {steps} steps of {clients} clients x {batch}: {total / 1e3:.2f} ms")
    for k in kernels[:rows]:
        say(f"  {k.self_device_time_total / 1e3:8.3f} ms {k.count:5d} x  {k.key[:110]}")


def layers() -> None:
    for clients, batch in COHORTS:
        for name in LAYERS:
            layer = Layer(name, clients, batch)
            for what, call in layer.calls.items():
                if (name, what) == ("conv1", "gradient x"):
                    continue  # nobody asks for it
                with by_cudnn():
                    theirs = milliseconds(call)
                mine = milliseconds(call)
                say(
                    f"{clients:4d} x {batch} {name} {what}: cuDNN {theirs:7.3f} ms, ours {mine:7.3f} ms, "
                    f"{layer.gigaflops / mine:6.1f} TFLOP/s"
                )


def tried(words: str, layer: Layer, call: Callable[[], Tensor]) -> None:
    try:
        took = milliseconds(call)
    except Exception as error:  # too much shared memory: told, and passed over
        say(words, f"{type(error).__name__}: {str(error)[:80]}")
        return
    say(words, f"{took:7.3f} ms {layer.gigaflops / took:6.1f} TFLOP/s")


def tiles() -> None:
    for (clients, batch), some in ((COHORTS[0], None), (COHORTS[1], 2)):
        for name in LAYERS:
            other_tiles(f"{clients} x {batch} {name}", name, Layer(name, clients, batch), some)


def other_tiles(where: str, name: str, layer: Layer, some: int | None) -> None:
    x, w, b, g, how = layer.x, layer.w, layer.b, layer.g, layer.how
    around = convolve.Frame((how.image[0] + 4, how.image[1] + 4), (2, 2))
    say(where, f"x framed, channels last {milliseconds(lambda: convolve._laid(x, around, True)):7.3f} ms")
    say(where, f"x framed, channels first {milliseconds(lambda: convolve._laid(x, around)):7.3f} ms")
    say(where, f"g framed, channels last {milliseconds(lambda: convolve._laid(g, around, True)):7.3f} ms")
    say(where, f"weights turned {milliseconds(lambda: w.flip(3, 4).permute(0, 2, 3, 4, 1).contiguous()):7.3f} ms")
    say(where, f"sum of g {milliseconds(lambda: g.sum((1, 3, 4))):7.3f} ms")
    for t in PRODUCT[name][:some]:
        tried(f"{where} forward {tuple(t)}", layer, partial(convolve.product, x, w, b, how, t))
    for t in IN_X[:some] if name == "conv2" else ():
        tried(f"{where} gradient x {tuple(t)}", layer, partial(convolve.gradient_in_x, g, w, how, t))
    for t in WEIGH[name][:some]:
        for parts in PARTS[name, len(x)]:
            words = f"{where} gradient w {tuple(t)} {parts} parts"
            tried(words, layer, partial(convolve.gradient_in_w, x, g, how, t, parts))


PRODUCT = {
    "conv1": [Tile(128, 32, 32, 4, 2), Tile(64, 32, 32, 4, 2), Tile(64, 32, 32, 2, 2)],
    "conv2": [
        Tile(128, 64, 32, 4, 3),
        Tile(64, 64, 32, 4, 3),
        Tile(128, 64, 32, 4, 4),
        Tile(128, 64, 32, 4, 1),
        Tile(128, 64, 32, 8, 3),
        Tile(256, 64, 32, 8, 3),
    ],
}
IN_X = [
    Tile(128, 32, 32, 4, 3),
    Tile(64, 32, 32, 4, 3),
    Tile(128, 32, 32, 4, 1),
    Tile(128, 32, 64, 4, 3),
    Tile(256, 32, 32, 8, 3),
]
WEIGH = {
    "conv1": [Tile(32, 32, 32, 4, 3), Tile(32, 32, 64, 4, 3)],
    "conv2": [
        Tile(64, 64, 32, 4, 3),
        Tile(64, 128, 32, 8, 3),
        Tile(64, 128, 32, 4, 3),
        Tile(64, 64, 32, 4, 4),
        Tile(64, 64, 64, 4, 3),
    ],
}
PARTS = {("conv1", 100): (4, 16), ("conv2", 100): (1,), ("conv1", 20): (8, 32), ("conv2", 20): (2, 4)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare the numbers, measure nothing")
    parser.add_argument("--tiles", action="store_true", help="try other tiles as well")
    arguments = parser.parse_args()
    device_of("cuda")
    say(torch.cuda.get_device_name(), "torch", torch.__version__)
    wanted: list[Callable[[], None]] = [check]
    if not arguments.check:
        wanted = [partial(whole, clients, 10, batch) for clients, batch in ((100, 20), (20, 10), (5, 10))]
        wanted += [whole_in_fp32, layers, partial(profile, 100, 10, 20), partial(profile, 20, 10, 10, 12), check]
    if arguments.tiles:
        wanted.append(tiles)
    failed = 0
    for part in wanted:
        try:
            part()
        except Exception:  # the others are worth having
            failed += 1
            say(traceback.format_exc())
    raise SystemExit(failed)


if __name__ == "__main__":
    main()
