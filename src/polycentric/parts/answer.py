"""What comes up from a block of clients: rows, or what they come to once they are mixed."""

from dataclasses import dataclass

import torch

from ..stacks import Cohort, Stacks
from .aggregate import Rows, Sum


@dataclass(frozen=True, eq=False)
class Answer:
    """What a block of clients sent, and what it keeps."""

    block: Cohort  # those whose answer is finite
    sent: Stacks  # (block, width)
    kept: Stacks  # (block, width)


@dataclass(frozen=True, eq=False)
class Part:
    """What a block comes to once it is mixed: all that centers need of it, whoever learned it."""

    block: Cohort
    noted: Stacks  # (block, ...) what is remembered of its clients
    sums: dict[str, Sum | Rows]  # by what was sent
    kept: Stacks  # (block, width)


def joined(answers: list[Answer]) -> list[Answer]:
    """All blocks as one; no answers, no block."""
    if not answers:
        return []
    first, *others = answers

    def all_of(stacks: list[Stacks]) -> Stacks:
        return {name: torch.cat([s[name] for s in stacks]) for name in stacks[0]}

    block = first.block.join(other.block for other in others)
    return [Answer(block, all_of([a.sent for a in answers]), all_of([a.kept for a in answers]))]
