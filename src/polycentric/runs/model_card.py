"""What stands beside an exported model: all that somebody who has only the file must know, and the lines that load it.

    before      what is done to an example outside of the file: rows of a table become numbers, pictures get their size
    inside      what the file does itself: bytes divided by 255, several inputs laid end to end, features standardised
    load        lines of Python from what somebody has in hand to the outputs

Of a .safetensors file, which is parameters alone, all of it is `before`, and the lines do it.
"""

from __future__ import annotations

import builtins
import keyword
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ..language.own_code import is_own
from ..models import MODELS
from .machine import versions
from .outputs import identity
from .serving import Holder

if TYPE_CHECKING:
    from .loop import Run


class Argument(NamedTuple):
    """Something that an exported model is called with."""

    name: str  # as the user called it
    variable: str  # in the lines that are printed, and in an .onnx file
    shape: tuple[int, ...]
    dtype: str

    @property
    def words(self) -> str:
        """Shape and type, for people."""
        return f"{self.variable}: ({', '.join(map(str, ('batch', *self.shape)))}), {self.dtype}"


def arguments(run: Run) -> list[Argument]:
    """What goes into a model: x, or several inputs under their own names."""
    federation = run.federation
    if not federation.inputs:
        return [Argument("x", "x", federation.shape, str(federation.train.x.dtype)[6:])]
    kinds = (federation.recipe or {}).get("inputs", {})
    ours = (
        "x torch json Path model build load_file about mean spread part parts shape outputs session onnxruntime".split()
    )
    taken = {*keyword.kwlist, *dir(builtins), *ours}

    def variable(at: int, name: str) -> str:
        return name if name.isidentifier() and name not in taken and not name.startswith("input_") else f"input_{at}"

    return [
        Argument(name, variable(at, name), shape, kinds.get(name, "float32"))
        for at, (name, shape) in enumerate(federation.inputs)
    ]


def description(run: Run, whose: Holder, path: Path, format: str, digest: str, lines: str) -> dict[str, Any]:
    """All that somebody who has only the file must know."""
    federation, task, scaling = run.federation, run.clients.task, run.federation.scaling
    outside, inside = before(run)
    return {
        "file": path.name,
        "format": format,
        "sha256": digest,
        **whose.to_json(),
        "model": run.model,
        "class": type(task.module).__name__,
        "input_shape": list(federation.shape),
        "input_dtype": str(federation.train.x.dtype)[6:],
        "inputs": [[one.name, list(one.shape), one.dtype] for one in arguments(run)],
        "symbols": federation.symbols,
        "outputs": federation.n_outputs,
        "outputs_are": task.goal.outputs_are,
        "dtype": str(task.dtype)[6:],
        "kind": federation.kind,
        "classes": list(federation.classes),
        "targets": list(federation.targets),
        "columns": list(federation.columns),
        "before": "; then ".join([*outside, *([] if format != "safetensors" else inside)]) or "nothing",
        "inside": "; then ".join(inside if format != "safetensors" else []) or "nothing",
        "scaling": None if scaling is None else {"mean": scaling.mean.tolist(), "spread": scaling.spread.tolist()},
        "recipe": federation.recipe,
        "layers": {name: list(tensor.shape) for name, tensor in task.module.state_dict().items()},
        "run": {"method": run.method.name, "rounds": run.state.round, "seed": run.clients.seed}
        | {"identity": run.folder.read_environment().get("identity") if run.folder else identity(run, None)},
        "data": {"name": federation.name, "fingerprint": federation.fingerprint, "note": federation.note},
        "versions": {name: found for name, found in versions().items() if name in ("polycentric", "torch")},
        "load": lines.splitlines(),
    }


def before(run: Run) -> tuple[list[str], list[str]]:
    """What is done to an example before the model sees it, in words: what no file can do, and what one can."""
    federation, recipe, given = run.federation, run.federation.recipe or {}, arguments(run)
    outside = ["rows of a table become numbers by the recipe (rows_to_inputs)"] if "columns" in recipe else []
    if "pictures" in recipe:
        size, grey = recipe["pictures"]["size"], "grey" if recipe["pictures"]["channels"] == 1 else "in colour (RGB)"
        resized = f"resized to {size[0]}x{size[1]} (height x width, bilinear) and " if size else ""
        outside = [f"pictures are {resized}made {grey} (pictures_to_inputs)"]
    pixels = [one.name for one in given if one.dtype == "uint8" and not federation.symbols]
    of = f" of {' and '.join(pixels)}" if federation.inputs else ""
    inside = [f"bytes{of} are divided by 255"] if pixels else []
    inside += ["the inputs are laid end to end in one row"] if federation.inputs else []
    what = "every number of that row is" if federation.inputs else "features are"
    inside += [f"{what} standardised, (x - mean) / spread"] if federation.scaling is not None else []
    return outside, inside


def loading(run: Run, path: Path, about: Path, format: str, heads: bool = False) -> str:
    """Lines of Python that load a file and compute `outputs`; `heads`: the module gives several.

    They begin with what somebody has: rows of a table in a file, pictures, `x`, or several inputs by name.
    """
    recipe, given = run.federation.recipe or {}, arguments(run)
    what, names = "; ".join(one.words for one in given), [one.variable for one in given]
    getter, getting = "", list[str]()
    if "columns" in recipe:
        getter = "read_rows, rows_to_inputs"
        getting = ['x = rows_to_inputs(about["recipe"], read_rows("new.csv"))  # or a list of {column: value}']
    elif "pictures" in recipe:
        getter, getting = "pictures_to_inputs", ['x, _ = pictures_to_inputs(about["recipe"], ["new.png"])']
    ours = format == "safetensors"
    first = ["import json", "from pathlib import Path", ""] if ours or getter else []
    first += ["import onnxruntime"] if format == "onnx" else ["import torch"]
    first += [f"from polycentric.data import {getter}"] if getter else []
    first += ["from polycentric.models import build", "from safetensors.torch import load_file"] if ours else []
    first += ["", *([f"about = json.loads(Path({str(about)!r}).read_text())"] if ours or getter else [])]
    if ours:
        last = ["outputs = torch.cat([part.flatten(1) for part in outputs], 1)  # several heads"] if heads else []
        return "\n".join([*first, *_building(run, path), *getting, *_calling(run, given, what), *last])
    if format == "onnx":
        as_numpy = [f"{name}.numpy()" if getter else name for name in names]
        fed = ", ".join(f'"{name}": {value}' for name, value in zip(names, as_numpy, strict=True))
        load = f"session = onnxruntime.InferenceSession({str(path)!r})"
        call = f"outputs = session.run(None, {{{fed}}})[0]  # {what}, of numpy"
    else:
        load = f"model = torch.export.load({str(path)!r}).module()"
        call = f"outputs = model({', '.join(names)})  # {what}"
    return "\n".join([*first, load, *getting, call])


def _building(run: Run, path: Path) -> Iterator[str]:
    """The module, with the parameters of a file."""
    task = run.clients.task
    ours = run.model in MODELS or is_own(run.model)
    known = repr(run.model) if ours else run.model if run.model.isidentifier() else "your_model"
    shape = '{name: tuple(shape) for name, shape, _ in about["inputs"]}' if task.several else 'about["input_shape"]'
    own = "" if ours else f"  # {known}: your own, as the run had it"
    yield f'model = build({known}, {shape}, about["outputs"], symbols=about["symbols"]).eval(){own}'
    if (around := run.method.around) is not None:  # what the method has put around it
        yield "from polycentric.models.around import MadeFor"
        yield f"from {type(around).__module__} import {type(around).__name__}"
        made_for = 'tuple(about["input_shape"]), about["outputs"], 0, about["symbols"], about["kind"]'
        yield f"model = {around!r}(model, MadeFor({made_for})).eval()"
    if task.dtype != torch.float32:
        yield f"model = model.to({task.dtype})"
    yield f"model.load_state_dict(load_file({str(path)!r}))"


def _calling(run: Run, given: Sequence[Argument], what: str) -> Iterator[str]:
    """An example is prepared as it was in the run, and the module called."""
    task, scaling, note = run.clients.task, run.federation.scaling, f"  # {what}"
    if run.federation.inputs:
        each = [f"{one.variable}.float() / 255" if one.dtype == "uint8" else one.variable for one in given]
        yield f"x = torch.cat([part.flatten(1) for part in [{', '.join(each)}]], 1){note}"
        note = ""
    ready = f"x.to({task.dtype})"
    if task.symbols:
        ready = "x.long()"
    elif run.federation.train.x.dtype == torch.uint8:
        ready += " / 255"
    if scaling is not None:
        yield 'mean, spread = (torch.tensor(about["scaling"][key]).double() for key in ("mean", "spread"))'
        yield f"x = ((x - mean) / spread).float(){note}"
        note = ""
    if task.several:
        sizes, shapes = [math.prod(shape) for _, shape in task.several], [shape for _, shape in task.several]
        yield f"parts = torch.split({ready}, {sizes}, 1){note}"
        yield f"outputs = model(*(part.reshape(len(x), *shape) for part, shape in zip(parts, {shapes})))"
    else:
        yield f"outputs = model({ready}){note}"
