"""The layers of a checkpoint by their own names: nothing but the run's folder is needed, neither data nor model.

A checkpoint holds models as rows of numbers, one for each center or client. Its manifest says under `layout` which
columns of a row are which layer: {"centers/model": [{"name", "shape", "first", "last"}, ...], "kept/private": ...}; the
tensor of that name in the safetensors file has the rows, and `row[first:last].reshape(shape)` is the layer.
"""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from ..errors import UsageError, require
from .folder import Folder


def layers(folder: str | Path) -> dict[str, dict[str, Tensor]]:
    """Every layer of a run's last state: {"centers": {"head.weight": (centers, ...)}, "kept": {... (clients, ...)}}.

    What centers hold for all, and what clients keep for themselves; the best state where the run stopped by validation.

    Arguments:
        folder: of a run, finished or not.
    """
    there = Folder.open(Path(folder))
    settings, _ = there.read_config()
    checkpoint = there.load_last()
    state = checkpoint.state
    if there.finished and settings.patience and checkpoint.tally.best_round is not None:
        state = there.load_best(round=checkpoint.tally.best_round)
    good = bool(checkpoint.layout)
    require(good, f"{folder} was written by a version that did not say which layer is where: use pc.open(...).model_of")
    out: dict[str, dict[str, Tensor]] = {"centers": {}, "kept": {}}
    for key, every in checkpoint.layout.items():
        part, _, name = key.partition("/")
        try:
            rows = {"centers": state.centers, "kept": state.kept}[part][name].as_subclass(Tensor)
            for layer in every:
                shape = (len(rows), *layer["shape"])
                out[part][layer["name"]] = rows[:, layer["first"] : layer["last"]].reshape(shape)
        except (KeyError, RuntimeError, IndexError) as error:
            raise UsageError(f"{folder}: the layout of its checkpoint does not fit its tensors ({key})") from error
    return {part: found for part, found in out.items() if found}
