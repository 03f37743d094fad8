"""Small federations that the law tests share, as fixtures; functions that they share are in `support.py`."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace

import pytest
import torch
from hypothesis import HealthCheck, settings
from torch import Tensor

os.environ.setdefault("POLYCENTRIC_DEVICE", "cpu")  # laws are of bits, which a GPU has of its own
os.environ.pop("COLUMNS", None)  # before ours is imported: how wide this terminal is, is no part of a test
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before the first kernel is made: without a GPU they are interpreted

from polycentric.data import Federation, Split

# The same examples every time, so that a change is what makes a law fail; HYPOTHESIS_PROFILE=anew looks for new ones.
# Nothing is timed: a machine may be busy. A test's own folder may serve all of its examples.
common = {"deadline": None, "suppress_health_check": [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]}
settings.register_profile("same", derandomize=True, **common)
settings.register_profile("anew", derandomize=False, print_blob=True, **common)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))

torch.set_num_threads(1)  # the models here are tiny; threads would only wait for each other

Make = Callable[..., Federation]


def split_of(parts: Sequence[tuple[Tensor, Tensor]]) -> Split:
    """Every client's (x, y), one after another."""
    sizes = torch.tensor([0, *(len(y) for _, y in parts)])
    return Split(torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts]), sizes.cumsum(0))


def federation_of(
    train: Sequence[tuple[Tensor, Tensor]],
    test: Sequence[tuple[Tensor, Tensor]] | None = None,
    valid: Sequence[tuple[Tensor, Tensor]] | None = None,
    classes: int = 0,
    symbols: int = 0,
) -> Federation:
    """These clients' examples as a federation; without classes it is a regression."""
    nothing = [(x[:0], y[:0]) for x, y in train]
    return Federation(
        name="made",
        train=split_of(train),
        test=split_of(test or nothing),
        valid=split_of(valid or nothing),
        classes=tuple(map(str, range(classes))),
        clients=tuple(f"client {k}" for k in range(len(train))),
        symbols=symbols,
    )


def blobs_of(
    sizes: Sequence[int] = (13, 7, 9, 1, 14),
    *,
    shape: tuple[int, ...] = (6,),
    classes: int = 3,
    test: int = 5,
    valid: int = 0,
    symbols: int = 0,
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
) -> Federation:
    """Classes around means that differ from client to client; client k is the same in any company."""

    def part(k: int, n: int, purpose: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(1000 * seed + 10 * k + purpose)
        y = torch.randint(classes, (n,), generator=generator)
        if symbols:
            return torch.randint(symbols, (n, *shape), generator=generator), y
        place = torch.arange(1, 1 + math.prod(shape), dtype=dtype)
        mean = 2 * torch.cos(place * torch.arange(classes)[:, None]) + torch.sin(place * (k + 1))
        noise = torch.randn(n, *shape, generator=generator, dtype=dtype)
        return noise + mean[y].view_as(noise), y

    clients = range(len(sizes))
    return federation_of(
        [part(k, n, 0) for k, n in enumerate(sizes)],
        [part(k, test, 1) for k in clients],
        [part(k, valid, 2) for k in clients],
        classes,
        symbols,
    )


def quadratics_of(sizes: Sequence[int] = (9, 14, 20, 11), dimension: int = 4, seed: int = 0) -> Federation:
    """Linear regressions: F_k(w) = |X w - y|^2 / 2n, a quadratic with H_k = X^T X / n and its own minimum."""
    generator = torch.Generator().manual_seed(seed)

    def part(n: int) -> tuple[Tensor, Tensor]:
        x = torch.randn(n, dimension, generator=generator, dtype=torch.float64)
        return x, torch.randn(n, generator=generator, dtype=torch.float64)

    return federation_of([part(n) for n in sizes])


@pytest.fixture(autouse=True)
def same_threads() -> Iterator[None]:
    """What a test does to the number of math threads ends with it: who has used several cannot be forked."""
    before = torch.get_num_threads()
    yield
    if torch.get_num_threads() != before:
        torch.set_num_threads(before)


@pytest.fixture(scope="session", autouse=True)
def nothing_waits_for_the_disk() -> Iterator[None]:
    """Files are synced, which is asked for as ever, but no test cuts the power: none has to wait for it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture(scope="session")
def made() -> Make:
    """A federation from every client's examples: see `federation_of`."""
    return federation_of


@pytest.fixture(scope="session")
def blobs() -> Make:
    """Classification, ragged clients: see `blobs_of`."""
    return blobs_of


@pytest.fixture(scope="session")
def quadratics() -> Make:
    """Regression with closed forms: see `quadratics_of`."""
    return quadratics_of


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Callable[..., SimpleNamespace]:
    """Type a command; its code, stdout and stderr."""
    from polycentric.cli import outcome

    def command(*words: str) -> SimpleNamespace:
        capsys.readouterr()
        code = outcome(list(words))
        printed = capsys.readouterr()
        return SimpleNamespace(code=code, out=printed.out, err=printed.err, lines=printed.err.splitlines())

    return command
