"""In what clients are unlike: labels, features, numbers to predict, missing values, classes that one client alone has.

With v_ki a number of example i of client k (a feature; the brightness of an image; a target), n_k examples of m
clients, n in all, and mean_k, mean the means of client k and of all,

    within^2  = sum_k sum_i (v_ki - mean_k)^2 / (n - m)                     the pooled variance
    between^2 = (sum_k n_k (mean_k - mean)^2 / (m - 1) - within^2) / n0     n0 = (n - sum_k n_k^2 / n) / (m - 1)
    shift_k   = (mean_k - median of all means) / within

`between` is what is left of the differences of means when chance is taken off (the variance component of a one-way
analysis of variance), 0 where clients are alike; it is told in units of `within`, of features that pass the F test. A
client is named where its shift is beyond what the largest of all clients' and features' shifts would be by chance.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from scipy.special import fdtrc
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d

from ..stacks import draw
from .federation import Federation
from .label_skew import heterogeneity, label_counts
from .suspicious import some

LEVEL = 0.05  # how often anybody is named among clients that are alike
SLIGHT = 0.5  # shifts below so many pooled deviations are not told of single clients
SAID = 3  # of the worst
PATCHES = 4  # rows and columns of parts whose brightness is compared
BLOCK = 256  # features at a time


@dataclass(frozen=True)
class Finding:
    """One thing that was found."""

    about: str
    text: str
    numbers: Mapping[str, Any] = field(default_factory=dict)  # the same for a program, as JSON can hold it


@dataclass(frozen=True, eq=False)
class Shifts:
    """How far clients' means are apart; see the equations above."""

    names: tuple[str, ...]
    between: Tensor  # (numbers,) in pooled deviations; 0 where it may be chance, infinite where nothing varies within
    shift: Tensor  # (clients, numbers); NaN for clients without examples
    sure: Tensor  # (clients, numbers) bool: beyond chance


def unlike(federation: Federation) -> list[Finding]:
    """In what clients differ, a finding each."""
    said = [*_labels(federation), *_targets(federation), *_features(federation)]
    return [*said, *_missing(federation), *_single_classes(federation), *_untrained_classes(federation)]


def shifts(names: tuple[str, ...], values: Tensor, owner: Tensor, n_clients: int) -> Shifts:
    """Of numbers (examples, numbers), how far the means of clients are apart."""
    n_k = torch.bincount(owner, minlength=n_clients).double()
    n, m = float(n_k.sum()), int((n_k > 0).sum())
    if m < 2 or n <= m:
        none = torch.zeros(n_clients, len(names), dtype=torch.float64)
        return Shifts(names, none[0] if n_clients else none.sum(0), none, none > 0)
    n0 = (n - float(n_k.square().sum()) / n) / (m - 1)
    there = n_k > 0
    far = float(torch.special.ndtri(torch.tensor(1 - LEVEL / 2 / (m * len(names)), dtype=torch.float64)))
    parts: list[tuple[Tensor, Tensor, Tensor]] = []
    for block in torch.split(values, BLOCK, 1):
        v = block.double()
        small = 1e-7 * v.abs().amax(0)  # of a constant rounding leaves a little
        v = v - v.mean(0)
        mean = torch.zeros(n_clients, v.shape[1], dtype=torch.float64).index_add(0, owner, v) / n_k[:, None]
        within = ((v - mean[owner]).square().sum(0) / (n - m)).sqrt()
        within = torch.where(within > small, within, 0.0)
        apart = (n_k[:, None] * mean.nan_to_num().square()).sum(0) / (m - 1)
        between = ((apart - within.square()).clamp(min=0) / n0).sqrt() / within
        chance = torch.from_numpy(fdtrc(m - 1, n - m, (apart / within.square()).numpy()))
        varies = (chance < LEVEL / len(names)) | (within == 0)
        between = torch.where(varies & (apart > small.square()), between, 0.0)
        off = mean - mean[there].quantile(0.5, 0)  # one client that is far out does not move the median
        shift = torch.where(off.abs() > small, off / within, off * 0)
        farthest = far * (1 / n_k + math.pi / 2 * (1 / n_k[there]).mean() / m).sqrt()[:, None]
        parts.append((between, shift, shift.abs() > farthest.clamp(min=SLIGHT)))
    between, shift, sure = (torch.cat(part, -1) for part in zip(*parts, strict=True))
    return Shifts(names, between, shift, sure)


def _labels(federation: Federation) -> list[Finding]:
    """How far a client's labels are from everybody's, beside what chance gives clients of these sizes."""
    if not federation.classes:
        return []
    skew = heterogeneity(federation)
    train = federation.train
    mixed = draw.bits(0, "label skew", torch.arange(len(train))).argsort().to(train.y.device)
    chance = heterogeneity(replace(federation, train=replace(train, y=train.y[mixed])))
    counts = label_counts(federation).double()
    shares = counts / counts.sum(1, keepdim=True).clamp(min=1)
    off = (shares - counts.sum(0) / counts.sum()).abs().sum(1) / 2
    off = off.masked_fill(counts.sum(1) == 0, -1.0)
    worst = off.argsort(descending=True, stable=True)[:SAID].tolist()
    named = ", ".join(f"{called(federation.clients[k])} ({float(off[k]):.2f})" for k in worst)
    text = f"label skew {skew:.2f} in mean total variation, of which chance gives {chance:.2f}"
    text += (
        f"; farthest from everybody's: {named}" if skew > 1.1 * chance + 0.01 else ": clients are alike in their labels"
    )
    return [Finding("labels", text, {"heterogeneity": skew, "by_chance": chance})]


def _targets(federation: Federation) -> list[Finding]:
    """Numbers to predict that are larger at some clients than at others."""
    if federation.kind != "numbers":
        return []
    y = federation.train.y.cpu()
    y = y.reshape(len(y), -1)
    names = federation.targets or tuple(f"target {j}" for j in range(y.shape[1]))
    names = ("the target",) if not federation.targets and len(names) == 1 else names
    return [_told("targets", federation, shifts(names, y, federation.train.owner.cpu(), federation.n_clients))]


def _features(federation: Federation) -> list[Finding]:
    found = feature_shifts(federation)
    return [] if found is None else [_told("features", federation, found)]


def feature_shifts(federation: Federation) -> Shifts | None:
    """Shifts of features; of images' brightness, contrast, colours and parts; of series' means and deviations.

    None of symbols.
    """
    x, owner = federation.train.x.cpu(), federation.train.owner.cpu()
    if federation.symbols:
        return None
    if x.dim() == 2:
        names = federation.columns or tuple(f"feature {j}" for j in range(x.shape[1]))
        return shifts(names, x, owner, federation.n_clients)
    channels = x.shape[1]
    each = federation.columns if len(federation.columns) == channels else tuple(f"channel {j}" for j in range(channels))
    if x.dim() == 4:
        scale = 255.0 if x.dtype == torch.uint8 else 1.0
        values = torch.cat([_seen(part.float() / scale) for part in torch.split(x, 4096)])
        colours = each if channels > 1 else ()
        patches = (f"part {i + 1},{j + 1} of {PATCHES}x{PATCHES}" for i in range(PATCHES) for j in range(PATCHES))
        return shifts(("brightness", "contrast", *colours, *patches), values, owner, federation.n_clients)
    values = torch.cat([torch.cat([part.mean(2), part.std(2, correction=0)], 1) for part in torch.split(x, 4096)])
    names = (*(f"mean of {name}" for name in each), *(f"deviation of {name}" for name in each))
    return shifts(names, values, owner, federation.n_clients)


def _seen(images: Tensor) -> Tensor:
    """Brightness and contrast of images, their colours' where there are several, and the brightness of their parts."""
    colours = images.flatten(2).mean(2) if images.shape[1] > 1 else images[:, :0, 0, 0]
    parts = adaptive_avg_pool2d(images.mean(1, keepdim=True), PATCHES).flatten(1)
    contrast = images.flatten(1).std(1, correction=0)
    return torch.cat([images.flatten(1).mean(1)[:, None], contrast[:, None], colours, parts], 1)


def _told(about: str, federation: Federation, found: Shifts) -> Finding:
    """The features, and the clients, that are farthest apart."""
    size = found.shift.abs().masked_fill(~found.sure | found.shift.isinf(), 0).flatten()
    order = found.between.argsort(descending=True, stable=True).tolist()
    most = [j for j in order if 0 < float(found.between[j]) < torch.inf][:SAID]
    naming = [found.names[j] for j in order if bool(found.between[j].isinf())]
    far = [at for at in size.argsort(descending=True, stable=True)[:SAID].tolist() if float(size[at]) > 0]
    shifted = [
        {"client": federation.clients[k], "name": found.names[j], "shift": float(found.shift[k, j])}
        for k, j in (divmod(at, len(found.names)) for at in far)
    ]
    count = int((size.view_as(found.shift) > 0).any(1).sum())
    said = []
    if most:
        means = ", ".join(f"{found.names[j]} {float(found.between[j]):.2f}" for j in most)
        said.append(f"clients' means differ, in pooled deviations and chance taken off: {means}")
    if shifted:
        named = ", ".join(f"{called(one['client'])} in {one['name']} ({one['shift']:+.1f})" for one in shifted)
        said.append(f"{count} of {federation.n_clients} clients are shifted beyond chance, farthest {named}")
    if naming:
        said.append(f"{some(naming)}: constant within every client and not between them, so it names the client")
    said = said or [f"clients' means of {some(found.names, 3)} differ by no more than chance"]
    numbers = {"between": {found.names[j]: float(found.between[j]) for j in most}, "shifted": shifted}
    return Finding(about, "; ".join(said), numbers | {"clients_shifted": count, "names_the_client": naming})


def called(client: str) -> str:
    """A client's name, told from a number.

    >>> called("7"), called("ward 7")
    ('client 7', 'ward 7')
    """
    return f"client {client}" if client.isdecimal() else client


def _missing(federation: Federation) -> list[Finding]:
    """Values that were missing in a table, from the columns that say so: their share, and who lacks most."""
    x, train = federation.train.x, federation.train
    marks = [j for j, name in enumerate(federation.columns) if name.endswith(" missing")] if x.dim() == 2 else []
    if not marks:
        return []
    at = x[:, marks].cpu().double()
    if federation.scaling is not None:
        at = at * federation.scaling.spread[marks].cpu() + federation.scaling.mean[marks].cpu()
    gone = (at > 0.5).double()
    owner, n = train.owner.cpu(), federation.n_clients
    by_client = torch.zeros(n, len(marks), dtype=torch.float64).index_add(0, owner, gone) / train.sizes[:, None].cpu()
    said, numbers = [], {}
    for column, j in enumerate(marks):
        name = federation.columns[j].removesuffix(" missing")
        share, own = float(gone[:, column].mean()), by_client[:, column].nan_to_num(nan=-1.0)
        worst = int(own.argmax())
        said.append(f"{name} {share:.0%} (at {called(federation.clients[worst])} {float(own[worst]):.0%})")
        numbers[name] = {"share": share, "worst_client": federation.clients[worst], "worst_share": float(own[worst])}
    return [Finding("missing", f"training values missing: {some(said)}", numbers)]


def _single_classes(federation: Federation) -> list[Finding]:
    """Classes that one client alone has: nobody else can help to learn them, and they tell whose a model is."""
    if not federation.classes or federation.n_clients == 1:
        return []
    counts = label_counts(federation)
    only = ((counts > 0).sum(0) == 1).nonzero()[:, 0].tolist()
    if not only:
        return []
    holder = {federation.classes[c]: federation.clients[int(counts[:, c].argmax())] for c in only}
    named = some([f"{name} ({called(client)})" for name, client in holder.items()])
    word = "class has" if len(only) == 1 else "classes have"
    return [
        Finding("classes", f"{len(only)} {word} training examples at one client only: {named}", {"only_at": holder})
    ]


def _untrained_classes(federation: Federation) -> list[Finding]:
    """Clients that are tested on what they have no training example of."""
    if federation.kind not in ("classes", "boxes") or not len(federation.test):
        return []
    trained, tested = (
        label_counts(replace(federation, train=split)) > 0 for split in (federation.train, federation.test)
    )
    lacking = (tested & ~trained).any(1).nonzero()[:, 0].tolist()
    if not lacking:
        return []
    text = f"{len(lacking)} of {federation.n_clients} clients are tested on a class they have no training example of"
    return [Finding("classes", f"{text}: {some([federation.clients[k] for k in lacking])}", {"lacking": len(lacking)})]
