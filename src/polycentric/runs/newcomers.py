"""Other data than a run's own: which center fits their clients, and how well the run's models serve them.

    assign      F_i(c_k), the mean loss of center k on the training examples of client i, for all i and k;
                its center is argmin_k F_i(c_k), the margin how much worse the second best is
    evaluate    every client's score on its test examples: who has the name of a client of the run keeps that client's
                model; a newcomer takes the center that `assign` names

Nothing is trained. Where clients of the run have parameters of their own (`serving.personal`), a newcomer has none: it
takes the mean of those that were trained, and that is said; what all trained clients answer together is scored beside
it (`unseen`).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ..data import Federation, Pool, Split, load
from ..data.columns import heads, is_missing, specs_of
from ..data.formats import folders, picture_files
from ..data.npz_file import renumbered
from ..data.pictures import made_grey
from ..data.sources import built_in, located, read
from ..data.table_file import SUFFIXES, csv_text, read_rows, rows_of
from ..errors import UsageError, require
from ..simulate.clients import Simulation
from ..stacks.stack import Stacks
from .evaluate import scored
from .metrics import Scores, plain
from .predict import CHUNK, cell_of, in_terms_of, prepared, rows_by_recipe, same_columns
from .serving import personal, row_of_center, rows_of_clients, untrained
from .unseen import Unseen, mean_of, told as told_of_way, unseen

if TYPE_CHECKING:
    from .loop import Run

DISTINCT = 0.9  # share of different examples from which on an example is known again


@dataclass(frozen=True, eq=False)
class Fits:
    """How well every center fits every client of some data."""

    clients: tuple[str, ...]
    centers: tuple[int, ...]  # by their numbers in the run
    losses: Tensor  # (clients, centers) float64; NaN where a client has no training examples
    note: str = ""  # what the reader must know

    @property
    def best(self) -> list[int | None]:
        """Every client's center, the lowest number where several are as good; None: it has no training examples."""
        return [None if bool(row.isnan().all()) else self.centers[int(_filled(row).argmin())] for row in self.losses]

    @property
    def margin(self) -> Tensor:
        """How much larger the loss of the second best center is, (clients,); NaN where there is no second."""
        if len(self.centers) < 2:
            return torch.full((len(self.clients),), torch.nan, dtype=torch.float64)
        two = torch.stack([_filled(row).sort().values[:2] for row in self.losses])
        return torch.where(two.isfinite().all(1), two[:, 1] - two[:, 0], torch.nan)

    def rows(self) -> Iterator[dict[str, Any]]:
        """A dictionary for each client."""
        for name, best, margin, row in zip(self.clients, self.best, self.margin.tolist(), self.losses, strict=True):
            losses = {f"loss_{k}": value for k, value in zip(self.centers, row.tolist(), strict=True)}
            yield {"client": name, "center": best, **plain({"margin": margin, **losses})}

    def table(self) -> str:
        """All rows as CSV."""
        rows = list(self.rows())
        return csv_text([list(rows[0]), *([cell_of(value) for value in row.values()] for row in rows)])


def _filled(row: Tensor) -> Tensor:
    """What is not finite never wins."""
    return torch.where(row.isfinite(), row, torch.inf)


@dataclass(frozen=True, eq=False)
class Elsewhere:
    """A run's models on other data."""

    federation: Federation
    scores: Scores
    own: Tensor  # (clients,) bool: clients of the run, by name
    center: list[int | None]  # of newcomers; None: its own model, or no whole model of a center
    attackers: Tensor  # (clients,) bool: attacked in the run, and count nowhere
    said: tuple[str, ...]  # what the reader must know
    unseen: Unseen | None = None  # three ways to serve newcomers, where clients of the run have parts of their own

    def summary(self) -> dict[str, Any]:
        """Scores of all, of the run's own clients, and of newcomers."""
        honest = ~self.attackers
        parts = {"metrics": honest}
        if bool((self.own & honest).any()) and not bool(self.own.all()):
            parts |= {"known": self.own & honest, "newcomers": ~self.own}
        whole = bool(honest.all())
        found: dict[str, Any] = {
            name: plain((self.scores if whole and name == "metrics" else self.scores.only(mask.numpy())).summary())
            for name, mask in parts.items()
        }
        if self.unseen is not None:
            new = {way: scores.only((~self.own).numpy()) for way, scores in self.unseen.scores.items()}
            found["unseen"] = {way: told_of_way(scores, way) for way, scores in new.items()}
        return {
            "data": self.federation.name,
            "fingerprint": self.federation.fingerprint,
            "clients": self.federation.n_clients,
            "own": int(self.own.sum()),
            **found,
            "said": list(self.said),
            "note": self.federation.note or None,
        }


def assign(
    run: Run,
    data: Any,
    *,
    partition: str | None = None,
    clients: int | None = None,
    data_seed: int | None = None,
) -> Fits:
    """Which center fits every client of other data, by the loss on its training examples; nothing is trained.

    Arguments:
        run: a finished run.
        data, partition, clients, data_seed: the other clients; as `polycentric.load`, or a data frame. Their features
            are scaled as the run's were.
    """
    if "model" in personal(run):
        raise UsageError(
            f"clients of {run.method.name} have whole models of their own: there is no center to choose; "
            "`polycentric evaluate` scores other data, and says with which model"
        )
    other, told = fitting_data(run, data, partition, clients, data_seed)
    numbers, rows, said = _centers(run)
    note = [f"{run.method.name} has one center, so there is nothing to choose"] if len(numbers) == 1 else []
    note += [*([said] if personal(run) else []), *told]
    return Fits(other.clients, tuple(numbers), _losses(run, other, rows), "; ".join(note))


def evaluate_on(
    run: Run,
    data: Any,
    *,
    partition: str | None = None,
    clients: int | None = None,
    data_seed: int | None = None,
    all_new: bool = False,
) -> Elsewhere:
    """Scores of a run's models on the test examples of other data; nothing is trained.

    Arguments:
        run: a finished run.
        data, partition, clients, data_seed: the other clients; as `polycentric.load`, or a data frame. Their features
            are scaled as the run's were.
        all_new: everybody is a newcomer, whatever they are called.
    """
    other, told = fitting_data(run, data, partition, clients, data_seed)
    number = {name: k for k, name in enumerate(run.federation.clients)}
    like = torch.tensor([-1 if all_new else number.get(name, -1) for name in other.clients])
    never = (like >= 0) & untrained(run)[like.clamp(min=0)]
    own = (like >= 0) & ~never
    said = [f"{int(own.sum())} of {other.n_clients} clients have the name of one of the run's, and its model"]
    if bool(own.any()) and other.fingerprint != run.federation.fingerprint:
        said[0] += " (if only the names are the same: --all-new, in Python all_new=True)"
    if bool(never.any()):
        said.append(f"{int(never.sum())} more have, but never took part, and count as newcomers")
    center: list[int | None] = [None] * other.n_clients
    rows: list[Stacks] = []
    at = torch.zeros(other.n_clients, dtype=torch.int64)
    if not bool(own.all()):
        numbers, rows, how = _centers(run)
        if len(rows) > 1:
            losses = _losses(run, other, rows)
            at = torch.where(losses.isfinite(), losses, torch.inf).argmin(1)
            blind = int((losses.isnan().all(1) & ~own).sum())
            how += ", by the loss on their training examples"
            how += f"; {blind} have none to choose by, and take the first" if blind else ""
        how += "; what all trained clients answer together is under unseen" if personal(run) else ""
        said.append(f"{int((~own).sum())} newcomers take {how}")
        center = [None if mine else numbers[k] for mine, k in zip(own.tolist(), at.tolist(), strict=True)]
    _warn_of_known_examples(run, other)
    if run.federation.absent:
        said.append("the run's own examples are not here, so nobody has looked whether it learned some of these")
    seen = Simulation(other, run.clients.task, seed=run.clients.seed, executor="looped", block=1)
    scores = scored(seen, other.test, _predictions(run, other, like, own, rows, at))
    ways = unseen(run, seen, other.test) if personal(run) and not bool(own.all()) else None
    said += [ways.note] if ways and ways.note else []
    attackers = own & run.clients.attackers[like.clamp(min=0)]
    if bool(attackers.any()):
        said.append(f"{int(attackers.sum())} attacked in the run; scores are those of the others")
    return Elsewhere(other, scores, own, center, attackers, (*said, *told), ways)


def fitting_data(
    run: Run, data: Any, partition: str | None, clients: int | None, data_seed: int | None
) -> tuple[Federation, list[str]]:
    """Other data as the run's own are, on its device, and what must be known; refused where they cannot be."""
    ours, dealt, said, read_alike = run.federation, run.settings, list[str](), False
    if not isinstance(data, Federation):
        seed = data_seed if data_seed is not None else dealt.seed if dealt.data_seed is None else dealt.data_seed
        found, said = read_as_the_runs(ours, data)
        read_alike = found is not None
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".* a name and no example")  # the classes are the run's
            if ours.scaling is not None:
                warnings.simplefilter("ignore")  # of units: they are brought to one scale below
            data = load(data if found is None else found, partition, clients=clients, seed=seed)
    theirs: Federation = data
    scaled = "load them without, the run's own scaling is applied"
    require(theirs.scaling is None, f"data '{theirs.name}' are standardised by themselves: {scaled}")
    what = f"data '{theirs.name}'"
    named = theirs.targets == ours.targets or not (theirs.targets and ours.targets)
    require(named, f"{what}: the numbers to predict are {theirs.targets}, and the run's {ours.targets}")
    for word in ("symbols", "inputs"):
        there, here = getattr(theirs, word), getattr(ours, word)
        require(there == here, f"{what}: {word} are {there}, and the run's {here}")
    table = "columns" in (ours.recipe or {})
    if ours.recipe is not None and not read_alike and _unfilled(theirs.recipe) != _unfilled(ours.recipe):
        instead = "give the table itself (.csv), which is read as the run's was" if table else "bytes are no floats"
        raise UsageError(
            f"{what} became numbers in another way than the run's did, so they mean something else: {instead}"
        )
    same_columns(ours, theirs.columns, what)

    def part(split: Split) -> Split:
        raw = _refilled(ours.recipe, split.x) if ours.recipe is not None and table and not read_alike else split.x
        x = prepared(ours, raw, what)
        return replace(split, x=x, y=in_terms_of(ours, split.y, theirs.classes, what)).to(run.clients.task.device)

    train, valid, test = map(part, (theirs.train, theirs.valid, theirs.test))
    same: dict[str, Any] = {
        name: getattr(ours, name) for name in ("classes", "targets", "columns", "scaling", "recipe")
    }
    return replace(theirs, train=train, valid=valid, test=test, source=None, **same), said


def _unfilled(recipe: Mapping[str, Any] | None) -> Any:
    """What decides the meaning of numbers in x: not the medians that fill gaps, which depend on the training rows."""
    recipe = recipe or {}
    columns = [{key: value for key, value in spec.items() if key != "fill"} for spec in recipe.get("columns", ())]
    return columns, recipe.get("target"), recipe.get("inputs")


def _refilled(recipe: Mapping[str, Any], x: Tensor) -> Tensor:
    """Examples whose gaps are filled as the run's were."""
    x, at = x.clone(), 0
    for spec in specs_of(recipe):
        if spec["kind"] != "category" and spec["missing"]:
            x[x[:, at + 1] == 1, at] = spec["fill"]
        at += len(heads(spec))
    return x


def read_as_the_runs(ours: Federation, data: Any) -> tuple[Pool | None, list[str]]:
    """A table, a data frame or a folder of pictures, read as the run's was; None where it is something else."""
    if hasattr(data, "columns"):
        return _pool_of_rows(ours, rows_of(data), "frame")
    kind = type(data).__name__
    require(isinstance(data, str | Path), f"other data are a name, a path, a federation or a data frame, got {kind}")
    if Path(data).suffix.lower() in SUFFIXES:
        return _pool_of_rows(ours, read_rows(data), Path(data).stem)
    how = (ours.recipe or {}).get("pictures")
    path = data if isinstance(data, Path) else None if built_in(data) else located(data)
    if how is not None and path is not None and path.is_dir() and ours.kind == "boxes":
        return read(path, size=tuple(how["size"])), []
    if how is None or path is None or not path.is_dir() or not picture_files(path):
        return None, []
    pool = folders(path, size=how["size"] and tuple(how["size"]))
    x, said = made_grey(pool.x) if how["channels"] == 1 else (pool.x, "")
    return replace(pool, x=x), [said] if said else []


def _pool_of_rows(ours: Federation, rows: Sequence[Mapping[str, Any]], name: str) -> tuple[Pool, list[str]]:
    """A table of clients by the recipe of the one that the run's data came from; rows without a target are left out."""
    x, y, known, said = rows_by_recipe(ours, rows, name)
    recipe = ours.recipe or {}
    column = recipe.get("client")
    if column is not None:
        require(column in rows[0], f"{name} has no column '{column}', which says whose a row is")
        known &= torch.tensor([not is_missing(str(row[column])) for row in rows])
    if y is None or not bool(known.any()):
        raise UsageError(f"{name} lacks a column of {', '.join(recipe['target']['columns'])}: who is scored needs it")
    if lost := int((~known).sum()):
        said.append(f"{name}: rows left out: {lost} without target{' or client' if column else ''}, of {len(rows)}")
    rows = [row for row, there in zip(rows, known.tolist(), strict=True) if there]
    client, clients = renumbered(np.array([str(row[column]) for row in rows])) if column else (None, ())
    whose: dict[str, Any] = {"client": client, "clients": clients}
    pool = Pool(name, x[known], y[known], ours.classes, **whose, targets=ours.targets, columns=ours.columns)
    return pool, said


def _centers(run: Run) -> tuple[list[int], list[Stacks], str]:
    """Numbers and parameters of all models that a newcomer may get, and what they are in words."""
    own, n = personal(run), len(run.state.centers["model"])
    mean = mean_of(run, own) if own else {}
    if "model" in own:
        words = f"the mean of all trained clients' models, since {run.method.name} has no center"
        return [0], [mean], words
    learned = run.now.exchange.topology.learned(run.state.memory)
    numbers = [k for k in range(n) if learned is None or not bool(learned.any()) or bool(learned[k])]
    rows = [({"model": run.state.centers["model"][k]} if own else row_of_center(run, k)) | mean for k in numbers]
    words = "the center's model" if len(numbers) == 1 else f"the best of {len(numbers)} centers"
    if own:
        words += f", with the mean of the {' and '.join(own)} parts of all trained clients in place of one of their own"
    return numbers, rows, words


def _losses(run: Run, other: Federation, rows: list[Stacks]) -> Tensor:
    """The mean loss of every model on every client's training examples, (clients, models)."""
    task, train, n = run.clients.task, other.train, other.n_clients
    owner, out = train.owner.cpu(), torch.zeros(n, len(rows), dtype=torch.float64)
    with torch.no_grad():
        for k, row in enumerate(rows):
            each = [
                task.loss(task.predict(row, task.inputs(x)), task.targets(y)).double().cpu()
                for x, y in zip(torch.split(train.x, CHUNK), torch.split(train.y, CHUNK), strict=True)
            ]
            out[:, k].index_add_(0, owner, torch.cat(each))
    return out / torch.where(train.sizes > 0, train.sizes, torch.nan)[:, None].cpu()


def _predictions(
    run: Run, other: Federation, like: Tensor, own: Tensor, rows: list[Stacks], at: Tensor
) -> Iterator[tuple[Tensor, Tensor]]:
    """(positions among the test examples, outputs there), every example once."""
    task, test = run.clients.task, other.test

    def outputs(row: Stacks, index: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        for some in torch.split(index, CHUNK):
            here = some.to(test.x.device)
            with torch.no_grad():
                yield here, task.predict(row, task.inputs(test.x[here]))

    owner = test.owner.cpu()
    for k, row in enumerate(rows):
        yield from outputs(row, (~own & (at == k))[owner].nonzero()[:, 0])
    mine = (own & (test.sizes.cpu() > 0)).nonzero()[:, 0]
    if len(mine):
        places = zip(mine.tolist(), rows_of_clients(run, like[mine]), strict=True)
        for client, (_, row) in places:
            first = int(test.first[client])
            yield from outputs(row, torch.arange(first, first + int(test.sizes[client])))


def _warn_of_known_examples(run: Run, other: Federation) -> None:
    """Say where examples that are scored were learned by the run: such scores are too good."""
    train = run.federation.train
    learned = set(_told(train))
    if len(learned) < DISTINCT * len(train):  # categories, say: the same row twice need not be the same example
        return
    known = sum(example in learned for example in _told(other.test))
    if known and other.fingerprint != run.federation.fingerprint:
        warnings.warn(
            f"{known} of {len(other.test)} test examples of '{other.name}' are the same as some that the run was "
            "trained on, so its scores may be too good",
            stacklevel=4,
        )


def _told(split: Split) -> list[bytes]:
    """Every example and its target in one piece."""
    x, y = (np.ascontiguousarray(part.detach().cpu().numpy()) for part in (split.x, split.y))
    return [a.tobytes() + b.tobytes() for a, b in zip(x, y, strict=True)]
