"""Answers to new examples, by the model of a client or of a center of a finished run.

    a file      .npz as `polycentric.data.npz` has it, with or without y; a folder of pictures, flat, by class, or by
                client and class; a table (.csv) where the run's data came from one
    in memory   a tensor or array; a data frame where the run's data came from a table; several inputs by name
    an answer   the class and the probability of each, the labels and theirs, or numbers

What was done to the run's examples is done to these: the recipe of a table, the size of pictures, standardising, bytes
divided by 255. Where an example says what is right, that stands beside its answer, with its loss.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ..data import npz
from ..data.archive import LIMIT, names_in, unzipped
from ..data.federation import Federation, kind_of, renamed
from ..data.from_memory import packed
from ..data.from_table import known_targets, rows_to_inputs, unlike_training
from ..data.npz_file import labels, without_targets
from ..data.pictures import SUFFIXES, pictures_to_inputs, unpacked
from ..data.table_file import csv_text, read_rows, rows_of
from ..errors import UsageError, require
from ..tasks.goal import Goal
from .evaluate import at_once
from .metrics import plain
from .serving import holder

if TYPE_CHECKING:
    from .loop import Run

CHUNK = 4096  # examples at once, where they are small


@dataclass(frozen=True, eq=False)
class NewExamples:
    """Examples before anything was done to them, and what is right where that is known."""

    x: Tensor
    y: Tensor | None = None  # by the classes of the run
    names: tuple[str, ...] = ()  # of files
    known: Tensor | None = None  # (examples,) bool, which of y are known; None: all
    said: tuple[str, ...] = ()  # what the reader must know


@dataclass(frozen=True, eq=False)
class Predictions:
    """One answer for each example."""

    outputs: Tensor  # (examples, ...) float64
    goal: Goal  # how outputs are read
    heads: tuple[str, ...]  # names of classes, labels or numbers
    targets: Tensor | None = None
    losses: Tensor | None = None  # (examples,) where targets are known
    names: tuple[str, ...] = ()
    known: Tensor | None = None  # (examples,) bool: whose targets are known; None: all or none of them
    said: tuple[str, ...] = ()  # what the reader must know

    @property
    def answers(self) -> Tensor:
        """Classes by number, 0 and 1 for each label, or numbers."""
        return self.goal.answers(self.outputs)

    @property
    def probabilities(self) -> Tensor | None:
        """Of every class or label, (examples, n_outputs); None where there are none."""
        return self.goal.probabilities(self.outputs)

    @property
    def right(self) -> Tensor | None:
        """Share of what was told that is right, (examples,); None where that is not known, or nothing is."""
        return None if self.targets is None else self.goal.right(self.answers, self.targets)

    def summary(self) -> dict[str, float | None]:
        """How good the answers are, over the examples of which that is known."""
        if self.targets is None or self.losses is None or not len(self.outputs):
            return {}
        some = slice(None) if self.known is None else self.known
        out = {"loss": float(self.losses[some].mean())}
        if self.right is not None:
            return plain(out | {"accuracy": float(self.right[some].mean())})
        return plain(out | self.goal.off(self.answers[some], self.targets[some]))

    def rows(self) -> Iterator[dict[str, Any]]:
        """A dictionary for each example, by the headings of the table."""
        chances, right = self.probabilities, self.right
        for i in range(len(self.outputs)):
            row: dict[str, Any] = {"example": i}
            row |= {"file": self.names[i]} if self.names else {}
            row |= self._told("predicted", self.answers[i])
            if chances is not None:
                row |= {f"probability_{name}": float(chances[i, j]) for j, name in enumerate(self.heads)}
            if self.targets is not None and self.losses is not None:
                told = self._told("true", self.targets[i])
                told |= {} if right is None else {"right": float(right[i])}
                told |= {"loss": float(self.losses[i])}
                row |= told if self.known is None or bool(self.known[i]) else dict.fromkeys(told)
            yield row

    def _told(self, what: str, values: Tensor) -> dict[str, Any]:
        told = self.goal.told(values, self.heads)
        return {f"{what}_{name}" if name else what: value for name, value in told.items()}

    def table(self) -> str:
        """All rows as CSV."""
        rows = list(self.rows())
        head = list(rows[0]) if rows else ["example"]
        return csv_text([head, *([cell_of(value) for value in row.values()] for row in rows)])


def cell_of(value: Any) -> Any:
    """A value as a cell of a table: seven digits, and nothing where there is none."""
    return f"{value:.7g}" if isinstance(value, float) else "" if value is None else value


def predict(run: Run, what: Any, *, client: int | str | None = None, center: int | None = None) -> Predictions:
    """Answers to new examples.

    Arguments:
        run: a finished run.
        what: a file or folder; examples (n, *shape) as they are before anything is done to them; a data frame where the
            run's data came from a table; a dictionary of inputs where its model takes several.
        client, center: whose model answers; neither: the center's, where there is one and it has a whole model.
    """
    whose = holder(run, client, center)
    federation, task = run.federation, run.clients.task
    new = read_examples(run, Path(what)) if isinstance(what, str | Path) else _in_memory(federation, what)
    x = prepared(federation, new.x, str(what) if isinstance(what, str | Path) else "x")
    outputs, losses = [], []
    with torch.no_grad():
        for first in range(0, len(x), n := at_once(CHUNK, x)):
            mine = slice(first, first + n)
            found = task.predict(whose.rows, task.inputs(x[mine].to(task.device)))
            outputs.append(found.double().cpu())
            if new.y is not None:
                losses.append(task.loss(found, task.targets(new.y[mine].to(task.device))).double().cpu())
    heads = federation.classes or federation.targets or tuple(map(str, range(federation.n_outputs)))
    together = torch.cat(losses) if losses else None
    told = (torch.cat(outputs), task.goal, heads, new.y, together, new.names, new.known)
    return Predictions(*told, said=new.said)


def prepared(federation: Federation, x: Tensor, what: str) -> Tensor:
    """New examples as the run's are: of its shape and type, scaled as they were."""
    ours = federation.train.x
    if x.dim() == 4 and ours.dim() == 4 and x.shape[1] == 1 and ours.shape[1] == 3 and x.dtype == torch.uint8:
        x = x.expand(-1, 3, -1, -1)  # grey pictures among coloured ones
    require(
        tuple(x.shape[1:]) == federation.shape,
        f"{what}: examples have shape {tuple(x.shape[1:])}, and the run's {federation.shape}"
        + (
            "; pictures are resized here where the run's were, by data import --size"
            if x.shape[2:] != ours.shape[2:] and x.dim() == ours.dim() == 4
            else ""
        ),
    )
    alike = x.dtype == ours.dtype or (x.is_floating_point() and ours.is_floating_point()) or bool(federation.symbols)
    require(alike, f"{what}: examples are {_kind(x)}, and the run's {_kind(ours)}")
    if x.is_floating_point():
        require(bool(x.isfinite().all()), f"{what}: examples hold NaN or infinity; remove or fill such values")
    if federation.symbols and x.numel():
        low, high = int(x.min()), int(x.max())
        require(
            0 <= low and high < federation.symbols,
            f"{what}: symbols run from {low} to {high}, not 0 to {federation.symbols - 1}",
        )
    return x.to(ours.dtype) if federation.scaling is None else _scaled(federation, x)


def _scaled(federation: Federation, x: Tensor) -> Tensor:
    assert federation.scaling is not None
    mean, spread = federation.scaling.mean, federation.scaling.spread
    return type(federation.scaling)(mean.to(x.device), spread.to(x.device))(x)


def _kind(x: Tensor) -> str:
    return "bytes (uint8)" if x.dtype == torch.uint8 else f"numbers ({str(x.dtype)[6:]})"


# -- in memory --------------------------------------------------------------------------------------------------------


def _in_memory(federation: Federation, what: Any) -> NewExamples:
    if hasattr(what, "columns"):
        return _table(federation, rows_of(what), "the frame")
    if isinstance(what, Mapping):
        return NewExamples(several_inputs(federation, what, "x"))
    if isinstance(what, Tensor | np.ndarray):
        return NewExamples(torch.as_tensor(what))
    raise UsageError(
        f"predict takes a path, a tensor, an array, a data frame or a dictionary of inputs, got {type(what).__name__}"
    )


def several_inputs(federation: Federation, several: Mapping[str, Any], what: str) -> Tensor:
    """Several inputs by name, end to end as the run's are."""
    wanted, was = dict(federation.inputs), (federation.recipe or {}).get("inputs", {})
    require(bool(wanted), f"{what}: the run's model takes one input, not {', '.join(map(str, several))}")
    missing = [name for name in wanted if name not in several]
    require(not missing, f"{what}: input {', '.join(missing)} is missing; the run's are {', '.join(wanted)}")
    x, inputs, recipe = packed(what, {name: several[name] for name in wanted})
    for name, shape in inputs:
        kind, right = recipe["inputs"][name], was.get(name, "float32")
        good = shape == wanted[name] and kind == right
        require(good, f"{what}: input '{name}' is {kind} of {shape}, and the run's was {right} of {wanted[name]}")
    return x


# -- files ------------------------------------------------------------------------------------------------------------


def read_examples(run: Run, path: Path) -> NewExamples:
    """The examples of a file or folder."""
    federation = run.federation
    require(path.exists(), f"there is no file or folder '{path}'; check the path")
    if path.is_dir() or path.suffix.lower() in SUFFIXES:
        return _pictures(federation, path)
    if path.suffix.lower() != ".npz":
        return _table(federation, read_rows(path), str(path))
    names = set(names_in(path))
    if federation.inputs and {name for name, _ in federation.inputs} <= names:
        arrays = unzipped(path, [*dict(federation.inputs), "y"])
        x = several_inputs(federation, arrays, str(path))
        y = labels(path.name, arrays["y"], None) if "y" in arrays else None
        return NewExamples(x, None if y is None else in_terms_of(federation, *y, str(path)))
    if not {"y", "text", "boxes"} & names:
        x, _, columns = without_targets(path)
        same_columns(federation, columns, str(path))
        return NewExamples(x)
    pool = npz(path)
    same_columns(federation, pool.columns, str(path))
    if federation.symbols:
        good = pool.symbols == federation.symbols and pool.classes == federation.classes
        require(good, f"{path} is written with other symbols than the run's data")
    return NewExamples(pool.x, in_terms_of(federation, pool.y, pool.classes, str(path)))


def same_columns(federation: Federation, columns: Sequence[str], what: str) -> None:
    """Refuse features in another order, or other features, where both have names."""
    if columns and federation.columns and tuple(columns) != federation.columns:
        at = next((j for j, (a, b) in enumerate(zip(columns, federation.columns, strict=False)) if a != b), None)
        said = (
            f"it has {len(columns)} columns, and the run's data {len(federation.columns)}"
            if at is None
            else f"column {at} is '{columns[at]}', and '{federation.columns[at]}' in the run's data"
        )
        raise UsageError(f"{what}: {said}")


def in_terms_of(federation: Federation, y: Tensor, classes: Sequence[str], what: str) -> Tensor:
    """Targets by the classes of a run's data; classes are known by their names."""
    ours = federation.classes
    theirs = kind_of(y, tuple(classes))
    require(
        theirs == federation.kind,
        f"{what} has {theirs} as targets, and the run's data {federation.kind}",
    )
    if federation.kind == "numbers":
        wide, here = federation.n_outputs, y.shape[1] if y.dim() == 2 else 1
        require(wide == here, f"{what} has {here} numbers to predict, and the run's data {wide}")
        return y
    if federation.kind == "labels" or tuple(classes) == ours:
        strange = [f"'{a}'" for a in classes if a not in ours] or ["in another order"]
        require(tuple(classes) == ours, f"{what} has other labels than the run's data: {', '.join(strange[:5])}")
        return y
    strange = [name for name in classes if name not in ours]
    numbers = all(name.isdecimal() and int(name) < len(ours) for name in classes)
    if numbers and not any(name.isdecimal() for name in ours):  # a file without names: by number
        return renamed(y, torch.tensor([int(name) for name in classes]))
    if strange:
        raise UsageError(f"{what} has a class '{strange[0]}', which is none of the run's: {', '.join(ours[:20])}")
    return renamed(y, torch.tensor([ours.index(name) for name in classes]))


def _pictures(federation: Federation, path: Path) -> NewExamples:
    """Pictures side by side, in folders by class, or by client and class."""
    files, depth = [path], 0
    if path.is_dir():
        found = ((depth, sorted(_shown(path, "/".join(["*"] * (depth + 1))))) for depth in range(3))
        depth, files = next(((depth, files) for depth, files in found if files), (0, []))
        require(bool(files), f"{path} has no pictures ({', '.join(SUFFIXES)}), neither by itself nor by class")
    names = tuple(str(file.relative_to(path)) if path.is_dir() else file.name for file in files)
    if "pictures" in (federation.recipe or {}):
        x, grey = pictures_to_inputs(federation.recipe or {}, files)
    else:
        x, grey = torch.from_numpy(unpacked(files, names, None, LIMIT)), ""
    said = (grey,) if grey else ()
    if not depth:
        return NewExamples(x, None, names, said=said)
    classes = sorted({file.parent.name for file in files})
    y = torch.tensor([classes.index(file.parent.name) for file in files])
    strange = [name for name in classes if name not in federation.classes]
    if federation.kind != "classes" or strange:
        which = f"'{strange[0]}' is no class of the run's data" if strange else "the run's data have no classes"
        raise UsageError(f"{path}: pictures lie in folders by class, and {which}: put them side by side")
    return NewExamples(x, torch.tensor([federation.classes.index(name) for name in classes])[y], names, said=said)


def _shown(path: Path, pattern: str) -> Iterator[Path]:
    for file in path.glob(pattern):
        inside = file.relative_to(path).parts
        if file.suffix.lower() in SUFFIXES and file.is_file() and not any(part.startswith(".") for part in inside):
            require(file.resolve().is_relative_to(path.resolve()), f"{file} is a link that leaves {path}")
            yield file


def _table(federation: Federation, rows: Sequence[Mapping[str, Any]], what: str) -> NewExamples:
    """Rows of a table; what is right is known where they have the column that was learned."""
    x, y, known, said = rows_by_recipe(federation, rows, what)
    if y is None or not bool(known.any()):
        return NewExamples(x, said=tuple(said))
    if not bool(known.all()):
        said.append(f"{int((~known).sum())} of {len(rows)} rows say nothing of what is right: they are not scored")
    return NewExamples(x, y, known=None if bool(known.all()) else known, said=tuple(said))


def rows_by_recipe(
    federation: Federation, rows: Sequence[Mapping[str, Any]], what: str
) -> tuple[Tensor, Tensor | None, Tensor, list[str]]:
    """Rows of a table by the recipe of the run's: x, y, which of y are known, and what must be said."""
    recipe = federation.recipe
    if recipe is None or "columns" not in recipe:
        raise UsageError(
            f"{what}: the run's data did not come from a table, so nothing says how rows become examples: give an .npz "
            "file or a folder of pictures"
        )
    require(len(rows) > 0, f"{what} has no rows")
    y, known = None, torch.zeros(len(rows), dtype=torch.bool)
    if all(column in rows[0] for column in recipe["target"]["columns"]):
        y, known = known_targets(recipe, rows)
    said = [f"{what}: {sentence}" for sentence in unlike_training(recipe, rows)]
    return rows_to_inputs(recipe, rows), y, known, said
