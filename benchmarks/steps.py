"""Milliseconds of one training step of a stack of clients, with and without what makes it faster on a GPU.

    python benchmarks/steps.py                            # all cases on the GPU, and the kernels of the last two ways
    python benchmarks/steps.py --cases 100x20 --precision tf32
    python benchmarks/steps.py --device cpu --small       # does it work at all?

A way is a set of pieces: `pools` (max pools by kernels of our own), `place` (models move in place, layer by layer),
`frames` (zeros around images are written with the images), `lines` (rows begin with a line of memory), `dense` (dense
layers by a kernel of our own).
On a GPU a step is a tenth of ten captured ones, replayed; the fastest of a few counts. `apart` is how far the models
of a way are from those of the plain way after ten steps, `bits` whether two calls gave the same.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from unittest import mock

import torch
from torch import Tensor

from polycentric.learn import Stacked, Train
from polycentric.learn.execute import scan
from polycentric.learn.execute.captured import Graphs
from polycentric.learn.execute.stacked import launch
from polycentric.learn.gpu import convolve, linear as dense, pools
from polycentric.runs.bench import Workload, federation
from polycentric.runs.machine import device_of, use_precision
from polycentric.stacks.cohort import Cohort
from polycentric.tasks.task import Task

CASES = {  # model, shape of an example, classes, clients, batch, momentum
    "100x20": ("mnist-cnn", (1, 28, 28), 62, 100, 20, 0.0),
    "60x10": ("mnist-cnn", (1, 28, 28), 10, 60, 10, 0.9),
    "60x10-small": ("fmnist-cnn", (1, 28, 28), 10, 60, 10, 0.9),
    "30x10-vgg": ("vgg11", (3, 32, 32), 10, 30, 10, 0.9),
}
MOST = ("pools", "frames", "place", "lines")
WAYS = ((), ("pools",), ("frames",), ("place", "lines"), MOST, (*MOST, "dense"))
STEPS = 10
BEGAN = time.perf_counter()


def say(*words: object) -> None:
    print(f"[{time.perf_counter() - BEGAN:5.1f}]", *words, flush=True)


class Case:
    """The same steps of the same clients."""

    def __init__(self, name: str, device: torch.device, small: bool) -> None:
        model, shape, classes, clients, batch, momentum = CASES[name]
        clients, batch = (2, 2) if small else (clients, batch)
        self.steps = 2 if small else STEPS
        data = federation(Workload(model, shape, classes, clients), clients, self.steps * batch).to(device)
        self.task, self.split = Task.of(data, model, device=device), data.train
        self.learner = Train(lr=0.05, batch=batch, momentum=momentum)
        self.rows = {n: row.expand(clients, -1) for n, row in self.task.start().items()}
        ones = torch.ones(clients).double()
        self.cohort = Cohort(torch.arange(clients), data.train.sizes, ones, clients, seed=0, round=0)
        self.words = f"{model}, {clients} x {batch}, momentum {momentum}"

    def executor(self, way: tuple[str, ...]) -> Stacked:
        return Stacked(self.task, self.split, in_place="place" in way)

    def models(self, run: Stacked) -> Tensor:
        return run(self.learner, self.rows, self.cohort)["model"]


@contextmanager
def having(way: tuple[str, ...]) -> Iterator[None]:
    """Our pools, frames, rows and dense layers, or torch's."""
    with ExitStack() as changed:
        if "pools" not in way:
            changed.enter_context(mock.patch.object(pools, "_worth", lambda x: False))
        if "dense" not in way:
            changed.enter_context(mock.patch.object(dense, "_worth", lambda x, w: False))
        if "frames" not in way:
            changed.enter_context(mock.patch.object(convolve, "framed", zeros_and_copies))
        if "lines" not in way:
            changed.enter_context(mock.patch.object(scan, "empty_aligned", end_to_end))
        yield


def end_to_end(like: Tensor) -> Tensor:
    return torch.empty_like(like, memory_format=torch.contiguous_format)


def zeros_and_copies(stack: Tensor, frame: convolve.Frame, last: bool) -> Tensor:
    (c, images, channels, h, w), ((height, width), (top, left), (sh, sw)) = stack.shape, frame
    if frame.size == (h, w):
        return stack.permute(0, 1, 3, 4, 2).contiguous()
    size = (c, images, height, width, channels) if last else (c, images, channels, height, width)
    framed = stack.new_zeros(size)
    inside = framed.permute(0, 1, 4, 2, 3) if last else framed
    inside[..., top : top + h * sh : sh, left : left + w * sw : sw] = stack
    return framed


def milliseconds(call: Callable[[], object], device: torch.device, times: int = 4) -> float:
    best = float("inf")
    for _ in range(times):
        wait(device)
        began = time.perf_counter()
        call()
        wait(device)
        best = min(best, time.perf_counter() - began)
    return 1e3 * best


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def replayed(graph: Graphs, steps: int) -> None:
    (replay,) = graph.replays.values()  # all clients take all steps
    assert replay is not None
    graph.at.zero_()
    for _ in range(steps):
        replay()


def measured(case: Case, device: torch.device, ways: Sequence[tuple[str, ...]]) -> None:
    plain = None
    for way in ways:
        with having(way):
            run = case.executor(way)
            models, again = case.models(run), case.models(run)
            bits = "the same" if torch.equal(models, again) else "OTHER"
            plain = models if plain is None else plain
            off = float((models - plain).abs().max())
            whole = milliseconds(partial(case.models, run), device)
            graph = next(iter(getattr(run.scan, "graphs", {}).values()), None)
            alone = whole if graph is None else milliseconds(partial(replayed, graph, case.steps), device)
        say(
            f"{case.words}: {'+'.join(way) or 'plain':31s} {alone / case.steps:7.3f} ms a step"
            f" ({whole:7.2f} ms all {case.steps} and around them), apart {off:.1e}, {bits} bits twice"
        )
        del run, graph, models, again


def profiled(case: Case, device: torch.device, rows: int, way: tuple[str, ...]) -> None:
    """Kernels of a way by time, launched one by one."""
    from torch.profiler import ProfilerActivity, profile

    cuda = device.type == "cuda"
    run = case.executor(way)
    run.scan = launch
    case.models(run)
    wait(device)
    with profile(activities=[ProfilerActivity.CUDA if cuda else ProfilerActivity.CPU]) as seen:
        case.models(run)
        wait(device)
    found = seen.key_averages()
    spent = {k.key: (k.self_device_time_total if cuda else k.self_cpu_time_total, k.count) for k in found}
    total = sum(own for own, _ in spent.values()) or 1.0
    say(f"{case.words}: {'+'.join(way)}: {total / 1e3 / case.steps:.3f} ms a step in kernels")
    for name, (own, count) in sorted(spent.items(), key=lambda item: -item[1][0])[:rows]:
        each = own / 1e3 / case.steps
        say(f"  {own / total:6.1%} {each:8.4f} ms a step {count / case.steps:6.1f} x  {name[:100]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--precision", default="float32", choices=("float32", "tf32"))
    parser.add_argument("--last", action="store_true", help="the last way only: all pieces together")
    parser.add_argument("--rows", type=int, default=12, help="kernels told of each case")
    parser.add_argument("--small", action="store_true", help="two clients, two steps")
    asked = parser.parse_args()
    device = device_of(asked.device)
    use_precision(asked.precision, device, "float32")
    say(torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu", "torch", torch.__version__)
    for name in asked.cases:
        case = Case(name, device, asked.small)
        measured(case, device, WAYS[-1:] if asked.last else WAYS)
        for way in (WAYS[-1:] if asked.last else WAYS[-2:]) if asked.rows else ():
            with having(way):
                profiled(case, device, asked.rows, way)


if __name__ == "__main__":
    main()
