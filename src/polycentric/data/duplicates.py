"""Examples that occur twice: at one client, at several, and, worst, in training and in test.

Two examples are the same where the bytes of x are; what is compared is a digest of 64 bits. Near copies (two frames of
a film, windows that overlap) are not found so.
"""

from __future__ import annotations

import math
from hashlib import blake2b

import numpy as np
import numpy.typing as npt
import torch

from .federation import Federation
from .suspicious import some
from .unlike import Finding, called

Integers = npt.NDArray[np.int64]


def duplicates(federation: Federation) -> list[Finding]:
    """What occurs twice, a finding each."""
    train, test, m = federation.train, federation.test, federation.n_clients
    every = np.concatenate([_digests(train.x), _digests(test.x)])
    number: Integers = np.unique(every, return_inverse=True)[1].reshape(-1)
    here, there = number[: len(train)], number[len(train) :]
    owner, tester = train.owner.cpu().numpy(), test.owner.cpu().numpy()
    said: list[Finding] = []

    own = np.isin(there * m + tester, here * m + owner)
    said += _counted(
        "leak", federation, tester[own], len(test),
        "test examples are also training examples of the same client, so its score is too good",
    )  # fmt: skip
    other = np.isin(there, here) & ~own
    said += _counted(
        "leak", federation, tester[other], len(test),
        "test examples are also training examples of another client, so scores of shared models are too good",
    )  # fmt: skip
    pairs, first = np.unique(here * m + owner, return_index=True)
    again = np.ones(len(here), dtype=bool)
    again[first] = False
    said += _counted(
        "duplicates", federation, owner[again], len(train), "training examples repeat another one of the same client"
    )
    holders = np.bincount(pairs // m, minlength=len(every))
    shared = holders[here] > 1
    said += _counted(
        "duplicates", federation, owner[shared], len(train), "training examples are held by several clients"
    )
    labelled = np.unique(np.stack([here, _digests(train.y)]), axis=1)
    unsure = np.bincount(labelled[0], minlength=len(every))[here] > 1
    said += _counted(
        "duplicates",
        federation,
        owner[unsure],
        len(train),
        "training examples have the same x as one with another target",
    )
    return said or [Finding("duplicates", "no example occurs twice")]


def _digests(tensor: torch.Tensor) -> Integers:
    """A number for every row, by its bytes."""
    rows = tensor.cpu()
    rows = rows + 0.0 if rows.is_floating_point() else rows  # -0 is 0
    flat = rows.reshape(len(rows), math.prod(rows.shape[1:])).contiguous().numpy()
    return np.frombuffer(b"".join(blake2b(row, digest_size=8).digest() for row in flat), dtype=np.int64)


def _counted(about: str, federation: Federation, owner: Integers, of: int, what: str) -> list[Finding]:
    """So many examples, and whose most of them are."""
    if not len(owner):
        return []
    by_client = np.bincount(owner, minlength=federation.n_clients)
    worst = [k for k in np.argsort(-by_client, kind="stable").tolist() if by_client[k]]
    named = some([f"{called(federation.clients[k])} ({by_client[k]})" for k in worst], 3)
    text = f"{len(owner):,} of {of:,} {what}: {named}"
    return [Finding(about, text, {"examples": len(owner), "of": of, "clients": len(worst), "what": what})]
