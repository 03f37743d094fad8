"""Before any training: what is unlike between clients, what is wrong with their data, and a first answer in words.

What is found is in `data.unlike`, `data.duplicates` and `data.suspicious`; the answer comes from `runs.probe`. Nothing
is claimed that is not beyond two standard errors of a paired difference.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from ..data import Federation
from ..data.duplicates import duplicates
from ..data.suspicious import all_of, some
from ..data.unlike import Finding, called, unlike
from .metrics import gini
from .probe import MOST_GROUPS, Difference, Probe, probe, why_not

SMALL = 10  # training examples below which a client is named

# A way, how it is called, and what to run for it.
WAYS = {
    "one": ("one center", "fedavg"),
    "tuned": ("one center and fine-tuning", "fedavg with fine-tuning"),
    "several": ("several centers", "fesem(k={k})"),
    "alone": ("training alone", "nofed"),
}


@dataclass(frozen=True, eq=False)
class Check:
    """What was found in a federation before any training."""

    federation: Federation
    findings: tuple[Finding, ...]
    probe: Probe | None  # None where it would say nothing; the answer says why
    answers: tuple[str, ...]

    def __str__(self) -> str:
        lines = [f"{found.about}: {found.text}" for found in self.findings]
        return "\n".join([*lines, *(f"answer: {line}" for line in self.answers)])

    def as_json(self) -> dict[str, Any]:
        """All of it, as JSON can hold it."""
        found = [asdict(finding) for finding in self.findings]
        out = {"data": self.federation.name, "clients": self.federation.n_clients, "findings": found}
        return out | {"probe": self._probed(), "answers": list(self.answers)}

    def _probed(self) -> dict[str, Any] | None:
        tried = self.probe
        if tried is None:
            return None
        names = [self.federation.clients[k] for k in tried.clients]
        pairs = [("one", "alone"), ("tuned", "alone"), ("tuned", "one")]
        pairs += [("several", other) for other in ("alone", "one", "tuned")] if tried.groups else []
        differences = {f"{a} - {b}": tried.difference(a, b) for a, b in pairs}
        return {
            "clients": len(names),
            "examples": len(tried.client),
            "features": tried.features,
            "scores": {way: tried.score(way) for way in tried.scores},
            "differences": {name: asdict(one) | {"sure": one.sure} for name, one in differences.items()},
            "k": tried.k if tried.groups else None,
            "groups": dict(zip(names, tried.groups[tried.k], strict=True)) if tried.groups else None,
        }


def check_data(federation: Federation, *, seed: int = 0) -> Check:
    """What is unlike between clients, and whether one center, several, or none is likely to serve them; in seconds.

    Arguments:
        federation: the clients and their data; the answer looks at training examples only.
        seed: of which clients and examples are probed, and in which turn each is held out.

    >>> from polycentric import load
    >>> print(check_data(load("digits", "rotations=4")).answers[-2])
    try first: fesem(k=4)
    """
    federation = federation.to("cpu")
    found = [*_sizes(federation), *unlike(federation), *duplicates(federation)]
    found += [Finding("mind", text) for text in all_of(federation)]
    why = why_not(federation)
    tried = None if why else probe(federation, seed)
    said = [f"no first answer: {why}"] if tried is None else _answers(federation, tried)
    return Check(federation, tuple(found), tried, tuple(said))


def _sizes(federation: Federation) -> list[Finding]:
    """How unequal clients are in size, and who is small."""
    sizes, names = federation.train.sizes, federation.clients
    low, high, unequal = int(sizes.argmin()), int(sizes.argmax()), gini(sizes.numpy())
    small = [names[k] for k in (sizes < SMALL).nonzero()[:, 0].tolist()]
    least, most = int(sizes[low]), int(sizes[high])
    text = f"{least:,} ({called(names[low])}) to {most:,} ({called(names[high])}) training examples, Gini {unequal:.2f}"
    text = text if least < most else f"{most:,} training examples at every client"
    if small:
        text += f"; {len(small)} of {len(names)} clients have fewer than {SMALL}: {some(small)}"
    numbers = {"smallest": least, "largest": most, "gini": unequal, "below_10": len(small)}
    return [Finding("sizes", text, numbers)]


def _answers(federation: Federation, tried: Probe) -> list[str]:
    """Does federation pay, do several centers, what to try; and what all that was."""
    lines = [_compared(tried, "one", "alone", _unit(federation))]
    if tried.difference("one", "alone").sure <= 0:
        lines.append(_compared(tried, "tuned", "alone", _unit(federation)))
    else:
        lines.append(_compared(tried, "tuned", "one", _unit(federation)))
    if not tried.groups:
        lines.append("several centers: not tried, for groups take at least 6 clients that can be probed")
    else:
        lines.append(_compared(tried, "several", "one", _unit(federation)) + _how_many(tried))
        if tried.difference("several", "one").sure > 0 >= tried.difference("one", "alone").sure:
            lines.append(_compared(tried, "several", "alone", _unit(federation)))
    return [*lines, _try_first(tried), _what_it_was(federation, tried)]


def _unit(federation: Federation) -> str:
    return "% explained" if federation.kind == "numbers" else "% right"


def _compared(tried: Probe, way: str, other: str, unit: str) -> str:
    """Which of two ways is better, for how many clients and by how much; or that it cannot be told."""
    found = tried.difference(way, other)
    a, b = WAYS[way][0], WAYS[other][0]
    if not found.sure:
        return f"whether {_verb(a, 'beat')} {b} cannot be told ({_points(found.mean, found)})"
    mean, better, worse = found.mean, found.better, found.worse
    if found.sure < 0:
        way, other, a, b, mean, better, worse = other, way, b, a, -mean, worse, better
    scores = f"{100 * tried.score(way):.1f} against {100 * tried.score(other):.1f} {unit}"
    clients = f"{better} of {len(tried.clients)} clients"
    clients += f", worse for {worse}" if 4 * better < 3 * len(tried.clients) else ""  # many may be as well off
    return f"{_verb(a, 'beat')} {b} for {clients} ({_points(mean, found)}: {scores})"


def _verb(who: str, verb: str) -> str:
    return f"{who} {verb}" if who.endswith("centers") else f"{who} {verb}s"


def _points(mean: float, found: Difference) -> str:
    """Percentage points with their standard error.

    >>> _points(0.123, Difference(0.123, 0.011, 34, 5, 2.0))
    '+12.3 ± 1.1 points'
    """
    digits = 1 if found.error >= 0.0005 else 2
    return f"{100 * mean:+.{digits}f} ± {100 * found.error:.{digits}f} points"


def _how_many(tried: Probe) -> str:
    """How many groups, where several pay."""
    if tried.difference("several", "one").sure <= 0:
        return ""
    more = " (more were not tried)" if tried.k == max(tried.groups) else ""
    return f"; {tried.k} groups{more}"


def _try_first(tried: Probe) -> str:
    """The best way, and those it does not surely beat."""
    ways = [way for way in WAYS if way in tried.scores]
    best = max(ways, key=tried.score)
    near = [way for way in ways if way == best or tried.difference(best, way).sure <= 0]
    # Of ways that cannot be told apart, one that costs more than another says nothing for itself.
    near = [way for way in near if not (way in ("tuned", "several") and "one" in near and way != best)]
    words = [WAYS[way][1].format(k=tried.k if tried.groups else 0) for way in near]
    return f"try first: {', '.join(words)}" + (" (which of them is better cannot be told)" if len(words) > 1 else "")


def _what_it_was(federation: Federation, tried: Probe) -> str:
    """What the answer rests on."""
    m, n = len(tried.clients), federation.n_clients
    who = f"all {n}" if m == n else f"{m} of {n:,}"
    part = "" if tried.whole else f", at most {tried.most} of each, so training alone is better than it looks here"
    groups = f", up to {min(MOST_GROUPS, max(tried.groups))} groups" if tried.groups else ""
    return (
        f"this is a probe, not a run: a linear model (ridge regression) of {tried.features}, on {len(tried.client):,} "
        f"training examples of {who} clients{part}, a fifth held out in turn{groups}; a larger model may find "
        "otherwise; ± is the standard error of the mean paired difference, and nothing within two of them is claimed"
    )
