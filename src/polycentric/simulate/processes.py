"""Processes that work beside each other: copies of this one (fork), which have its data, model and method as they are.

    this process     a state, a piece of work ->| shared |-> the answer, taken in the order of the pieces
    worker 1 .. n                               | memory |-> learn, mix ->

A job is a function of a state and a piece of work, known to a worker since it was forked: a new job forks new workers.
So nothing has to be written down to be sent but tensors, which lie in shared memory, and short JSON texts about them:
nothing is pickled, and no example is copied. Every worker has one math thread and an executor of its own; whoever is
free takes the next piece, and answers come in the order of the pieces, so that the results are those of one process.

A worker whose job fails says so, and this process does the piece itself, to fail in the same way. A worker that ends is
missed at once (`Lost`), and workers end with this process, however it ends.
"""

from __future__ import annotations

import builtins
import ctypes
import gc
import json
import os
import selectors
import signal
import socket
import struct
import sys
import threading
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch

from ..errors import Lost
from ..method import State
from ..stacks.all_rows import beside
from .shared_memory import Parcel, Segment, Segments, bytes_of

AHEAD = 2  # pieces that a worker is given beyond the one it works on: it need not wait for this process
WINDOW = 4  # pieces for every worker that may be done before their turn: bounds what is held
HELD = 8  # answers of a worker that are read where they lie; whoever holds more has copies of the others
ASKED = (signal.SIGINT, signal.SIGTERM)  # to end
DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG: a worker ends with the process that forked it


@dataclass(frozen=True, eq=False)
class Piece:
    """Some work: words and tensors."""

    words: Mapping[str, Any] = field(default_factory=dict)  # whatever JSON has
    tensors: Parcel = field(default_factory=dict)
    work: float = 1.0  # how much it is, beside the others


Job = Callable[[State, Piece], Parcel]


def available() -> bool:
    """Whether this process can be copied: a system that forks, and no GPU that it has used."""
    return hasattr(os, "fork") and hasattr(socket, "send_fds") and not torch.cuda.is_initialized()  # type: ignore[no-untyped-call]


class Processes:
    """So many workers, forked when there is work for them."""

    def __init__(self, n: int) -> None:
        self.n, self.pid = n, os.getpid()
        self._jobs: list[tuple[tuple[object, ...], Job]] = []
        self._workers: list[Worker] = []
        self._lines: selectors.BaseSelector | None = None  # those of the workers; made anew with them
        weakref.finalize(self, _end, self.pid, self._workers)
        self._segments = Segments()
        self._taken = threading.Lock()  # by whoever is being answered

    def each(
        self, key: tuple[object, ...], job: Job, state: State, n: int, piece: Callable[[int], Piece]
    ) -> Iterator[Parcel]:
        """What a job makes of pieces 0 to n - 1, in their order. `key`: the very objects that the job is made of.

        Workers answer one asker at a time: for a second one, meanwhile, this process does the job.
        """
        if not self._taken.acquire(blocking=False):
            yield from (job(state, piece(k)) for k in range(n))
            return
        try:
            yield from self._each(self._known(key, job), job, state, n, piece)
        finally:
            self._taken.release()

    def _each(self, number: int, job: Job, state: State, n: int, piece: Callable[[int], Piece]) -> Iterator[Parcel]:
        self._publish(state)
        pieces: dict[int, Piece] = {}  # that workers have
        done: dict[int, Parcel] = {}
        sent, whole = 0, False
        try:
            for want in range(n):
                while want not in done:
                    lines = self._lines
                    if lines is None:
                        raise Lost("the workers were ended before they had answered")
                    while sent < n and sent < want + WINDOW * self.n:
                        worker = min(self._workers, key=lambda w: (w.work, len(w.asked)))
                        if len(worker.asked) >= AHEAD:
                            break
                        pieces[sent] = piece(sent)
                        worker.ask(sent, number, pieces[sent])
                        sent += 1
                    for line, _ in lines.select():
                        at, answer = line.data.heard()
                        mine = pieces.pop(at)
                        done[at] = job(state, mine) if answer is None else answer
                yield done.pop(want)
            whole = True
        finally:
            if not whole:  # workers are still at work on what nobody wants any more
                self.close()

    def close(self) -> None:
        """End the workers; the next piece of work forks new ones."""
        lines, self._lines = self._lines, None
        if lines is not None:
            lines.close()
        _end(self.pid, self._workers)

    def _known(self, key: tuple[object, ...], job: Job) -> int:
        """The number of a job; workers that do not know it are replaced."""
        keys = [known for known, _ in self._jobs]
        number = next((k for k, known in enumerate(keys) if _same(known, key)), len(keys))
        if number == len(keys):
            self.close()
            self._jobs.append((key, job))
        if not self._workers:
            self._segments = Segments()  # which the new workers have not seen
            for _ in range(self.n):
                self._workers.append(_forked([job for _, job in self._jobs], self._workers))
            self._lines = selectors.DefaultSelector()  # `select` by itself knows 1024 descriptors
            for worker in self._workers:
                self._lines.register(worker.line, selectors.EVENT_READ, worker)
        return number

    def _publish(self, state: State) -> None:
        """Write down what workers read of a state: nobody is at work, so the last one may be written over."""
        parcel = {"centers": state.centers, "memory": state.memory}
        at, segment, new = self._segments.take(bytes_of(parcel))
        self._segments.free.add(at)
        message = {"state": segment.write(parcel), "round": state.round}
        for worker in self._workers:
            worker.tell(message, segment.descriptor if new else None)


class Worker:
    """This process's side of a worker."""

    def __init__(self, pid: int, line: socket.socket) -> None:
        self.pid, self.line = pid, line
        self.asked: deque[tuple[int, int, float]] = deque()  # (piece, segment it lies in, work) not answered yet
        self._mine = Segments()
        self._theirs: dict[int, Segment] = {}
        self._read: list[int] = []  # its segments that nobody reads any more, to be told
        self._held = 0  # its segments that somebody reads

    @property
    def work(self) -> float:
        """What it has not answered yet."""
        return sum(work for _, _, work in self.asked)

    def ask(self, number: int, job: int, piece: Piece) -> None:
        """Give it a piece of work."""
        at, segment, new = self._mine.take(bytes_of(piece.tensors))
        free, self._read = self._read, []
        told = {"job": job, "words": dict(piece.words), "in": at, "form": segment.write(piece.tensors), "free": free}
        self.tell(told, segment.descriptor if new else None)
        self.asked.append((number, at, piece.work))

    def tell(self, message: dict[str, Any], descriptor: int | None = None) -> None:
        """Say something."""
        try:
            _send(self.line, message, descriptor)
        except OSError as error:
            raise self._lost() from error

    def heard(self) -> tuple[int, Parcel | None]:
        """(piece, answer) of the piece it was given first; None: it failed."""
        try:
            message, descriptor = _receive(self.line)
        except OSError as error:
            raise self._lost() from error
        if message is None:
            raise self._lost()
        number, at, _ = self.asked.popleft()
        self._mine.free.add(at)
        for category, said in message["said"]:
            warnings.warn(said, getattr(builtins, category, UserWarning), stacklevel=4)
        there: int = message["out"]
        if descriptor is not None:
            self._theirs = {k: v for k, v in self._theirs.items() if k not in message["dropped"]}
            self._theirs[there] = Segment(descriptor)
        if message["failed"]:
            self._read.append(there)
            return number, None
        if self._held == HELD:  # a segment costs descriptors here and there, and a system has few
            self._read.append(there)
            return number, self._theirs[there].copy(message["form"])
        self._held += 1
        return number, self._theirs[there].read(message["form"], lambda: self._let_go(there))

    def _let_go(self, there: int) -> None:
        self._held -= 1
        self._read.append(there)

    def _lost(self) -> Lost:
        how = "was ended"
        with suppress(ChildProcessError):
            status = os.waitpid(self.pid, 0)[1]
            if os.WIFSIGNALED(status):
                name = signal.Signals(os.WTERMSIG(status)).name
                how += f" by {name}" + (", perhaps for want of memory: use fewer --workers" * (name == "SIGKILL"))
        return Lost(f"a worker {how}")


def _same(a: tuple[object, ...], b: tuple[object, ...]) -> bool:
    """Whether two keys have the same objects, and equal words."""
    return len(a) == len(b) and all(x is y or (isinstance(x, str) and x == y) for x, y in zip(a, b, strict=True))


def _end(pid: int, workers: list[Worker]) -> None:
    while workers and os.getpid() == pid:  # a forked copy of this process ends nobody
        worker = workers.pop()
        worker.line.close()
        with suppress(ProcessLookupError, ChildProcessError):
            os.kill(worker.pid, signal.SIGKILL)
            os.waitpid(worker.pid, 0)


# -- the worker's side ---------------------------------------------------------------------------------------


def _forked(jobs: list[Job], others: Sequence[Worker]) -> Worker:
    ours, theirs = socket.socketpair()
    sys.stdout.flush()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # other threads, such as a progress bar's, are not missed
        main, parent = threading.current_thread() is threading.main_thread(), os.getpid()
        before, pid = signal.pthread_sigmask(signal.SIG_BLOCK, ASKED), -1
        try:
            pid = os.fork()
        finally:
            if pid:  # a worker that was interrupted here would go on as the parent does
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
    if pid:
        theirs.close()
        return Worker(pid, ours)
    try:
        for asked in ASKED:  # the parent is asked, too, and ends us
            signal.signal(asked, signal.SIG_IGN)
        gc.freeze()  # what the parent holds is not ours to end
        ours.close()
        for other in others:
            other.line.close()
        if main and sys.platform == "linux":
            ctypes.CDLL(None).prctl(DEATH_SIGNAL, signal.SIGKILL)
            if os.getppid() != parent:
                os._exit(0)
        torch.set_num_threads(1)
        with beside(1):
            _work(theirs, jobs)
    except BaseException:
        os._exit(1)
    os._exit(0)


def _work(line: socket.socket, jobs: list[Job]) -> None:
    """Answer until the line is closed."""
    out, taken, published, state = Segments(), {}, None, State({}, {}, {})
    while True:
        message, descriptor = _receive(line)
        if message is None:
            return
        if "state" in message:
            published = published if descriptor is None else Segment(descriptor)
            assert published is not None
            there = published.read(message["state"])
            state = State(there["centers"], {}, there["memory"], message["round"])
            continue
        if descriptor is not None:
            taken[message["in"]] = Segment(descriptor)
        out.free |= set(message["free"])
        piece, job = Piece(message["words"], taken[message["in"]].read(message["form"])), jobs[message["job"]]
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            try:
                answer, failed = job(state, piece), False
            except Exception:  # not lost: the parent does this piece itself, and fails as one process would
                answer, failed = {}, True
        known = set(out.known)
        at, segment, new = out.take(bytes_of(answer))
        reply = {
            "said": [[type(each.message).__name__, str(each.message)] for each in said],
            "failed": failed,
            "out": at,
            "form": segment.write(answer),
            "dropped": sorted(known - set(out.known)),
        }
        _send(line, reply, segment.descriptor if new else None)


def _send(line: socket.socket, message: dict[str, Any], descriptor: int | None = None) -> None:
    raw = json.dumps(message).encode()
    head = struct.pack("<q?", len(raw), descriptor is not None)
    if descriptor is None:
        line.sendall(head + raw)
        return
    socket.send_fds(line, [head], [descriptor])
    line.sendall(raw)


def _receive(line: socket.socket) -> tuple[dict[str, Any] | None, int | None]:
    """A message and a descriptor that came with it; None: the line is closed."""
    head, descriptors, _, _ = socket.recv_fds(line, 9, 1)
    while 0 < len(head) < 9:
        some = line.recv(9 - len(head))
        head = head + some if some else b""
    if not head:
        return None, None
    size, _ = struct.unpack("<q?", head)
    raw = bytearray()
    while len(raw) < size:
        some = line.recv(min(1 << 20, size - len(raw)))
        if not some:
            return None, None
        raw += some
    return json.loads(raw), descriptors[0] if descriptors else None
