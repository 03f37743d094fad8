"""What attackers learn of a finished run: whose examples, and which clients, its models were trained on.

    loss        an example is called a member where the model in use fits it well: members are training examples,
                the others test examples of the same clients
    centers     the same by the center that fits it best: of who has all centers, and knows nobody's
    clients     a client is called a member where its mean loss is low; the others are clients held out of training
    shadows     a likelihood ratio: the run is repeated S times, each with a random half of every client's examples, and

                    phi  =  log(p / (1 - p)),   p = exp(-loss)
                    L    =  log N(phi; mean_in, s_in^2) - log N(phi; mean_out, s_out^2)

                for every example from the repeats that had it, and that had it not. Every repeat is attacked in turn,
                with the others as shadows, so members and others are drawn from the same examples. Beside it, the
                calibrated loss: phi less its mean over all other repeats

Training and test examples may differ without any training (other writers, a later time). So the attack on the initial
model stands beside that on the trained one, and the difference is what counts. Shadows need no such control.

An attack that fails proves nothing, since a better one may succeed; what an epsilon promises holds against all.

Reference:   Yeom et al., Privacy risk in machine learning, CSF 2018, https://arxiv.org/abs/1709.01604; Carlini et al.,
             Membership inference attacks from first principles, S&P 2022, https://arxiv.org/abs/2112.03570; Watson et
             al., On the importance of difficulty calibration in membership inference attacks, ICLR 2022,
             https://arxiv.org/abs/2111.08440
"""

from __future__ import annotations

import hashlib
import io
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from scipy.special import ndtri
from torch import Tensor

from ..data import Split
from ..errors import UsageError, require
from ..language.files import read_bytes
from ..stacks.draw import seed_of, shuffled, uniform
from .canary import Canary, canary as fly_canaries
from .checkpoint import renamed
from .evaluate import best_losses, example_losses
from .guarantee import delta_of, spent
from .separation import AT, Separation, most_auc, most_tpr, of_a_part, of_each, separation
from .serving import centers_are_models, personal
from .start import again

if TYPE_CHECKING:
    from .loop import Run

Unit = Literal["example", "client"]
Progress = Callable[[int, int, dict[str, Any]], None]
LEAST = 5  # members, and others, of a client whose own AUC is told
EACH = 64  # shadows from which on every example has variances of its own
FEW_SHADOWS = 4
KEPT = {"phi": torch.float64, "some": torch.bool, "took": torch.bool}  # of a shadow
MOST_BYTES = 1 << 32  # of a file with a shadow's scores


@dataclass(frozen=True, eq=False)
class Inference:
    """One attack, and what it came to."""

    name: str
    unit: Unit  # whose membership is guessed
    found: Separation
    before: Separation | None = None  # the same attack on the initial model
    worst: dict[str, Any] | None = None  # the client whose own examples are told apart best

    @property
    def gain(self) -> tuple[float, float] | None:
        """What training adds to the AUC, and its standard error."""
        return None if self.before is None else self.found.above(self.before)

    @property
    def succeeds(self) -> bool:
        """Whether it is better than guessing, by two standard errors, and not only since the data differ."""
        gain, error = self.gain or (1.0, 0.0)
        return self.found.sure > 0 and gain > 2 * error

    @property
    def verdict(self) -> str:
        """The result in a line."""
        auc = f"AUC {self.found.auc:.3f} ± {self.found.error:.3f}"
        if self.gain is not None and self.before is not None:
            more = "no more than by chance" if self.gain[0] <= 2 * self.gain[1] else "by training"
            auc += f", {self.gain[0]:+.3f} ± {self.gain[1]:.3f} over the initial model ({more})"
        if self.found.sure > 0 and not self.succeeds:
            return f"{self.name}: not sure, the data themselves may differ as much; {auc}"
        if not self.succeeds:
            return f"{self.name}: no better than guessing; {auc}"
        at, tpr = next(iter(self.found.tpr.items()))
        return f"{self.name}: members are told from others, {auc}; {tpr:.1%} of them at {at:.0%} false alarms"

    def to_json(self) -> dict[str, Any]:
        """Its numbers."""
        gain = dict(zip(("gain", "gain_error"), self.gain, strict=True)) if self.gain else {}
        before = {"before": self.before.to_json()} if self.before else {}
        worst = {"worst_client": self.worst} if self.worst else {}
        return {"unit": self.unit, **self.found.to_json(), "succeeds": self.succeeds, **before, **gain, **worst}


@dataclass(frozen=True, eq=False)
class Audit:
    """What attacks on a run came to, beside what the run promises."""

    attacks: tuple[Inference, ...]
    promises: dict[str, dict[str, Any]]  # by what is hidden, as `runs.guarantee.spent` has them
    canary: Canary | None = None
    notes: tuple[str, ...] = ()
    released: bool = True  # whether models in use are what is released: a promise is of that alone

    def allowed(self, unit: Unit) -> tuple[float, float] | None:
        """The (epsilon, delta) promised to one example or one client; None: nothing is."""
        known = {to: found for to, found in self.promises.items() if math.isfinite(found["epsilon"])}
        found = [(known[unit]["epsilon"], known[unit]["delta"])] if unit in known else []
        if unit == "example" and "client" in known:  # who hides a client hides its examples
            found.append(of_a_part(*(known["client"][key] for key in ("epsilon", "delta", "neighbours"))))
        return min(found, key=lambda pair: most_auc(*pair), default=None)

    def bound(self, unit: Unit) -> dict[str, Any] | None:
        """What the promise allows any attack; None: nothing is promised."""
        promised = self.allowed(unit)
        if promised is None or not self.released:
            return None
        epsilon, delta = promised
        tpr = {f"{at:g}": most_tpr(epsilon, at, delta) for at in AT}
        return {"epsilon": epsilon, "delta": delta, "auc": most_auc(epsilon, delta), "tpr_at_fpr": tpr}

    @property
    def said(self) -> list[str]:
        """The results in lines."""
        lines = [attack.verdict for attack in self.attacks]
        for worst in (attack.worst for attack in self.attacks if attack.worst):
            if worst["sure"]:
                more = f"the largest of {worst['clients']}; before training {worst['before']:.2f}"
                auc = f"{worst['auc']:.2f} ± {worst['auc_error']:.2f}"
                lines.append(f"worst off is client '{worst['client']}': AUC {auc} among its own examples ({more})")
        for attack in self.attacks:
            bound = self.bound(attack.unit)
            if bound and attack.before is None and attack.found.auc - 3 * attack.found.error > bound["auc"]:
                lines.append(f"{attack.name}: MORE than the stated epsilon allows, AUC {bound['auc']:.3f}: it is wrong")
        for unit in dict.fromkeys(attack.unit for attack in self.attacks):
            if bound := self.bound(unit):
                least = bound["tpr_at_fpr"][f"{AT[0]:g}"]
                lines.append(
                    f"whatever anybody tries to find one {unit}: AUC at most {bound['auc']:.3f}, {least:.1%} at "
                    f"{AT[0]:.0%} false alarms (epsilon {bound['epsilon']:.3g}, delta {bound['delta']:.2g})"
                )
        if not self.promises:
            lines.append("the run promises nothing, so nothing is said of attacks that were not tried")
        return [*lines, *([self.canary.words] if self.canary else []), *self.notes]

    def to_json(self) -> dict[str, Any]:
        """All of it, for a JSON file."""
        units = dict.fromkeys(attack.unit for attack in self.attacks)
        return {
            "attacks": {attack.name: attack.to_json() for attack in self.attacks},
            "promises": self.promises or None,
            "allowed": {unit: self.bound(unit) for unit in units},
            "canary": self.canary.to_json() if self.canary else None,
            "said": self.said,
        }


def audit(
    run: Run,
    *,
    shadows: int = 0,
    clients: bool = False,
    canary: int = 0,
    keep: str | Path | None = None,
    progress: Progress | None = None,
) -> Audit:
    """Attack a finished run; nothing of it is changed.

    Arguments:
        shadows: repeat the run so many times for the likelihood ratio attack; 0: do without.
        clients: also guess which clients trained, where the run held some out.
        canary: trials of a canary client in its private exchange; 0: none.
        keep: a folder for the scores of the shadows, so that an audit that was interrupted goes on.
        progress: told (done, of how many, summary) after every shadow.
    """
    federation = run.federation
    require(run.state.round > 0, "an audit is of a run that was trained, and this one has no rounds")
    require(not federation.absent, "an audit needs the run's examples: open it with federation=...")
    shared = federation.train.piece is not None
    require(not shared, "clients of this run share their examples, so nobody is a member alone: audit another run")
    good = shadows == 0 or shadows >= FEW_SHADOWS
    require(good, f"shadows={shadows} are too few to fit what examples in and out look like: use {FEW_SHADOWS} or more")
    require(keep is None or shadows > 0, f"keep={keep} is for the scores of shadows: give shadows=8, or leave it out")
    attacks, notes = list[Inference](), list[str]()
    who = _attacked(run)
    if bool((federation.test.sizes[who] > 0).any()):
        attacks += _loss_attacks(run, who)
        before = attacks[0].before
        if before is not None and before.sure:
            notes.append(
                f"training and test examples differ without any training (AUC {before.auc:.3f} ± {before.error:.3f} of "
                "the initial model), so only what training adds counts"
            )
    else:
        notes.append("no client that took part has test examples, so losses are compared with nothing")
    if clients:
        attacks += _client_attacks(run)
    if shadows:
        attacks += _shadow_attacks(run, shadows, None if keep is None else Path(keep), progress)
    require(bool(attacks), "there is nothing to attack: the clients have no test examples; try shadows=8")
    told, promises = _canaries(run, canary) if canary else None, spent(run)
    released = not personal(run) and not run.now.exchange.unpack
    if promises and not released:
        notes.append(
            "what is promised is of released models, and those in use are, in part, a client's own: the promise says "
            "nothing of these attacks"
        )
    return Audit(tuple(attacks), promises, told, tuple(notes), released)


# -- by the loss ---------------------------------------------------------------------------------------------


def confidence(losses: Tensor) -> Tensor:
    """phi = log(p / (1 - p)) with p = exp(-loss), which is about normal; of losses below zero, only their sign."""
    if bool((losses < 0).any()):
        return -losses
    return -torch.where(losses > 30, losses, losses.clamp(min=1e-30).expm1().log())


def _attacked(run: Run) -> Tensor:
    """The clients that were trained on and are honest, (clients,) bool."""
    took = run.tally.took
    there = run.now.trains if took is None else took > 0
    return there & ~run.clients.attackers


def _loss_attacks(run: Run, who: Tensor) -> list[Inference]:
    """By the models in use; and by the best of several centers, where they are whole models."""
    train, test, names = run.federation.train, run.federation.test, run.federation.clients
    who = who & (train.sizes > 0) & (test.sizes > 0)
    owner = torch.cat([train.owner, test.owner]).cpu()
    member = torch.arange(len(owner)) < len(train)
    here = who[owner]
    member, owner = member[here], owner[here]

    def scores(losses: Callable[[Split], Tensor]) -> Tensor:
        return confidence(torch.cat([losses(train), losses(test)]))[here]

    first = again(run)

    def told(name: str, now: Tensor, then: Tensor) -> Inference:
        found, before = (separation(score, member, owner, seed=run.settings.seed) for score in (now, then))
        each = [of_each(score, member, owner, LEAST) for score in (now, then)]
        return Inference(name, "example", found, before, _worst(each[0], each[1], names))

    used = [scores(lambda split, r=r: example_losses(r.method, r.state, r.clients, split)) for r in (run, first)]  # type: ignore[misc]
    attacks = [told("loss", *used)]
    several = len(run.state.centers["model"]) > 1 and not personal(run) and centers_are_models(run)
    if several:
        best = [
            scores(lambda split, r=r: best_losses(run.clients, split, r.state.centers["model"]))  # type: ignore[misc]
            for r in (run, first)
        ]
        attacks.append(told("centers", *best))
    return attacks


def _worst(
    found: dict[int, tuple[float, float]], before: dict[int, tuple[float, float]], names: tuple[str, ...]
) -> dict[str, Any] | None:
    """The client with the largest AUC; `sure`: neither the largest of so many by chance, nor for its data alone."""
    if not found:
        return None
    k = max(found, key=lambda client: found[client][0])
    (auc, error), (then, then_error) = found[k], before[k]
    margin = float(ndtri(1 - 0.025 / len(found)))
    sure = auc - 0.5 > margin * error and auc - then > margin * math.hypot(error, then_error)
    told = {"client": names[k], "auc": auc, "auc_error": error, "before": then, "before_error": then_error}
    deciles = np.quantile([value for value, _ in found.values()], (0.1, 0.5, 0.9)).tolist()
    spread = dict(zip(("p10", "p50", "p90"), deciles, strict=True))
    return told | {"sure": bool(sure), "clients": len(found)} | spread


def _client_attacks(run: Run) -> list[Inference]:
    """Who trained, by the mean loss on the examples that were trained on, and on others of the same client."""
    held_out = run.clients.held_out_mask
    require(
        bool(held_out.any()),
        "to tell clients that trained from others, some must be held out: run it again with --held-out 0.3",
    )
    own = personal(run)
    require(
        not own,
        f"in {run.method.name} clients have {' and '.join(own)} of their own, untrained at those held out, so their "
        "losses differ for another reason: leave clients out",
    )
    first, who = again(run), _attacked(run) | (held_out & ~run.clients.attackers)
    attacks = []
    for name, split in (("clients", run.federation.train), ("clients (test)", run.federation.test)):
        here = who & (split.sizes > 0)
        if int((here & held_out).sum()) == 0 or int((here & ~held_out).sum()) == 0:
            continue
        found = []
        for each in (run, first):
            losses = example_losses(each.method, each.state, each.clients, split)
            total = torch.zeros(len(here), dtype=torch.float64).index_add_(0, split.owner.cpu(), losses)
            found.append(separation(-(total / split.sizes)[here], ~held_out[here], seed=run.settings.seed))
        attacks.append(Inference(name, "client", found[0], found[1]))
    return attacks


# -- by shadows ----------------------------------------------------------------------------------------------


def half(split: Split, *key: int) -> Tensor:
    """A random half of every client's examples, (examples,) bool; of an odd number, one more by a coin."""
    n, owner = len(split), split.owner.cpu()
    order = shuffled(owner, *key, "half", torch.arange(n))
    rank = torch.empty(n, dtype=torch.int64)
    rank[order] = torch.arange(n) - split.offset.cpu()[owner]
    sizes = split.sizes.cpu()
    kept = sizes // 2 + (sizes % 2) * (uniform(*key, "odd", torch.arange(len(sizes))) < 0.5)
    return rank < kept[owner]


def likelihood_ratios(phi: Tensor, inside: Tensor) -> Tensor:
    """L of every example in every repeat, the others being the shadows, (repeats, examples).

    Variances are those of predictions, s^2 (1 + 1/n) from n repeats; s^2 is one for all examples where repeats are few.
    NaN where an example was in all of the other repeats, or in none.
    """
    repeats = len(phi)
    every = torch.arange(repeats)

    def fit(rows: Tensor, there: Tensor, at: Tensor) -> Tensor:
        n = there.sum(0).double()
        mean = torch.where(there, rows, 0.0).sum(0) / n
        apart = torch.where(there, rows - mean, 0.0).square().sum(0)
        few = repeats < EACH
        variance = (apart.nansum() / (n - 1).clamp(min=0).sum().clamp(min=1) if few else apart / (n - 1)).clamp(
            min=1e-12
        )
        variance = variance * (1 + 1 / n)
        return -((at - mean).square() / variance + variance.log()) / 2

    out = []
    for target in range(repeats):
        others = every != target
        rows, there = phi[others], inside[others]
        out.append(fit(rows, there, phi[target]) - fit(rows, ~there, phi[target]))
    return torch.stack(out)


def _shadow_attacks(run: Run, shadows: int, keep: Path | None, progress: Progress | None) -> list[Inference]:
    """The likelihood ratio; and phi over its mean in all other repeats, which takes fewer of them to know."""
    train = run.federation.train
    found = []
    for number in range(shadows):
        found.append(_kept(run, number, keep))
        if progress:
            progress(number + 1, shadows, {"method": "shadow", "seed": number})
    phi, some, took = (torch.stack(part) for part in zip(*found, strict=True))
    owner, inside = train.owner.cpu(), some & took
    phi = phi - phi.mean(1, keepdim=True)  # a repeat that fits everything better tells nothing of anybody
    ratio = likelihood_ratios(phi, inside)
    easier = phi - (phi.sum(0) - phi) / (shadows - 1)
    attacks = []
    for name, score in (("shadows", ratio), ("calibrated", easier)):
        # Of clients that took part: among their examples a coin alone says who is a member.
        there = (took & ~run.clients.attackers[owner] & ~ratio.isnan()).flatten()
        pairs = score.flatten()[there], inside.flatten()[there], owner.repeat(shadows)[there]
        attacks.append(Inference(name, "example", separation(*pairs, seed=run.settings.seed)))
    return attacks


def _kept(run: Run, number: int, folder: Path | None) -> tuple[Tensor, ...]:
    """What `_shadow` gives, from its file where there is one."""
    if folder is None:
        return _shadow(run, number)
    learned = hashlib.sha256(run.state.centers["model"].cpu().numpy().tobytes()).hexdigest()[:16]  # of this run alone
    path = folder / f"shadow-{learned}-{run.federation.fingerprint}-{number}.npz"
    if path.exists():
        try:
            with np.load(io.BytesIO(read_bytes(path, MOST_BYTES)), allow_pickle=False) as file:
                found = tuple(torch.from_numpy(file[name]) for name in KEPT)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UsageError(f"{path} holds no scores of a shadow: remove it, and it is made again") from error
        n = (len(run.federation.train),)
        good = all(part.shape == n for part in found) and [part.dtype for part in found] == list(KEPT.values())
        require(good, f"{path} holds the scores of other examples: remove it, and it is made again")
        return found
    found = _shadow(run, number)
    folder.mkdir(parents=True, exist_ok=True)

    def written(temporary: Path) -> None:
        with temporary.open("wb") as file:
            phi, some, took = (part.numpy() for part in found)
            np.savez_compressed(file, phi=phi, some=some, took=took)

    renamed(path, written)
    return found


def _shadow(run: Run, number: int) -> tuple[Tensor, Tensor, Tensor]:
    """The run again: phi of every training example, which were in its half, and whose client took part."""
    settings, seed = run.settings, seed_of(run.settings.seed, "shadow", number)
    some = half(run.federation.train, seed)
    federation = replace(run.federation, train=run.federation.train.only(some), source=None)
    every = settings.evaluate_every if settings.patience or settings.target else max(1, settings.rounds)
    asked: dict[str, Any] = {"seed": seed, "evaluate_every": every, "fine_tune": 0}
    asked |= {"alone": False, "optimistic": False, "dissimilarity": False, "checkpoint_every": None}
    if settings.held_out:  # the same clients
        asked["held_out_seed"] = settings.seed if settings.held_out_seed is None else settings.held_out_seed
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # said of the run itself
        shadow = again(run, federation, **asked).go()
    losses = example_losses(shadow.method, shadow.state, shadow.clients, run.federation.train)
    took = _attacked(shadow)[run.federation.train.owner.cpu()]
    return confidence(losses), some, took


# -- by a canary ---------------------------------------------------------------------------------------------


def _canaries(run: Run, trials: int) -> Canary:
    """Of the run's first exchange that hides something."""
    private = [exchange for exchange in run.method.at(0) if exchange.privacy.covers is not None and exchange.sends]
    require(bool(private), f"{run.method.name} has no privacy part here, so there is no epsilon to refute")
    delta = delta_of(run.settings.delta, run.federation.n_clients)
    return fly_canaries(private[0], run.clients.everyone(0), delta, trials=trials, seed=run.settings.seed)
