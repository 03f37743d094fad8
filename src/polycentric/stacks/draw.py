"""Random numbers that are a pure function of a key: (seed, round, client, purpose, counter).

    uniform(seed, round, "select", clients)        one number for every client, always the same one

Nothing is drawn *from* anything: there is no generator to save, restore or share. A draw does not depend
on the executor, the block size, the number of ranks, or on who else takes part, so methods that are equal
in theory see equal batches, and a resumed run sees what the uninterrupted one would have seen.

The hash is splitmix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, OOPSLA 2014)
on wrapping 64-bit integers: the same bits on every device.
"""

import hashlib
import math
import secrets
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

PIECE = 1 << 15  # draws at once where there are very many
TURNS = 10  # of a permutation's network
ODD = 0x1E3779B97F4A7C15  # of the hash
TURN = ((30, -0x40A7B892E31B1A47), (27, -0x6B2FB644ECCEEE15))  # shift by so many bits, multiply by that
ALL = (1 << 64) - 1  # bits
Key = int | str | Tensor  # tensors broadcast: the result has the shape of the whole key


def bits(*key: Key) -> Tensor:
    """64 well-mixed bits for every element of the broadcast key, as int64."""
    first, state = 0, None
    for part in key:
        if isinstance(part, str):
            part = zlib.crc32(part.encode())
        if isinstance(part, Tensor):
            state = more(first if state is None else state, part)
        elif state is None:  # numbers and strings before the first tensor are mixed without any
            first = _mixed_number(first * 31 + int(part) + ODD)
        else:
            state = _mixed(state * 31 + _signed(int(part) + ODD))
    return torch.tensor(_signed(first)) if state is None else state


def more(state: int | Tensor, part: Tensor) -> Tensor:
    """`bits(*key, part)`, from `bits(*key)`."""
    if isinstance(state, int):
        return _mixed(part.to(torch.int64) + _signed(state * 31 + ODD))
    return _mixed(state * 31 + part.to(torch.int64) + ODD)


def uniform(*key: Key) -> Tensor:
    """Uniform in the open interval (0, 1), float64."""
    return _open(bits(*key))


def normal(*key: Key) -> Tensor:
    """Standard normal, float64 (Box and Muller)."""
    radius = (-2 * uniform(*key, "radius").log()).sqrt()
    return radius * (2 * torch.pi * uniform(*key, "angle")).cos()


def secret_normal(n: int, key: bytes | None = None) -> Tensor:
    """Standard normal, float64, that nobody else can draw (Box and Muller).

    From the operating system's generator, never to be drawn again; or from a secret key, by SHAKE256: the same for the
    same key, and without it nothing is known of them.
    """
    drawn = secrets.token_bytes(16 * n) if key is None else hashlib.shake_256(key).digest(16 * n)
    words = torch.frombuffer(bytearray(drawn), dtype=torch.int64)
    radius, angle = _open(words).view(2, n)
    found: Tensor = (-2 * radius.log()).sqrt() * (2 * torch.pi * angle).cos()
    return found


def normals(state: Tensor, n: int) -> Tensor:
    """n standard normal numbers, float64, from `bits(*key)`: both of every pair of Box and Muller's, so half the work.

    >>> normals(bits(0, "noise"), 3).shape
    torch.Size([3])
    """
    half = -(-n // 2)
    drawn = _open(more(state, torch.arange(2 * half, device=state.device)))
    radius, angle = (-2 * drawn[:half].log()).sqrt(), 2 * torch.pi * drawn[half:]
    return torch.cat([radius * angle.cos(), radius * angle.sin()])[:n]


def shuffled(segment: Tensor, *key: Key) -> Tensor:
    """An order that shuffles every segment by itself.

    Arguments:
        segment: which segment every element belongs to, not decreasing, (n,).
        key: ends in a counter of the elements, (n,), so that every element has its own bits.

    Returns:
        Indices, (n,): segment after segment, each in random order.
    """
    order = torch.argsort(bits(*key))
    return order[torch.argsort(segment[order], stable=True)]


def begins(size: Tensor, state: Tensor, longest: int, count: int) -> Tensor:
    """How shuffles of 0 .. size-1 begin, the shortest padded to the longest.

    Arguments:
        size: of every shuffle, (shuffles,), none above `longest`.
        state: `bits(*key)` of every shuffle: it is the order of `bits(*key, place)`, as `shuffled` has it.
        count: places wanted of each; few of many are found without sorting the rest.

    Returns:
        Numbers below `size`, then anything below `longest`, (shuffles, count).
    """
    place = torch.arange(longest, device=state.device)
    drawn = more(state[:, None], place).masked_fill_(place >= size[:, None], (1 << 63) - 1)
    if 4 * count < longest:
        return drawn.topk(count, largest=False).indices
    order = torch.from_numpy(np.argsort(drawn.numpy())) if drawn.device.type == "cpu" else drawn.argsort()
    return order[:, :count]  # numpy orders short rows several times as fast as torch does on a processor


def smallest(n: int, *key: Key) -> Tensor:
    """Where the n smallest of `uniform(*key)` are, in order of place; the key ends in a tensor (draws,).

    One pass in pieces that stay in the cache. Only draws below a bound that n of them will almost surely meet are
    sorted; should they not, all are: the answer does not depend on the bound.
    """
    *first, last = key
    assert isinstance(last, Tensor)
    bound = (n + 8 * n**0.5 + 32) / max(len(last), 1)
    for below in (bound, 2.0) if bound < 1 else (2.0,):
        values, places = [], []
        for i, piece in enumerate(torch.split(last, PIECE)):
            drawn = uniform(*first, piece)
            place = (drawn < below).nonzero()[:, 0]
            values.append(drawn[place])
            places.append(place + i * PIECE)
        found = torch.cat(values)
        if len(found) >= min(n, len(last)):
            break
    return torch.cat(places)[found.argsort()[:n]].sort().values


def some_of(n: int, count: int, *key: Key) -> Tensor:
    """`count` different numbers below n, all sets equally likely, in order; the work does not grow with n.

    They are where a keyed permutation of 0 .. n-1 takes 0 .. count-1: a Feistel network on pairs (p, q), p < P, q < Q,
    of which there are P Q = n or barely more,

        p  <-  p + bits(key, turn, q) mod P        and        q  <-  q + bits(key, turn, p) mod Q,        in turns;

    the few that it takes to n or beyond are sent on until they lie below (Black and Rogaway: Ciphers with arbitrary
    finite domains, CT-RSA 2002). A permutation is one to one, so nobody comes twice.
    """
    rows = math.isqrt(max(n - 1, 0)) + 1
    columns = -(-n // rows)
    keys = bits(*key, torch.arange(TURNS))

    def onward(at: Tensor) -> Tensor:
        p, q = at // columns, at % columns
        for turn in range(0, TURNS, 2):
            p = (p + _shifted(more(keys[turn], q), 1)) % rows
            q = (q + _shifted(more(keys[turn + 1], p), 1)) % columns
        return p * columns + q

    at = onward(torch.arange(count))
    while len(beyond := (at >= n).nonzero()[:, 0]):
        at[beyond] = onward(at[beyond])
    return at.sort().values


def seed_of(*key: Key) -> int:
    """A non-negative 63-bit seed for other libraries' generators."""
    return int(bits(*key)) & ((1 << 63) - 1)


@contextmanager
def seeded(device: torch.device | None, *key: Key) -> Iterator[None]:
    """Seed torch's own generators for a while, for modules that draw by themselves (dropout); None: there is none."""
    if device is None:
        yield
        return
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        # torch.manual_seed would reseed the generators of all devices, which fork_rng does not give back.
        torch.default_generator.manual_seed(seed_of(*key))
        if device.type == "cuda":
            torch.cuda.manual_seed(seed_of(*key))
        yield


def _open(h: Tensor) -> Tensor:
    """Bits as numbers in the open interval (0, 1), float64."""
    return (_shifted(h, 11).double() + 0.5) / (1 << 53)


def _mixed(h: Tensor) -> Tensor:
    for by, times in TURN:
        h = _shifted(h, by).bitwise_xor_(h).mul_(times)
    return _shifted(h, 31).bitwise_xor_(h)


def _mixed_number(h: int) -> int:
    """The same for one number, from 0 to 2^64 - 1."""
    h &= ALL
    for by, times in TURN:
        h = ((h ^ (h >> by)) * times) & ALL
    return h ^ (h >> 31)


def _shifted(h: Tensor, by: int) -> Tensor:
    """Logical shift to the right; `>>` on int64 copies the sign bit."""
    return (h >> by).bitwise_and_((1 << (64 - by)) - 1)


def _signed(h: int) -> int:
    """A number's last 64 bits, as int64 reads them."""
    return ((h + (1 << 63)) & ALL) - (1 << 63)
