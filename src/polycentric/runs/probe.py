"""A first answer before any training: one model for all clients, one for each of several groups of them, or their own?

The probe is ridge regression, which is made of sums over clients. With examples z (features, then a 1) and targets t
(classes and labels as 0 and 1; numbers about zero and of one scale),

    G_k = sum_i z_i z_i'      b_k = sum_i z_i t_i'              over the examples i of client k
    W(S) = argmin_W sum_{k in S} sum_i |W' z_i - t_i|^2 + l |W|^2 = (sum_{k in S} G_k + l I)^-1 sum_{k in S} b_k

    alone       W({k})                                          the constant is not held back by l
    one         W(all)
    tuned       argmin_W sum_i |W' z_i - t_i|^2 + l |W - W(all)|^2      one model, then every client goes on from it
    K groups    W(S_1) .. W(S_K), every client in the group whose W fits it best, to and fro until nobody moves

A fifth of every client's training examples is held out in turn, and only what is held out is scored: by the share that
is right, or, where numbers are predicted, by the share of their variance that is explained, 1 - (W' z - t)^2. Whatever
is chosen (l of each way, K, who is in which group) is chosen without the fifth it is scored on. Test and validation
examples are not looked at. Ways are compared by the paired differences of clients' mean scores.

Reduces to: `one` is a single group; `tuned` is `one` for l to infinity.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from scipy.special import stdtrit
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d, one_hot

from ..data import Federation
from ..data.features import described
from ..data.federation import Kind
from ..errors import require
from ..stacks import draw

FOLDS = 5
LEAST = 5  # training examples of a client that is probed: one to hold out in every turn
STRENGTHS = (0.1, 1.0, 10.0, 100.0, 1e3, 1e4)  # l, where features have variance 1 on average
COMPONENTS = 64  # of more features so many principal components are taken
SIDE = 16  # to which the pixels of larger images are averaged
SERIES = 8  # moments from which a series is described by its features
MOST_GROUPS = 6
FEW = 6  # below so many clients nothing is said of others like them: errors are over these clients' examples
RESTARTS = 10
ITERATIONS = 30
# What is afforded, so that it takes seconds.
MOST_CLIENTS = 100
MOST_EXAMPLES = 30_000
MOST_NUMBERS = 1 << 25
Ways = dict[str, Tensor]


@dataclass(frozen=True)
class Difference:
    """By how much one way is better than another: the mean of clients' paired differences, and its standard error."""

    mean: float
    error: float
    better: int  # clients that are better off
    worse: int
    margin: float  # standard errors beyond which it is told: 2, or more where there are few clients (Student's t)

    @property
    def sure(self) -> int:
        """1 or -1 where the mean is beyond the margin, above or below zero; else 0."""
        return (self.mean > self.margin * self.error) - (self.mean < -self.margin * self.error)


@dataclass(frozen=True, eq=False)
class Probe:
    """What ridge regression came to on held-out training examples."""

    clients: tuple[int, ...]  # those that were probed
    client: Tensor  # (examples,) whose example it is, a position in `clients`
    scores: Mapping[str, Tensor]  # alone, one, tuned, 2, 3, ..; several: K chosen on other folds -> (examples,)
    groups: Mapping[int, tuple[int, ...]]  # K -> the group of every probed client, from all of its examples
    places: Tensor  # (clients, 2) the mean of every probed client's features, on their two principal axes
    features: str  # what the model saw of an example
    most: int  # examples of a client; those with more were sampled
    whole: bool  # whether nobody had more

    def by_client(self, way: str) -> Tensor:
        """Mean score of every probed client, (clients,)."""
        return means(self.scores[way], self.client)

    def score(self, way: str) -> float:
        """Mean over clients."""
        return float(self.by_client(way).mean())

    def difference(self, way: str, other: str) -> Difference:
        """By how much `way` is better than `other`.

        Its error is over clients, as if others like them were drawn; where they are few, over their examples.
        """
        each = self.scores[way] - self.scores[other]
        own = means(each, self.client)
        m = len(own)
        if m >= FEW:
            error, margin = float(own.std()) / math.sqrt(m), max(2.0, float(stdtrit(m - 1, 0.975)))
        else:
            n = torch.bincount(self.client)
            variance = means((each - own[self.client]).square(), self.client) / (n - 1)
            error, margin = float(variance.sum().sqrt()) / m, 2.0
        return Difference(float(own.mean()), error, int((own > 1e-12).sum()), int((own < -1e-12).sum()), margin)

    @property
    def k(self) -> int:
        """The smallest number of groups that the best one does not surely beat."""
        best = max(self.groups, key=lambda k: self.score(str(k)))
        return min(k for k in self.groups if self.difference(str(best), str(k)).sure <= 0)


def why_not(federation: Federation) -> str:
    """Why a probe would say nothing; empty where it does."""
    if federation.symbols:
        return "of sequences of symbols a linear model learns next to nothing"
    if federation.kind == "boxes":
        return "where things are in an image is no linear function of its pixels"
    probed = int((federation.train.sizes >= LEAST).sum())
    return "" if probed >= 2 else f"it takes two clients with {LEAST} training examples, and there are {probed}"


def probe(federation: Federation, seed: int = 0) -> Probe:
    """Alone, one model, groups: ridge regressions scored on held-out training examples of clients that are drawn."""
    require(not why_not(federation), f"no probe of '{federation.name}': {why_not(federation)}")
    train, c = federation.train, federation.n_outputs
    with_enough = (train.sizes >= LEAST).nonzero()[:, 0]
    afford = _afford(federation.shape, c)
    m = max(2, min(MOST_CLIENTS, 20_000 // c, afford // (4 * LEAST)))
    kept = with_enough[draw.uniform(seed, "probe", with_enough).argsort()[:m]].sort().values
    most = _most_each(train.sizes[kept], afford)
    index, client, fold = _dealt(federation, kept, most, seed)
    z, words = _features(federation, index, seed)
    y = train.y[index].reshape(len(index), -1)
    judge = _Judge(federation.kind, z, _targets(federation.kind, y, c), client, fold)
    scores, groups = _ways(judge, len(kept), seed)
    places = _places(z, client)
    whole = most >= int(train.sizes[kept].max())
    return Probe(tuple(kept.tolist()), client, scores, groups, places, words, most, whole)


def means(values: Tensor, client: Tensor) -> Tensor:
    """Every client's mean of numbers (examples,), (clients,)."""
    n = torch.bincount(client)
    return torch.zeros(len(n), dtype=torch.float64).index_add(0, client, values.double()) / n


# -- which examples, and what is seen of them ----------------------------------------------------------------


def _afford(shape: tuple[int, ...], c: int) -> int:
    """Examples that take seconds: by what is read, by what is kept of it, and by what is answered."""
    image = len(shape) == 3
    kept = shape[0] * min(SIDE, shape[1]) * min(SIDE, shape[2]) if image else math.prod(shape)
    read = math.prod(shape) / 16 if image else math.prod(shape)
    return int(min(MOST_EXAMPLES, MOST_NUMBERS / kept, MOST_NUMBERS / read, MOST_NUMBERS / (10 * c)))


def _most_each(sizes: Tensor, afford: int) -> int:
    """The most examples of a client such that all together are no more than can be afforded."""
    low, high = LEAST, int(sizes.max())
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if int(sizes.clamp(max=middle).sum()) <= afford else (low, middle - 1)
    return low


def _dealt(federation: Federation, kept: Tensor, most: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Examples of these clients, their clients (as positions) and folds, (examples,) each; who has more is sampled."""
    sizes = federation.train.sizes[kept]
    client = torch.repeat_interleave(torch.arange(len(kept)), sizes)
    place = torch.arange(len(client)) - (sizes.cumsum(0) - sizes)[client]
    index = (federation.train.first[kept][client] + place)[draw.shuffled(client, seed, "probe", kept[client], place)]
    first = (draw.uniform(seed, "fold", kept) * FOLDS).long()[client]
    fold, drawn = (first + place) % FOLDS, place < most
    return index[drawn], client[drawn], fold[drawn]


def _features(federation: Federation, index: Tensor, seed: int) -> tuple[Tensor, str]:
    """What the model sees of examples, (examples, features + 1), and in words; of variance 1 on average, then a 1."""
    pieces = (federation.train.x[some] for some in torch.split(index, 2048))
    shape = federation.shape
    image = len(shape) == 3
    if image:
        size = (min(SIDE, shape[1]), min(SIDE, shape[2]))
        rows, words = torch.cat([adaptive_avg_pool2d(piece.float(), size).flatten(1) for piece in pieces]), "pixels"
    elif len(shape) == 2 and shape[1] >= SERIES:
        rows = torch.cat([described(piece.double()).float() for piece in pieces])
        words = "moments and frequencies"
    else:
        rows, words = torch.cat([piece.flatten(1).float() for piece in pieces]), "features"
    n = rows.shape[1]
    words = f"{n} {words}"
    rows = rows - rows.mean(0)
    spread = rows.square().mean(0).sqrt()
    if image:  # pixels have one unit, and those that hardly vary say little
        spread = spread.square().mean().sqrt().expand(n)
    rows = rows / torch.where(spread > 0, spread, torch.inf)
    if n > COMPONENTS:
        rows, words = components(rows, COMPONENTS, seed), f"{COMPONENTS} principal components of {words}"
    rows = rows / rows.square().mean().sqrt().clamp(min=1e-9)
    return torch.cat([rows, torch.ones(len(rows), 1)], 1).double(), words


def components(rows: Tensor, n: int, seed: int) -> Tensor:
    """Rows (examples, n) on about their first n principal axes: those of rows on a range that two products find.

    Reference: Halko, Martinsson and Tropp, Finding structure with randomness, SIAM Review 2011
    """
    width = min(n + 16, rows.shape[1])
    basis = draw.normal(seed, "components", torch.arange(rows.shape[1])[:, None], torch.arange(width)[None]).float()
    for _ in range(2):
        basis = torch.linalg.qr(rows.T @ (rows @ basis)).Q
    near = rows @ basis
    axes = torch.linalg.eigh((near.T @ near).double()).eigenvectors.float()  # the largest is last
    out: Tensor = near @ axes[:, -n:].flip(1)
    return out


def _places(z: Tensor, client: Tensor) -> Tensor:
    """The mean of every client's features, on their two principal axes, (clients, 2)."""
    n = torch.bincount(client)
    mean = torch.zeros(len(n), z.shape[1], dtype=torch.float64).index_add(0, client, z) / n[:, None]
    u, s, _ = torch.linalg.svd(mean - mean.mean(0), full_matrices=False)
    out = torch.zeros(len(n), 2, dtype=torch.float64)
    out[:, : min(2, len(s))] = (u * s)[:, :2]
    return out


def _targets(kind: Kind, y: Tensor, c: int) -> Tensor:
    """What is regressed on, (examples, c)."""
    if kind == "classes":
        return one_hot(y[:, 0].long(), c).double()
    if kind == "labels":
        return y.double()
    t = y.double() - y.double().mean(0)
    spread = t.square().mean(0).sqrt()
    return t / torch.where(spread > 0, spread, 1.0)


# -- the ways, fitted and scored -----------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Judge:
    """Examples, whose they are, and when they are held out."""

    kind: Kind
    z: Tensor  # (examples, p)
    t: Tensor  # (examples, c)
    client: Tensor
    fold: Tensor

    def sums(self, m: int) -> list[tuple[Tensor, Tensor]]:
        """G (clients, p, p) and b (clients, p, c) without the examples of each fold, and last with all."""
        p, c = self.z.shape[1], self.t.shape[1]
        gram = torch.zeros(FOLDS, m, p, p, dtype=torch.float64)
        moment = torch.zeros(FOLDS, m, p, c, dtype=torch.float64)
        cell = self.fold * m + self.client
        counts = torch.bincount(cell, minlength=FOLDS * m).tolist()
        for at, some in enumerate(torch.split(cell.argsort(stable=True), counts)):
            z = self.z[some]
            gram.view(-1, p, p)[at], moment.view(-1, p, c)[at] = z.T @ z, z.T @ self.t[some]
        whole = gram.sum(0), moment.sum(0)
        return [(whole[0] - gram[fold], whole[1] - moment[fold]) for fold in range(FOLDS)] + [whole]

    def scores(self, models: Tensor, model: Tensor, fold: int) -> Tensor:
        """Scores (strengths, held out) of models (models, strengths, p, c), of which client k has model[k]."""
        at = (self.fold == fold).nonzero()[:, 0]
        used = model[self.client[at]]
        out = torch.zeros(models.shape[1], len(at), dtype=torch.float64)
        for j in torch.unique(used).tolist():
            here = used == j
            out[:, here] = self._score(self.z[at[here]] @ models[j], self.t[at[here]])
        return out

    def _score(self, said: Tensor, t: Tensor) -> Tensor:
        if self.kind == "classes":
            return (said.argmax(-1) == t.argmax(-1)).double()
        if self.kind == "labels":
            return ((said > 0.5) == (t > 0.5)).double().mean(-1)
        return 1 - (said - t).square().mean(-1)

    def choices(self, scores: Tensor) -> Tensor:
        """Which of several candidates' scores (candidates, examples) are best on all folds but one, (folds,)."""
        counts = torch.bincount(self.client).double()[self.client]
        by_fold = torch.zeros(len(scores), FOLDS, dtype=torch.float64).index_add(1, self.fold, scores / counts)
        return (by_fold.sum(1, keepdim=True) - by_fold).argmax(0)

    def chosen(self, scores: Tensor) -> Tensor:
        """In every fold the candidate that is best on the others, (examples,)."""
        return scores[self.choices(scores)[self.fold], torch.arange(len(self.fold))]


def ridge(gram: Tensor, moment: Tensor, strengths: Sequence[float], constant: float = 1e-6) -> Tensor:
    """(G + l I)^-1 b for every l, (..., strengths, p, c); the last feature, a 1, is held back by `constant` l."""
    held = torch.ones(gram.shape[-1], dtype=torch.float64)
    held[-1] = constant
    back = torch.tensor(list(strengths), dtype=torch.float64)[:, None, None] * held.diag()
    factor = torch.linalg.cholesky(gram[..., None, :, :] + back)
    return torch.cholesky_solve(moment[..., None, :, :].expand(*factor.shape[:-1], -1), factor)


def _ways(judge: _Judge, m: int, seed: int) -> tuple[Ways, dict[int, tuple[int, ...]]]:
    """Scores of every way, (examples,), and for every K the groups that all examples make."""
    *held_out, whole = judge.sums(m)
    ks = range(2, min(MOST_GROUPS, m // 3) + 1)
    each, same = torch.arange(m), torch.zeros(m, dtype=torch.int64)
    nothing = torch.zeros(len(STRENGTHS), len(judge.fold), dtype=torch.float64)
    tried = {way: nothing.clone() for way in ("alone", "one", "tuned", *map(str, ks))}
    common = [ridge(gram.sum(0), moment.sum(0), STRENGTHS) for gram, moment in held_out]
    for fold, one in enumerate(common):
        tried["one"][:, judge.fold == fold] = judge.scores(one[None], same, fold)
    choices = judge.choices(tried["one"]).tolist()
    for fold, (gram, moment) in enumerate(held_out):
        at, start = judge.fold == fold, common[fold][choices[fold]]
        tried["alone"][:, at] = judge.scores(ridge(gram, moment, STRENGTHS), each, fold)
        tuned = start + ridge(gram, moment - gram @ start, STRENGTHS, 1.0)
        tried["tuned"][:, at] = judge.scores(tuned, each, fold)
        for k in ks:
            group = grouped(gram, moment, k, STRENGTHS[choices[fold]], seed, fold)
            models = ridge(*_added(gram, moment, group, k), STRENGTHS)
            tried[str(k)][:, at] = judge.scores(models, group, fold)
    scores = {way: judge.chosen(tried[way]) for way in tried}
    if ks:
        scores["several"] = judge.chosen(torch.stack([scores[str(k)] for k in ks]))
    strength = STRENGTHS[max(set(choices), key=choices.count)]
    return scores, {k: tuple(grouped(*whole, k, strength, seed, FOLDS).tolist()) for k in ks}


def grouped(gram: Tensor, moment: Tensor, k: int, strength: float, *key: int) -> Tensor:
    """The group of every client, (clients,), such that the ridge regressions of k groups fit their clients well.

    A client goes to the group with the least squared error on its own examples, tr(W' G W) - 2 tr(W' b) + a constant;
    a group's W is that of its clients' sums; to and fro. The best of several such descents, which begin at the models
    of k clients that others' models do not fit.
    """
    own = ridge(gram, moment, (strength,))[:, 0]
    sums = torch.cat([gram.flatten(1), -2 * moment.flatten(1)], 1)

    def errors(models: Tensor) -> Tensor:
        return sums @ torch.cat([(models @ models.mT).flatten(1), models.flatten(1)], 1).T

    every = errors(own)
    best, least = torch.zeros(len(gram), dtype=torch.int64), math.inf
    for restart in range(RESTARTS):
        group = every[:, _seeds(every, draw.uniform(*key, "groups", restart, torch.arange(k)).tolist())].argmin(1)
        for _ in range(ITERATIONS):
            models = ridge(*_added(gram, moment, group, k), (strength,))[:, 0]
            error = errors(models)
            last, group = group, error.argmin(1)
            if torch.equal(group, last):
                break
        total = float(error.min(1).values.sum() + strength * models[:, :-1].square().sum())
        best, least = (group, total) if total < least else (best, least)
    return best


def _seeds(every: Tensor, draws: Sequence[float]) -> list[int]:
    """Clients to begin with: each likely where the models of those before it are much worse than its own."""
    seeds = [int(draws[0] * len(every))]
    for one in draws[1:]:
        chance = (every[:, seeds].min(1).values - every.diag()).clamp(min=0).cumsum(0)
        seeds.append(int(torch.searchsorted(chance, one * float(chance[-1])).clamp(max=len(every) - 1)))
    return seeds


def _added(gram: Tensor, moment: Tensor, group: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Sums of the clients of every group, (k, p, p) and (k, p, c)."""
    none = torch.zeros(k, *gram.shape[1:], dtype=torch.float64), torch.zeros(k, *moment.shape[1:], dtype=torch.float64)
    return none[0].index_add(0, group, gram), none[1].index_add(0, group, moment)
