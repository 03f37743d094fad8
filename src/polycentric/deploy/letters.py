"""What travels between a center and a node: numbers by name, and facts that say what they are for.

    letter   center -> node     what a client receives, to learn from it or to score it, and who it is there
    reply    node -> center     what it sends, or its scores; or a code that says why it does not

Both are bytes: a length, the facts as JSON, the tensors as safetensors. Nothing is executed, nothing is unpickled, and
no text of an error travels. Whoever reads one checks all of it before any of it is used.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from ..language.files import parsed
from ..stacks.stack import Stacks, aligned

FACTS = 1 << 20  # bytes of the facts
Code = Literal["ok", "refused", "failed"]
Asks = Literal["learn", "place", "score"]  # place: it answers, and nothing is remembered of it, here or there
Shapes = Mapping[str, tuple[tuple[int, ...], str]]  # name: shape and dtype, as torch says it


class Spoiled(ValueError):
    """Bytes that are no letter, or not the one that was asked for; never more than that is said."""


class LastUsed(BaseModel):
    """Which of a client's replies was used last: that to this letter, of this exchange."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    round: int = Field(ge=0, lt=1 << 31)
    turn: int = Field(ge=0, lt=1 << 10)
    letter: str = Field(pattern="^[0-9a-f]{16}$")  # the beginning of its digest

    @property
    def key(self) -> tuple[int, int, str]:
        """Versions are in the order of their exchanges."""
        return self.round, self.turn, self.letter

    @property
    def exchange(self) -> tuple[int, int]:
        """Round and turn."""
        return self.round, self.turn


class LetterFacts(BaseModel):
    """What a letter is for: enough for a reply that depends on nothing else but the node's data and what it keeps."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    version: Literal[1] = 1
    asks: Asks = "learn"
    exchange: int = Field(ge=0, lt=1 << 10)  # of those of the round
    tune: int = Field(default=0, ge=0, le=1 << 20)  # epochs of fine-tuning before it is scored
    run: str = Field(max_length=64)  # the name of the run
    client: int = Field(ge=0, lt=1 << 31)  # its number there
    clients: int = Field(ge=1, lt=1 << 31)  # how many there are
    seed: int = Field(ge=0, lt=1 << 63)
    round: int = Field(ge=0, lt=1 << 31)
    turn: int = Field(ge=0, lt=1 << 10)
    effort: float = Field(gt=0, le=1)
    might: int | None = Field(default=None, ge=0, lt=1 << 31)
    count: float | None = Field(default=None, allow_inf_nan=False)
    last: LastUsed | None = None  # None: none yet
    # Where letters are sealed: who came then, of those beside it.
    heard: list[int] = Field(default=[], max_length=1 << 16)


class ReplyFacts(BaseModel):
    """Whose reply to which letter it is."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    version: Literal[1] = 1
    run: str = Field(max_length=64)
    client: int = Field(ge=0, lt=1 << 31)
    round: int = Field(ge=0, lt=1 << 31)
    turn: int = Field(ge=0, lt=1 << 10)
    letter: str = Field(min_length=64, max_length=64)  # the digest of the letter it answers
    examples: int = Field(ge=0, lt=1 << 40)  # that the client trains on
    code: Code = "ok"


@dataclass(frozen=True, eq=False)
class Letter:
    """What a client receives."""

    facts: LetterFacts
    received: Stacks  # (1, width) each

    def packed(self) -> bytes:
        """As bytes."""
        return packed(self.facts, self.received)

    @staticmethod
    def read(data: bytes, most: int) -> Letter:
        """From bytes, at most `most` of them."""
        facts, tensors = unpacked(data, LetterFacts, most)
        return Letter(facts, tensors)


@dataclass(frozen=True, eq=False)
class Reply:
    """What a client sends; nothing where its code is not ok."""

    facts: ReplyFacts
    sent: Stacks  # (1, width) each

    def packed(self) -> bytes:
        """As bytes."""
        return packed(self.facts, self.sent)

    @staticmethod
    def told(data: bytes) -> ReplyFacts:
        """What a reply says of itself, such as which letter it answers; its numbers are not looked at."""
        facts: ReplyFacts = facts_of(data, ReplyFacts)[0]
        return facts

    @staticmethod
    def read(data: bytes, most: int) -> Reply:
        """From bytes, at most `most` of them."""
        facts, tensors = unpacked(data, ReplyFacts, most)
        return Reply(facts, tensors)


def digest(data: bytes) -> str:
    """The sha256 of bytes."""
    return hashlib.sha256(data).hexdigest()


def mark(letter: str) -> str:
    """The beginning of a letter's digest: enough to tell letters for one exchange apart."""
    return letter[:16]


def shapes_of(stacks: Stacks) -> Shapes:
    """Names, shapes and dtypes."""
    return {name: (tuple(rows.shape), str(rows.dtype)) for name, rows in stacks.items()}


def fits(stacks: Stacks, expected: Shapes) -> bool:
    """Whether these are the names, shapes and dtypes that are expected, no more and no fewer."""
    return shapes_of(stacks) == dict(expected)


def most_bytes(expected: Shapes) -> int:
    """Bytes that a letter with tensors of these shapes has at most."""
    sizes = {"torch.float64": 8, "torch.int64": 8, "torch.float32": 4, "torch.bfloat16": 2, "torch.bool": 1}
    numbers = 0
    for shape, dtype in expected.values():
        n = sizes.get(dtype, 8)
        for side in shape:
            n *= side
        numbers += n
    return 4 + FACTS + (1 << 12) + 512 * len(expected) + numbers


def packed(facts: BaseModel, tensors: Stacks) -> bytes:
    """Facts and tensors as bytes."""
    head = json.dumps(facts.model_dump(), sort_keys=True, allow_nan=False).encode()
    body = save({name: rows.detach().cpu().contiguous() for name, rows in sorted(tensors.items())})
    return struct.pack(">I", len(head)) + head + body


def unpacked(data: bytes, form: type[Any], most: int) -> tuple[Any, Stacks]:
    """Facts of a form, and tensors, from at most so many bytes."""
    if len(data) > most:
        raise Spoiled(f"{len(data):,} bytes, more than {most:,}")
    facts, n = facts_of(data, form)
    try:
        tensors: dict[str, Tensor] = load(data[n:])
    except (SafetensorError, ValueError, OverflowError, RuntimeError, KeyError, TypeError) as error:
        raise Spoiled("numbers that cannot be read") from error
    return facts, aligned(tensors)


def facts_of(data: bytes, form: type[Any]) -> tuple[Any, int]:
    """Facts of a form, and where they end."""
    if len(data) < 4 or not 0 < (n := struct.unpack(">I", data[:4])[0]) <= min(FACTS, len(data) - 4):
        raise Spoiled("no facts")
    try:
        return form.model_validate(parsed(data[4 : 4 + n])), 4 + n
    except (ValidationError, ValueError, OverflowError, TypeError) as error:
        raise Spoiled("facts that cannot be read") from error
