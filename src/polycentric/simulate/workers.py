"""Blocks learned beside each other, by threads."""

import copy
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

import torch
from torch import Tensor

from ..data import Split
from ..errors import require
from ..learn import Executor
from ..learn.execute.stackable import draws
from ..round import Answer
from ..stacks.cohort import Cohort
from ..tasks.task import Task


class Workers:
    """Threads, each with an executor of its own and one math thread; answers come in the order of their blocks.

    An executor has a module of its own: a module is no function, its parameters are put in while it is called.
    """

    def __init__(self, n: int, kind: Callable[[Task, Split], Executor], task: Task, split: Split) -> None:
        self.n, self.kind, self.task, self.split = n, kind, task, split
        self.runs: list[Executor] = []  # of the threads that have begun
        self._mine = threading.local()
        self._threads = ThreadPoolExecutor(n, thread_name_prefix="polycentric")

    def each(self, answer: Callable[[Cohort, Executor], Answer], blocks: Sequence[Cohort]) -> Iterator[Answer]:
        """The answer of every block."""
        waiting: deque[Future[Answer]] = deque()
        for block in blocks:  # a few ahead: an answer may be as large as all its block's models
            waiting.append(self._threads.submit(lambda block: answer(block, self._run()), block))
            if len(waiting) > self.n:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()

    def _run(self) -> Executor:
        """This thread's executor."""
        if not hasattr(self._mine, "run"):
            torch.set_num_threads(1)
            self._mine.run = self.kind(replace(self.task, module=copy.deepcopy(self.task.module)), self.split)
            self.runs.append(self._mine.run)
        run: Executor = self._mine.run
        return run


def check_workers(n: int, task: Task, x: Tensor) -> None:
    """Refuse workers that could not work beside each other; `x` are a few examples."""
    require(n >= 1, f"workers must be at least 1, got {n}")
    if n == 1:
        return
    require(
        task.device.type == "cpu",
        f"workers > 1 needs device=cpu, and the device is {task.device}: use --workers 1 or --device cpu",
    )
    require(
        not draws(task, x),
        f"{type(task.module).__name__} draws random numbers by itself (dropout), so several workers would "
        "not give the same result twice: use --workers 1",
    )
