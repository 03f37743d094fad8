"""What is hidden: something done to what leaves a client, and something to what a center has heard.

A privacy part must cover every name that leaves a client; an exchange that sends a bare one beside it is
refused when it is built. What its releases promise is counted by `parts.accountant`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from ..errors import require, within
from ..language import register
from ..stacks import Cohort, Heard, Layout, Mixing, Stacks
from ..stacks.all_rows import each, pieces
from ..stacks.draw import normal, secret_normal
from .accountant import Chance, Neighbours, Release
from .denoise import Denoise

COLUMNS = 1 << 15  # numbers of a row drawn, or widened to float64, at once
Ups = Callable[[Cohort, str], Mixing]
Weighs = Literal["examples", "clients", "fixed"]


class Extra(NamedTuple):
    """A number that a mechanism needs beside the model: a name that comes down, goes up, or is held by centers."""

    receives: tuple[str, ...] = ()
    sends: tuple[str, ...] = ()
    holds: Mapping[str, float] = {}


@dataclass(frozen=True)
class Privacy:
    """The two sides of a mechanism; by default neither does anything, and nothing is promised."""

    @property
    def covers(self) -> tuple[str, ...] | None:
        """Names it protects; None: nothing is promised."""
        return None

    @property
    def extra(self) -> Extra:
        """Numbers of its own that travel with the model."""
        return Extra()

    @property
    def wants(self) -> float | None:
        """The epsilon that its noise is to be found for; None: it has its noise."""
        return None

    def with_noise(self, noise: float) -> Privacy:
        """The same, with the noise that was found."""
        return self

    def secured(self, key: bytes) -> Privacy:
        """Itself, with noise that only who has a secret key can draw, for centers whose seed others know."""
        return self

    def fitted(self, layout: Layout, n_centers: int) -> Privacy:
        """Itself, once the layout of `model` and the number of centers are known."""
        return self

    def refuses(self, weighs: Weighs, chosen: bool) -> str:
        """Why it cannot hide clients that count so, at centers which they may have chosen; empty: it can."""
        return ""

    def release(self, chance: Chance, weighs: Weighs) -> Release | None:
        """What an exchange tells of one client, by how cohorts are drawn and what clients count by; None: all."""
        return None

    def at_clients(self, rows: Stacks) -> Stacks:
        """Before anything leaves: clip."""
        return rows

    def at_centers(
        self, heard: dict[str, Heard], centers: Stacks, up: Ups, everyone: Cohort, arrived: Cohort
    ) -> dict[str, Heard]:
        """Before a center looks: noise. `up(who, name)` are the weights of some clients; `everyone` might have come."""
        return heard


@dataclass(frozen=True)
class NoPrivacy(Privacy):
    """Models travel as they are."""


@dataclass(frozen=True)
class Gaussian(Privacy):
    """Client-level differential privacy with trusted centers: updates are clipped, and every mean gets noise.

        client k:   D_k    <-  (w_k - start) min(1, C / |w_k - start|)
        center i:   w^(i)  <-  sum_k a_ik (start + D_k)  +  N(0, (z C s_i)^2 I),     s_i = max_k a_ik sqrt(c_k)

    a_ik is the weight of client k in the sum of center i, and c_k the number of centers that hear k. A client that two
    edges hear moves both, so what counts is the norm over all centers together: sum_i (a_ik C / (z C s_i))^2 <= 1 / z^2
    for every client, because each of its c_k terms is at most 1 / (c_k z^2). Where centers share no clients, s_i is the
    largest weight of a client in the sum of center i.

    Neighbours are as `parts.accountant` has them: "add" under `Poisson` with a fixed denominator, "replace" under
    `Uniform` where clients count the same (there a client moves the sum by 2 C, so the noise is worth z / 2), "zero"
    otherwise; `neighbours` asks for one of them. With a fixed denominator the weights are those of everyone who might
    have come; an empty cohort then releases noise. An update that is not finite is sent as none, so that nobody's
    absence tells.

    `quantile`: the clip follows that quantile of the updates' lengths. Everybody tells a bit, whether its update was
    short enough, and the center moves C by their noised mean b:

        b~  =  1/M sum_k (1[|D_k| <= C] - 1/2)  +  N(0, (s_b / M)^2)  +  1/2,      C  <-  C exp(-pace (b~ - quantile))

    `least`: for centers that clients choose. Every center also counts its clients and divides by the noised count
    instead of by a fixed number M; one whose noised count is below `least` keeps its model. Which center hears a client
    is told by its noise to nobody, so all have the same. Bits move their sum by 1/2 and counts by 1, so the model gets
    noise z' with 1 / z'^2 = 1 / z^2 - 1 / (2 s_b)^2 - 1 / s_c^2, and all together cost what z does; s_b and s_c are
    M / 20, or 2 z if that is more.

    `denoise` sees an update after the noise (Laplacian smoothing, James-Stein, soft threshold). Noise is drawn by
    (seed, round, center): whoever knows the seed of a simulation can take it away again. `secret` draws it from the
    operating system instead, and no run is the same again.

    Symbols:     C = `clip`, z = `noise`. `epsilon` in place of `noise`: as much noise as the rounds of a run need.
    Reduces to:  `NoPrivacy()`, bit for bit, with clip = inf and noise = 0.
    Reference:   McMahan et al., Learning differentially private recurrent language models, ICLR 2018,
                 https://arxiv.org/abs/1710.06963; Andrew et al., Differentially private learning with adaptive
                 clipping, NeurIPS 2021, https://arxiv.org/abs/1905.03871
    """

    clip: float
    noise: float | None = None
    epsilon: float | None = None
    neighbours: Neighbours | Literal["auto"] = "auto"
    quantile: float | None = None
    pace: float = 0.2
    least: float | None = None
    denoise: Denoise | None = None
    secret: bool = False
    sizes: tuple[int, ...] = field(default=(), repr=False)  # of the model's tensors

    def __post_init__(self) -> None:
        within(self, clip="> 0; try 1", noise="[0, inf); try 1", epsilon="> 0; try 8", pace="> 0; try 0.2")
        within(self, quantile="(0, 1); try 0.5", least="> 0; try 1", neighbours=("auto", "zero", "add", "replace"))
        one = (self.noise is None) != (self.epsilon is None)
        require(one, "Gaussian takes noise or epsilon: gaussian(clip=1, noise=1) or gaussian(clip=1, epsilon=8)")
        finite = self.noise == 0 or self.clip < math.inf
        require(
            finite,
            "Gaussian with noise needs a finite clip, got clip=inf, which guarantees no privacy; try clip=1",
        )

    @property
    def covers(self) -> tuple[str, ...]:
        """The model, and its own numbers; nothing else has a start to measure from."""
        return ("model", *self.extra.sends)

    @property
    def extra(self) -> Extra:
        """A clip that moves, and the bits that move it; a count."""
        bits, counts = self.quantile is not None, self.least is not None
        holds = {"clip": self.clip, "below": 0.0} if bits else {}
        holds |= {"count": 0.0} if counts else {}
        return Extra(("clip",) * bits, ("below",) * bits + ("count",) * counts, holds)

    @property
    def wants(self) -> float | None:
        """Its epsilon."""
        return self.epsilon

    def with_noise(self, noise: float) -> Gaussian:
        """With noise in place of an epsilon."""
        return replace(self, noise=noise, epsilon=None)

    def fitted(self, layout: Layout, n_centers: int) -> Gaussian:
        """Knows the tensors that are smoothed one by one; bits are of one center."""
        require(
            self.quantile is None or n_centers == 1,
            f"quantile={self.quantile} moves the clip of one center, and there are {n_centers}: leave it out",
        )
        return replace(self, sizes=tuple(layout.sizes)) if self.denoise else self

    def refuses(self, weighs: Weighs, chosen: bool) -> str:
        """Bits and counts need clients that count the same, and choices need counts."""
        if self.quantile is not None and weighs == "examples":
            return "a quantile is of clients that count the same: use equal=True, or dp-fedavg"
        if self.least is not None and weighs != "fixed":
            return f"least={self.least:g} takes the place of a fixed denominator, and there is none: leave it out"
        if chosen and self.least is None:
            return (
                "which center a client chose would show in how far that center moves: use gaussian(..., least=2), "
                "which counts the clients of a center under noise"
            )
        return ""

    def release(self, chance: Chance, weighs: Weighs) -> Release | None:
        """z, and what sampling gains where it does."""
        if not self.noise:
            return None
        ways: dict[Neighbours, Release] = {"zero": Release(self.noise)}
        if weighs == "fixed" and chance.kind in ("poisson", "all"):
            ways["add"] = Release(self.noise, chance, "add")
        if weighs != "examples" and chance.kind == "fixed":
            ways["replace"] = Release(self.noise / 2, chance, "replace")
        if self.neighbours == "auto":
            return list(ways.values())[-1]
        require(
            self.neighbours in ways,
            f"neighbours={self.neighbours} does not fit how clients are drawn and counted here: use "
            f"{' or '.join(ways)}; 'add' needs select=poisson and a fixed denominator, 'replace' select=uniform and "
            "equal weights (dp-fedavg has both)",
        )
        return ways[self.neighbours]

    def at_clients(self, rows: Stacks) -> Stacks:
        """Clip what was learned to length C; tell whether it was longer, and that one is here."""
        rows = rows | ({"count": rows["model"].new_ones(len(rows["model"]), 1)} if self.least is not None else {})
        if self.clip == math.inf:
            return rows
        start, model = rows["start"], rows["model"]
        clip = torch.tensor(self.clip, dtype=torch.float64, device=model.device)
        clip = clip if self.quantile is None else rows["clip"][:, 0].double()
        if self.quantile is not None:
            rows = rows | {"below": (_distance(model, start) <= clip)[:, None].to(model.dtype) - 0.5}
        for _ in range(2):  # once more where rounding has put a row outside again
            length = _distance(model, start)
            shorter = torch.where(length <= clip, 1.0, clip / length * (1 - 1e-7))[:, None]
            moved = start + shorter.to(model.dtype) * (model - start)
            model = torch.where(shorter == 1, model, moved)
        inside = _distance(model, start) <= clip * (1 + 1e-6)  # false for what is not finite, too
        return rows | {"model": torch.where(inside[:, None], model, start)}

    def at_centers(
        self, heard: dict[str, Heard], centers: Stacks, up: Ups, everyone: Cohort, arrived: Cohort
    ) -> dict[str, Heard]:
        """Noise on every center that heard somebody, or whose denominator is fixed; then what needs no privacy."""
        require(self.noise is not None, "the noise for an epsilon is found when a run begins: start it with `pc.run`")
        if not self.noise and not self.extra.sends and self.denoise is None:
            return heard
        mixing = up(arrived, "model")
        step = reach(mixing if mixing.rest == "share" else up(everyone, "model"))  # how far one client moves a center
        step = step if self.least is None else torch.full_like(step, float(step.max()))
        beside = torch.where(step > 0, 0.05 / step.clamp(min=1e-300), 0.0).clamp(min=2 * (self.noise or 0.0))
        z = self._of_model(float(beside.min()) if len(beside) else 0.0)
        clip = centers["clip"].double().cpu()[:, 0] if self.quantile is not None else self.clip
        scale = z * clip * step if z else torch.zeros_like(step)
        (values, mask), key = heard["model"], everyone.key
        values = self._noised(values, mask, scale, key, "privacy")
        new = dict(heard)
        for name in self.extra.sends if self.noise else ():
            told = self._noised(heard[name].values, mask, beside * step, key, name)
            new[name] = Heard(told, heard[name].mask)
        if self.least is not None:
            members = new["count"].values.double() / to_center(values, step.clamp(min=1e-300))[:, None]
            mean = (values - centers["model"]).double() / new["count"].values.double().clamp(min=1e-300)
            values = torch.where(members >= self.least, centers["model"] + mean.to(values), centers["model"])
            new["count"] = Heard(torch.zeros_like(new["count"].values), mask)
        if self.quantile is not None:
            above = (new["below"].values.double() + 0.5 - self.quantile).clamp(-1, 1)
            moved = (centers["clip"].double() * (-self.pace * above).exp()).to(centers["clip"])
            new["clip"] = Heard(torch.where(to_center(moved, mask)[:, None], moved, centers["clip"]), mask)
            new["below"] = Heard(torch.zeros_like(new["below"].values), mask)
        if self.denoise is not None:
            update = self.denoise(values - centers["model"], scale, list(self.sizes))
            values = torch.where(to_center(values, mask)[:, None], centers["model"] + update, values)
        return new | {"model": Heard(values, mask)}

    def _of_model(self, beside: float) -> float:
        """The noise that is left for the model where bits and counts have theirs."""
        if not self.noise or not self.extra.sends:
            return self.noise or 0.0
        cost = (self.quantile is not None) / (2 * beside) ** 2 + (self.least is not None) / beside**2
        return float((self.noise**-2 - cost) ** -0.5)

    def _noised(self, values: Tensor, mask: Tensor, scale: Tensor, key: tuple[int, ...], name: str) -> Tensor:
        """Every center that heard somebody, with noise of its own scale."""
        out = values.clone()
        for center in (mask & (scale > 0)).nonzero()[:, 0].tolist():
            for first in range(0, values.shape[1], COLUMNS):
                columns = torch.arange(first, min(first + COLUMNS, values.shape[1]))
                unit = self._unit((*key, name, center), columns)
                out[center, columns.to(out.device)] += (scale[center] * unit).to(out)
        return out

    def _unit(self, key: tuple[int | str, ...], columns: Tensor) -> Tensor:
        """Standard normal numbers for some columns."""
        return secret_normal(len(columns)) if self.secret else normal(*key, columns)

    def secured(self, key: bytes) -> Gaussian:
        """The same with noise that only who has a secret key can draw: always the same for the same exchange."""
        told = {each.name: getattr(self, each.name) for each in fields(Gaussian)}
        return self if self.secret else SecretGaussian(**told, key=key)


@dataclass(frozen=True)
class SecretGaussian(Gaussian):
    """`Gaussian` for centers whose seed others know: noise is drawn by a secret key and (round, exchange, center)."""

    key: bytes = field(default=b"", repr=False)

    def __repr__(self) -> str:
        """As in a run's folder: whoever opens it does not have the secret."""
        return repr(Gaussian(**{each.name: getattr(self, each.name) for each in fields(Gaussian)}))

    def _unit(self, key: tuple[int | str, ...], columns: Tensor) -> Tensor:
        return secret_normal(len(columns), self.key + f" {key} {int(columns[0])}".encode())

    def secured(self, key: bytes) -> Gaussian:
        """Itself: it is."""
        return self


def to_center(rows: Tensor, told: Tensor) -> Tensor:
    """A number for every center, where the centers are."""
    return told.to(rows.device)


def reach(up: Mixing) -> Tensor:
    """How far one client can move every center, at most, all centers together being moved by one: (centers,).

    s_i = max_k a_ik sqrt(c_k), with the weights a as they are mixed: divided by their sum where the mixing is a mean.
    """
    receiver, sender, weight = up.links
    share = weight.abs() / up.total[receiver] if up.rest == "share" else weight.abs()
    heard_by = torch.bincount(sender, minlength=up.shape[1])[sender].double()
    out = torch.zeros(up.shape[0], dtype=torch.float64)
    return out.scatter_reduce(0, receiver, share * heard_by.sqrt(), "amax")


def _distance(rows: Tensor, start: Tensor) -> Tensor:
    """|row - start|, (rows,) float64, some columns at a time."""
    out = torch.zeros(len(rows), dtype=torch.float64, device=rows.device)
    for moved in each(lambda piece: rows[:, piece].double() - start[:, piece].double(), pieces(rows), rows):
        out += moved.square().sum(1)
    return out.sqrt()


register(Privacy, "none", NoPrivacy)
register(Privacy, "gaussian", Gaussian)
