"""Rows that a rule must see all at once, shared out among ranks by their columns.

    rank 0   learns a b   ~~ columns 4096 .. of a b ~~>      rule of columns 0 .. 4095 of a b c d    ~~> all columns
    rank 1   learns c d   <~~ columns 0 .. 4095 of c d       rule of columns 4096 ..   of a b c d   <~~

A median needs all clients, but no column needs another: every rank is sent its columns of the rows of others, a share
of what they are, does the rule there, and the results, a row for each center, are put together. What a rule adds up
over the columns (`stacks.all_rows`) goes from rank to rank: each adds its share in the order of the columns. Ranks have
whole units of columns, so the bits are those of one process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..errors import require
from ..method import Exchange, State
from ..parts.aggregate import Rows, Sum
from ..parts.answer import Answer, Part
from ..round import noted
from ..stacks.all_rows import Columns, unit_of
from ..stacks.cohort import Cohort
from ..stacks.stack import Draft, Stacks
from .ranks import Ranks


@dataclass(frozen=True, eq=False)
class SharedColumns(Columns):
    """A rank's columns of rows of some width."""

    ranks: Ranks
    spans: tuple[slice, ...]  # of every rank

    @staticmethod
    def of(ranks: Ranks, rows: Tensor) -> SharedColumns:
        """About as many units of columns for each rank."""
        width, unit = rows.shape[-1], unit_of(rows.shape[-1], rows.device.type)
        n = -(-width // unit)
        ends = [min(width, unit * (n * k // ranks.size)) for k in range(ranks.size + 1)]
        return SharedColumns(ranks, tuple(map(slice, ends, ends[1:])))

    def width(self, rows: Tensor) -> int:
        """Of all ranks."""
        return int(self.spans[-1].stop)

    def here(self, rows: Tensor) -> Tensor:
        """This rank's."""
        return rows[..., self.spans[self.ranks.rank]]

    def together(self, rows: Tensor) -> Tensor:
        """Those of all ranks."""
        parts = [self.ranks.stacks({"columns": {"": rows}}, source)["columns"][""] for source in range(self.ranks.size)]
        return torch.cat(parts, -1)

    def in_turn(self, total: Tensor, stages: Sequence[tuple[slice, Callable[[], None]]]) -> None:
        """From the first rank to the last, which goes on with a stage while the first is at the next; then to all."""
        me, last = self.ranks.rank, self.ranks.size - 1
        for rows, add in stages:
            if me > 0:
                self.ranks.passed({"total": total[rows]}, me - 1, me)
            add()
            if me < last:
                self.ranks.passed({"total": total[rows]}, me, me + 1)
        whole = self.ranks.stacks({"total": {"": total}}, last)["total"][""]
        if me < last:
            total.copy_(whole)


class Sharing:
    """Passes on the answers of an exchange: to every rank its columns of what is sent, and all else to all."""

    def __init__(self, ranks: Ranks, exchange: Exchange, state: State) -> None:
        self.ranks, self.exchange, self.state = ranks, exchange, state
        self.notes = Draft(state.memory)

    def __call__(self, answer: Answer | Part | None, block: Cohort, owner: int) -> Part:
        """What a block comes to, of which its owner has the answer."""
        told, sent = dict[str, Stacks](), Stacks()
        if isinstance(answer, Answer):
            sent, good = answer.sent, torch.isin(block.index, answer.block.index)
            like = {name: sent[name][:0] for name in self.exchange.sends}
            told = {"noted": noted(self.exchange, self.state, answer), "kept": answer.kept, "like": like}
            told |= {"block": {"good": good}}
        told = self.ranks.stacks(told, owner)
        require("like" in told, f"rank {owner} does not share out what this rank does: start all ranks alike")
        arrived = block[told["block"]["good"]]
        self.notes.write(arrived.index, told["noted"])
        sums = dict[str, Sum | Rows]()
        for name, none in told["like"].items():
            columns = SharedColumns.of(self.ranks, none)
            rows = self._columns(sent.get(name, none), columns, len(arrived), owner)
            part = self.exchange.aggregate.part(self.exchange.up(self.notes.stacks, arrived, name), rows, arrived)
            assert isinstance(part, Rows)
            sums[name] = replace(part, columns=columns)
        return Part(arrived, told["noted"], sums, told["kept"])

    def _columns(self, rows: Tensor, columns: SharedColumns, n: int, owner: int) -> Tensor:
        """This rank's columns of n rows that their owner has."""
        mine = self.ranks.rank == owner
        for target, span in enumerate(columns.spans):
            if target == owner or not n or span.start == span.stop:
                continue
            if self.ranks.rank == target:
                there = rows.new_empty(n, span.stop - span.start)
                return self.ranks.passed({"rows": there}, owner, target)["rows"]
            if mine:
                self.ranks.passed({"rows": rows[:, span]}, owner, target)
        return columns.here(rows).contiguous() if mine else rows.new_empty(n, columns.here(rows).shape[1])
