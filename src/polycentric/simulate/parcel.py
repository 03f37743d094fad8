"""What of an answer travels between processes: rows, or the sums they come to, whichever has fewer bytes.

    rank or worker    learned -> smaller -> packed   ~~ named stacks of tensors ~~>   unpacked    whoever mixes

A center adds up the same numbers in the same order, whoever mixed a block: rows and sums lead to the same bits.
"""

from __future__ import annotations

import torch

from ..parts.aggregate import Rows, Sum
from ..round import Answer, Part
from ..stacks.cohort import Cohort
from .shared_memory import Parcel


def smaller(answer: Answer, part: Part) -> Answer | Part:
    """An answer, or what it comes to."""
    streams = all(isinstance(each, Sum) for each in part.sums.values())
    return part if streams and _bytes(_stacks(part)) < _bytes(_stacks(answer)) else answer


def packed(answer: Answer | Part, block: Cohort) -> Parcel:
    """The tensors of an answer; and of whom it is, where some of the block sent a number that is not finite."""
    parcel = {"kept": answer.kept, **_stacks(answer)}
    if len(answer.block) < len(block):
        parcel["block"] = {"good": torch.isin(block.index, answer.block.index)}
    return parcel


def unpacked(parcel: Parcel, block: Cohort) -> Answer | Part:
    """The answer of a block."""
    arrived = block[parcel["block"]["good"]] if "block" in parcel else block
    if "sent" in parcel:
        return Answer(arrived, parcel["sent"], parcel["kept"])
    values, weight, at = parcel["values"], parcel["weight"], parcel["at"]
    sums: dict[str, Sum | Rows] = {name: Sum(values[name], weight[name], at=at.get(name)) for name in values}
    return Part(arrived, parcel["noted"], sums, parcel["kept"])


def _stacks(answer: Answer | Part) -> Parcel:
    if isinstance(answer, Answer):
        return {"sent": answer.sent}
    sums = {name: each for name, each in answer.sums.items() if isinstance(each, Sum)}
    return {
        "noted": answer.noted,
        "values": {name: each.values for name, each in sums.items()},
        "weight": {name: each.weight for name, each in sums.items()},
        "at": {name: each.at for name, each in sums.items() if each.at is not None},
    }


def _bytes(parcel: Parcel) -> int:
    return sum(rows.nbytes for stacks in parcel.values() for rows in stacks.values())
