"""Several processes as one simulation: `torchrun --nproc-per-node 4 -m polycentric run ...`.

Every rank holds the data and the state, and learns its share of a cohort's blocks. Where blocks stream, it also mixes
them, and what a block comes to, a sum for every center that hears it, goes to all others; they add the sums in the
order of the blocks, as one process would:

    rank 0   learn and mix 0, 3 |  0 -> all   1 <-      2 <-      3 -> all  | add 0 1 2 3
    rank 1   learn and mix 1, 2 |  0 <-       1 -> all  2 -> all  3 <-      | add 0 1 2 3

Where mixing must see all rows (graphs, seeding), or where a block's rows are no more than its sums, rows travel; of
what a median must see, every rank is sent some columns (`shared_columns`), and on a graph what its clients hear
(`neighbours`). So nothing in a method, a topology or a round knows
of ranks, what clients keep and what centers remember is the same everywhere, and the bits are those of one process with
the same blocks. The price of FedAvg in blocks of up to 64 clients: every rank receives one model a block.

Only tensors travel, as bytes, and short JSON texts; nothing is ever pickled. Before rows there is always a header over
the host's sockets: a rank that has died is missed there at once, and a silent one after `wait` seconds.
"""

import json
import os
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from importlib import import_module
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from ..errors import Lost, OtherRankFailed, UsageError, require
from ..method import State
from ..round import Answer, Part
from ..stacks.cohort import Cohort
from ..stacks.stack import Stacks, apart, spread
from . import homes
from .parcel import packed, unpacked

Piece = TypeVar("Piece")
# (blocks, what their clients keep where the state does not say it) -> their answers
Learn = Callable[[Sequence[Cohort], Sequence[Stacks] | None], Iterator[Answer | Part]]
# (its answer, at its owner, a block, its owner) -> what of it is known at this rank from then on
PassedOn = Callable[[Answer | Part | None, Cohort, int], Answer | Part]
Empty = Callable[..., Tensor]  # (shape, dtype) -> room for a stack

AHEAD = 4  # blocks a rank learns before answers are passed on: bounds what it holds, and evens out unequal blocks
HEADER = 1 << 10  # bytes of a text that travel in one message
PIECE = 1 << 26  # bytes of a tensor sent at once


@dataclass(frozen=True)
class Ranks:
    """Which of how many processes this is. `Ranks()` is one process alone: nothing is sent."""

    rank: int = 0
    size: int = 1
    wait: float = 600.0  # seconds without a word before another rank counts as lost
    counted: Counter[str] = field(default_factory=Counter, compare=False, repr=False)  # bytes received so far
    by_host: bool = False  # whether tensors on a GPU travel through the host: ranks on one GPU have no other way

    @property
    def first(self) -> bool:
        """Whether this rank writes the folder and speaks; the others are silent."""
        return self.rank == 0

    def answers(
        self, blocks: Sequence[Cohort], learn: Learn, kept: Stacks, passed_on: PassedOn | None = None
    ) -> Iterator[Answer | Part]:
        """The answers of all blocks in their order; each is learned, and mixed if it may be, by one rank only.

        `kept`: what all clients keep; where it has homes, it stays there (`homes`). `passed_on`: how an answer gets
        from its rank to the others; by default all of it does.
        """
        if self.size == 1:
            yield from learn(blocks, None)
            return
        stay, passed_on = homes.HOME in kept, passed_on or self._told
        for begin in range(0, len(blocks), AHEAD * self.size):
            some = blocks[begin : begin + AHEAD * self.size]
            owners = self.owners(some)
            rows = homes.brought(kept, some, owners, self) if stay else []
            own = [block for block, owner in zip(some, owners, strict=True) if owner == self.rank]
            mine = iter(list(learn(own, rows if stay else None)))  # all of them, before anybody is waited for
            came = iter(rows)
            for block, owner in zip(some, owners, strict=True):
                answer = next(mine) if owner == self.rank else None
                told = answer if answer is None or not stay else replace(answer, kept={})
                found = passed_on(told, block, owner)
                if stay and answer is None:
                    found = homes.elsewhere(found, kept, owner)
                elif stay and answer is not None:
                    found = homes.stays(replace(found, kept=answer.kept), block, next(came), owner)
                yield found

    def _told(self, answer: Answer | Part | None, block: Cohort, owner: int) -> Answer | Part:
        """All that a block's owner has of it."""
        there = self.stacks({} if answer is None else packed(answer, block), owner)
        return answer or unpacked(there, block)

    def owners(self, blocks: Sequence[Cohort]) -> list[int]:
        """Who learns which block: some are dealt at a time."""
        some = (blocks[begin : begin + AHEAD * self.size] for begin in range(0, len(blocks), AHEAD * self.size))
        works = ([float((block.sizes * block.effort).sum()) for block in part] for part in some)
        return [owner for work in works for owner in dealt(work, self.size)]

    def mine(self, parts: Sequence[Piece]) -> Sequence[Piece]:
        """This rank's share of some parts."""
        return parts[self.rank :: self.size]

    def add(self, *parts: Tensor) -> None:
        """Put together tensors of which every rank has filled in its share, and has zeros elsewhere; in place."""
        for part in parts if self.size > 1 else ():
            self._over(part, dist.all_reduce)

    def anybody(self, mine: bool) -> bool:
        """Whether it is so at any rank."""
        asked = torch.tensor([int(mine)])
        self.add(asked)
        return bool(asked)

    def text(self, text: str = "", source: int = 0) -> str:
        """A text of one rank's, at all of them."""
        if self.size == 1:
            return text
        raw = torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8) if text else torch.zeros(0).byte()
        first = torch.zeros(HEADER + 8, dtype=torch.uint8)
        if self.rank == source:
            first[:8] = torch.tensor([len(raw)]).view(torch.uint8)
            first[8 : 8 + len(raw)] = raw[:HEADER]
        self._send(first, source)
        n = int(first[:8].clone().view(torch.int64))
        rest = raw[HEADER:] if self.rank == source else torch.zeros(max(0, n - HEADER), dtype=torch.uint8)
        self._send(rest, source)
        return torch.cat([first[8 : 8 + min(n, HEADER)], rest]).numpy().tobytes().decode()

    def stacks(self, parts: dict[str, Stacks], source: int = 0, empty: Empty | None = None) -> dict[str, Stacks]:
        """Named stacks of one rank's, at all of them and on the same kind of device.

        `empty` makes the tensor that one is received into, where that is not simply memory.
        """
        if self.size == 1:
            return parts
        names = {
            part: {name: [str(t.dtype)[6:], t.device.type, apart(t), *t.shape] for name, t in stacks.items()}
            for part, stacks in parts.items()
        }
        names = json.loads(self.text(json.dumps(names), source))
        out: dict[str, Stacks] = {}
        for part, stacks in names.items():
            out[part] = {}
            for name, (kind, device, step, *shape) in stacks.items():
                if self.rank == source:
                    there = parts[part][name]
                else:
                    make = empty if empty is not None and device == "cpu" else partial(torch.empty, device=device)
                    there = make(tuple(shape), dtype=getattr(torch, kind))  # of several GPUs on the current one
                self._send(there, source)
                out[part][name] = there if self.rank == source else spread(there, step)  # where rows lie, so do bits
        return out

    def passed(self, rows: Stacks, source: int, target: int) -> Stacks:
        """Rows from one rank to another, both of which know their form; the target's are overwritten."""
        if self.rank not in (source, target):
            return rows
        sends, head = self.rank == source, torch.tensor([sum(stack.nbytes for stack in rows.values())])
        told = head.clone()
        for part in (told, *rows.values()):
            there = part if part.is_contiguous() else part.contiguous()
            for piece in torch.split(there.view(-1).view(torch.uint8), PIECE) if part.numel() else ():
                self._over(piece, lambda wire: dist.send(wire, target) if sends else dist.recv(wire, source))
        require(torch.equal(head, told), f"ranks {source} and {target} do not agree on what goes from one to the other")
        self.counted["received"] += 0 if sends else int(head)
        return rows

    def state(self, state: State, empty: Empty | None = None) -> State:
        """The first rank's state, at all ranks."""
        if self.size == 1:
            return state
        parts = {"centers": state.centers, "kept": state.kept, "memory": state.memory}
        found = self.stacks(parts, 0, empty)
        return replace(state, **found, round=int(self.text(str(state.round))))

    @contextmanager
    def together(self) -> Iterator[None]:
        """Everybody gets through, or nobody does: then the lowest rank that could not says why, for all.

        Nothing inside may be a conversation between ranks.
        """
        failure: Exception | None = None
        try:
            yield
        except Exception as error:
            failure = error
        if self.size > 1:
            failed = torch.zeros(self.size, dtype=torch.int64)
            failed[self.rank] = failure is not None
            self.add(failed)
            if bool(failed.any()) and int(failed.nonzero()[0]) != self.rank:
                raise OtherRankFailed(f"rank {int(failed.nonzero()[0])} failed") from failure
        if failure is not None:
            raise failure

    def check(self, state: State) -> None:
        """Refuse to go on where ranks have come to different centers: their machines round differently."""
        if self.size == 1 or homes.centers_away(state):
            return
        mine = torch.tensor([_sum_of_bits(rows) for _, rows in sorted(state.centers.items())])
        theirs = mine.clone()
        self._send(theirs, 0)
        require(
            torch.equal(mine, theirs),
            f"rank {self.rank} has other centers than rank 0 after round {state.round - 1}: its machine rounds "
            "differently; use machines of one kind, with the same version of torch and the same OMP_NUM_THREADS",
        )

    def _send(self, tensor: Tensor, source: int) -> None:
        """In place, as bytes: whatever the type, the same bits."""
        if tensor.numel() == 0:
            return
        flat = tensor.detach().contiguous().flatten().view(torch.uint8)
        for piece in torch.split(flat, PIECE):
            self._over(piece, lambda wire: dist.broadcast(wire, source))
        self.counted["received"] += len(flat) if self.rank != source else 0

    def _over(self, tensor: Tensor, talk: Callable[[Tensor], object]) -> None:
        """Have ranks talk about a tensor, in place."""
        wire = tensor.cpu() if self.by_host else tensor
        with self._heard():
            talk(wire)
        if wire is not tensor:
            tensor.copy_(wire)

    @contextmanager
    def _heard(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            silent = "imed out" in str(error) or "imeout" in str(error)
            what = f"has said nothing for {self.wait:g} seconds" if silent else "was ended or has failed"
            raise Lost(f"one of the {self.size} ranks {what}") from error


ALONE = Ranks()


def asked() -> Ranks:
    """Who we are by the environment, as torchrun sets it."""
    values = {name: os.environ.get(name, "") for name in ("RANK", "WORLD_SIZE")}
    if not all(value.isdigit() for value in values.values()):
        return ALONE
    return Ranks(int(values["RANK"]), int(values["WORLD_SIZE"]))


@contextmanager
def join_ranks(wait: float = 600.0) -> Iterator[Ranks]:
    """This process's rank among those that torchrun has started; the only one without torchrun.

    `wait`: seconds without a word before another rank counts as lost.
    """
    require(wait > 0, f"ranks must wait for each other for more than 0 seconds, got {wait:g}; try 600")
    ranks = replace(asked(), wait=wait)
    if ranks.size == 1:
        yield ranks
        return
    # Functions of this module take the group of the day they are imported as a default. Imported later, as torch
    # does by itself, they would hold the group for good: its threads would meet the interpreter's end, and abort there.
    import_module("torch.distributed.nn.functional")
    gpus = torch.cuda.is_available() and dist.is_nccl_available()
    try:
        dist.init_process_group("cpu:gloo,cuda:nccl" if gpus else "gloo", timeout=timedelta(seconds=wait))
    except (RuntimeError, ValueError) as error:
        why = " ".join(str(error).split())[:200]
        raise Lost(f"the {ranks.size} ranks cannot reach each other: {why}") from error
    try:
        yield ranks
        with suppress(RuntimeError):  # nobody hangs up while another is still listening to the last word
            dist.barrier()
    finally:
        dist.destroy_process_group()


def own_device(name: str, ranks: Ranks) -> tuple[str, Ranks]:
    """The device of a rank, and how it talks from there; of one rank alone, what was asked for."""
    if ranks.size == 1:
        return name, ranks
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if not name.startswith("cuda"):
        return name, ranks
    local, there = os.environ.get("LOCAL_RANK", "0"), torch.cuda.device_count()
    if name != "cuda":
        if ranks.first:
            warnings.warn(
                f"{name} is one GPU for {ranks.size} ranks, which share it: with --device cuda each rank takes its own",
                stacklevel=2,
            )
        return name, replace(ranks, by_host=True)
    if not local.isdigit() or int(local) >= there:
        raise UsageError(
            f"rank {local} of this machine has no GPU of its own, there are {there}: start one rank for each GPU "
            f"(--nproc-per-node {max(there, 1)}), or use --device cpu"
        )
    return f"cuda:{local}", ranks


def dealt(work: Sequence[float], size: int) -> list[int]:
    """Who learns which block: the largest work first, to whom has least so far, and nobody more than their share.

    >>> dealt([9, 5, 4, 1], 2)
    [0, 1, 1, 0]
    """
    most, load, count, out = -(-len(work) // size), [0.0] * size, [0] * size, [0] * len(work)
    for block in sorted(range(len(work)), key=lambda b: -work[b]):
        out[block] = min((r for r in range(size) if count[r] < most), key=lambda r: load[r])
        load[out[block]] += work[block]
        count[out[block]] += 1
    return out


def _sum_of_bits(rows: Tensor) -> int:
    whole = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.uint8}[rows.element_size()]
    return int(rows.contiguous().view(whole).sum(dtype=torch.int64))
