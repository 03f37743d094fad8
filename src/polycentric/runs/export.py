"""Models out of a run, as files that other programs can use.

    safetensors     the parameters by the names of their layers; whoever loads them needs the class of the model
    torch-export    a .pt2 archive: the computation itself, with what is done to an example before it
    onnx            the same for ONNX runtimes

Beside FILE stands FILE.json: which model, what goes in and what comes out, whose model it is, from which run and
which data. A file gets its name only after it was loaded again and gave the outputs of the run's model, to rounding.

What goes into a .pt2 or .onnx file are examples as they are before anything is done to them: bytes of pictures (divided
by 255 inside), features in their own units (standardised inside, where the run's were), symbols. What comes out are the
outputs z of the model: `softmax(z)` are probabilities of classes, `sigmoid(z)` of labels, numbers are themselves.

A .pt2 is a zip file of JSON and raw numbers. `torch.export.load` unpickles what an archive tells it to; ours hold no
pickle at all (torch's example inputs are left out), but a stranger's may, so it is not a format to take from strangers.
"""

from __future__ import annotations

import copy
import io
import json
import logging
import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from ..data.federation import Scaling
from ..errors import UsageError, require, unknown
from ..language.own_code import is_own
from ..models import MODELS
from ..tasks.task import side_by_side
from .checkpoint import renamed
from .machine import versions
from .outputs import identity
from .serving import Holder, everybody, holder, holders

if TYPE_CHECKING:
    from .loop import Run

Format = Literal["safetensors", "torch-export", "onnx"]
SUFFIXES: dict[str, str] = {"safetensors": ".safetensors", "torch-export": ".pt2", "onnx": ".onnx"}
CHECKED = 64  # examples on which an exported model is compared
OFF = {torch.float32: 1e-4, torch.float64: 1e-8}  # how far outputs may be apart, as a share of the largest
PREDICTS = {  # what the outputs of a model are
    "classes": "one number for each class: softmax gives probabilities, the largest is the answer",
    "labels": "one number for each label: sigmoid gives probabilities, a label with a positive number is told",
    "numbers": "the numbers themselves",
}


@dataclass(frozen=True)
class Exported:
    """A model that was written."""

    path: Path
    about: Path  # the JSON beside it
    lines: str  # Python that loads it and computes `outputs` of some `x`
    checked: int  # examples on which it was compared with the run's own model; 0: it could not be run here
    off: float  # the largest difference there


class FromRaw(nn.Module):
    """A run's model from examples as they are before anything is done to them."""

    def __init__(self, run: Run, module: nn.Module) -> None:
        super().__init__()
        self.model, self.task = module.requires_grad_(False), run.clients.task
        scaling = run.federation.scaling
        self.scaling = None if scaling is None else Scaling(scaling.mean.cpu(), scaling.spread.cpu())

    def forward(self, x: Tensor) -> Tensor:
        """Outputs, (batch, n_outputs)."""
        x = x if self.scaling is None else self.scaling(x)
        return side_by_side(self.model(*self.task.arguments(self.task.inputs(x))))


def export(
    run: Run,
    *,
    client: int | str | None = None,
    center: int | None = None,
    all: bool = False,
    format: Format = "safetensors",
    out: str | Path | None = None,
    force: bool = False,
) -> list[Exported]:
    """Write the model of a client, of a center, or all there are; each is checked before it gets its name.

    Arguments:
        run: a finished run.
        client, center: whose; neither: the center's, where there is one and it has a whole model.
        all: every center's where clients share whole models, otherwise every client's.
        format: "safetensors", "torch-export" (a .pt2 archive) or "onnx".
        out: the folder; None: `export` in the run's own.
        force: replace files that are there.
    """
    if format not in get_args(Format):
        raise unknown("format", str(format), get_args(Format))
    require(not all or (client is None and center is None), "all models, or one client's or center's: not both")
    if format == "onnx":
        missing = [name for name in ("onnx", "onnxscript") if find_spec(name) is None]
        require(not missing, f"onnx needs {' and '.join(missing)}: pip install 'polycentric[onnx]'")
    if out is None:
        if run.folder is None:
            raise UsageError("this run has no folder of its own: say where to, such as out='models'")
        out = run.folder.path / "export"
    folder, suffix = Path(out), SUFFIXES[format]
    chosen = holders(run) if all else iter([holder(run, client, center)])
    for name in everybody(run) if all else ():  # before any is written
        _free(folder / f"{name.file_name}{suffix}", force)
    return [_written(run, each, folder / f"{each.file_name}{suffix}", format, force) for each in chosen]


def _free(path: Path, force: bool) -> Path:
    """Where the JSON beside a file goes; refused where one of the two is there."""
    about = path.with_name(f"{path.name}.json")
    for there in (path, about):
        if there.exists() and not force:
            again = "choose another --out, or add --force (force=True) to replace it"
            raise UsageError(f"{there} is there already: {again}")
    return about


def _written(run: Run, whose: Holder, path: Path, format: str, force: bool) -> Exported:
    about, task = _free(path, force), run.clients.task
    path.parent.mkdir(parents=True, exist_ok=True)
    module = task.loaded(whose.rows).cpu()
    x, right = examples_for(run, whose)
    found: list[float] = []

    def write(temporary: Path) -> None:
        again = WRITERS[format](run, module, x, temporary)
        found.extend(_off(run, whose, path, again, x, right) if again else ())

    digest = renamed(path, write)
    with torch.no_grad():
        heads = isinstance(module(*task.arguments(task.inputs(x[:2]))), tuple | list)
    lines = loading(run, path, about, format, heads)
    said = description(run, whose, path, format, digest, lines)
    renamed(about, lambda temporary: temporary.write_text(json.dumps(said, indent=2) + "\n", "utf-8"))
    return Exported(path, about, lines, len(x) if found else 0, max(found, default=math.nan))


def examples_for(run: Run, whose: Holder) -> tuple[Tensor, Tensor]:
    """Some examples before anything was done to them, and the outputs of the run's own model for them."""
    task, federation = run.clients.task, run.federation
    split = federation.test if len(federation.test) else federation.train
    if whose.client is not None:
        mine = [part.of(whose.client) for part in (federation.test, federation.train)]
        split = next((part for part in mine if len(part)), split)
    x = split.x[:CHECKED]
    x = x if len(x) > 1 else torch.cat([x, x])
    with torch.no_grad():
        right = task.predict(whose.rows, task.inputs(x.to(task.device))).cpu()
    x, scaling = x.cpu(), federation.scaling
    return x if scaling is None else (x.double() * scaling.spread.cpu() + scaling.mean.cpu()).to(x.dtype), right


def _off(
    run: Run, whose: Holder, path: Path, again: Callable[[Tensor], Tensor], x: Tensor, right: Tensor
) -> Iterator[float]:
    """How far the outputs of what was written are from the run's own: of all examples together, and of one alone."""
    for part in (slice(None), slice(1)):
        with torch.no_grad():
            found = again(x[part])
        off = float((found - right[part]).abs().max())
        most = OFF[run.clients.task.dtype] * max(1.0, float(right.abs().max()))
        if not off <= most:
            raise UsageError(
                f"{path.name} does not predict what {whose.words} does in the run: outputs are off by {off:.2g}; "
                "nothing was written: use --format safetensors"
            )
        yield off


# -- the formats: each writes a file, and gives what loads it again ---------------------------------------------------


def _safetensors(run: Run, module: nn.Module, x: Tensor, path: Path) -> Callable[[Tensor], Tensor]:
    save_file({name: tensor.detach().contiguous().clone() for name, tensor in module.state_dict().items()}, path)
    again = copy.deepcopy(module)
    for tensor in again.state_dict().values():
        tensor.zero_()  # whatever is not in the file is not there
    again.load_state_dict(load_file(path))
    return FromRaw(run, again).eval()


def _torch_export(run: Run, module: nn.Module, x: Tensor, path: Path) -> Callable[[Tensor], Tensor]:
    with _traced(run, "torch-export"):
        program = torch.export.export(FromRaw(run, module).eval(), (x,), dynamic_shapes=({0: _batch()},), strict=False)
        program.example_inputs = None  # they would be a pickle
        stream = io.BytesIO()
        torch.export.save(program, stream)
    path.write_bytes(stream.getvalue())
    again: Callable[[Tensor], Tensor] = torch.export.load(io.BytesIO(path.read_bytes())).module()
    return again


def _onnx(run: Run, module: nn.Module, x: Tensor, path: Path) -> Callable[[Tensor], Tensor] | None:
    with _traced(run, "onnx"):
        whole = FromRaw(run, module).eval()
        how: dict[str, Any] = {"input_names": ["x"], "output_names": ["outputs"], "dynamic_shapes": ({0: _batch()},)}
        program: Any = torch.onnx.export(whole, (x,), dynamo=True, verbose=False, **how)
        path.write_bytes(program.model_proto.SerializeToString())
    if find_spec("onnxruntime") is None:
        warnings.warn("the .onnx file was not run: pip install onnxruntime, and export again to check it", stacklevel=5)
        return None
    import onnxruntime

    session = onnxruntime.InferenceSession(path.read_bytes(), providers=["CPUExecutionProvider"])
    return lambda x: torch.from_numpy(session.run(None, {"x": x.numpy()})[0])


WRITERS: dict[str, Callable[[Run, nn.Module, Tensor, Path], Callable[[Tensor], Tensor] | None]] = {
    "safetensors": _safetensors,
    "torch-export": _torch_export,
    "onnx": _onnx,
}


def _batch() -> Any:
    """Any number of examples."""
    return torch.export.Dim("batch")


@contextmanager
def _traced(run: Run, format: str) -> Iterator[None]:
    """Torch's notes while it looks through a model are not for the user; what fails there is."""
    logs = {log: log.level for log in map(logging.getLogger, ("torch.onnx", "torch.fx", "torch.export"))}
    for log in logs:
        log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            yield
    except Exception as error:  # torch's tracer through the user's own code: anything can happen there
        said = f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]
        raise UsageError(
            f"model {run.model} cannot be written as {format} ({said}): use --format safetensors"
        ) from error
    finally:
        for log, level in logs.items():
            log.setLevel(level)


# -- what is said beside a file ---------------------------------------------------------------------------------------


def description(run: Run, whose: Holder, path: Path, format: str, digest: str, lines: str) -> dict[str, Any]:
    """All that somebody who has only the file must know."""
    federation, task, scaling = run.federation, run.clients.task, run.federation.scaling
    return {
        "file": path.name,
        "format": format,
        "sha256": digest,
        **whose.to_json(),
        "model": run.model,
        "class": type(task.module).__name__,
        "input_shape": list(federation.shape),
        "input_dtype": str(federation.train.x.dtype)[6:],
        "inputs": [[name, list(shape)] for name, shape in task.several],
        "symbols": federation.symbols,
        "outputs": federation.n_outputs,
        "outputs_are": PREDICTS[federation.kind],
        "dtype": str(task.dtype)[6:],
        "kind": federation.kind,
        "classes": list(federation.classes),
        "targets": list(federation.targets),
        "columns": list(federation.columns),
        "before": before(run) or "nothing",
        "before_is_inside": format != "safetensors",
        "scaling": None if scaling is None else {"mean": scaling.mean.tolist(), "spread": scaling.spread.tolist()},
        "recipe": federation.recipe,
        "layers": {name: list(tensor.shape) for name, tensor in task.module.state_dict().items()},
        "run": {"method": run.method.name, "rounds": run.state.round, "seed": run.clients.seed}
        | {"identity": run.folder.read_environment().get("identity") if run.folder else identity(run, None)},
        "data": {"name": federation.name, "fingerprint": federation.fingerprint, "note": federation.note},
        "versions": {name: found for name, found in versions().items() if name in ("polycentric", "torch")},
        "load": lines.splitlines(),
    }


def before(run: Run) -> str:
    """What is done to an example before the model sees it, in words."""
    federation = run.federation
    rows = ["rows of a table become numbers by the recipe"] if federation.recipe is not None else []
    scaled = ["features are standardised, (x - mean) / spread"] if federation.scaling is not None else []
    whole = federation.train.x.dtype == torch.uint8 and not federation.symbols
    return "; then ".join([*rows, *scaled, *(["bytes are divided by 255"] if whole else [])])


def loading(run: Run, path: Path, about: Path, format: str, heads: bool = False) -> str:
    """Lines of Python that load a file and compute `outputs` of some `x`; `heads`: the module gives several."""
    kind = str(run.federation.train.x.dtype)[6:]
    what = f"# x: ({', '.join(map(str, ('batch', *run.federation.shape)))}), {kind}"
    if format == "torch-export":
        load = f"model = torch.export.load({str(path)!r}).module()"
        return "\n".join(["import torch", "", load, f"outputs = model(x)  {what}"])
    if format == "onnx":
        load = f"session = onnxruntime.InferenceSession({str(path)!r})"
        run_it = f'outputs = session.run(None, {{"x": x}})[0]  {what}, of numpy'
        return "\n".join(["import onnxruntime", "", load, run_it])
    last = ["outputs = torch.cat([part.flatten(1) for part in outputs], 1)  # several heads"] if heads else []
    return "\n".join([*_building(run, path, about), *_calling(run, what), *last])


def _building(run: Run, path: Path, about: Path) -> Iterator[str]:
    """The module, with the parameters of a file."""
    task = run.clients.task
    ours = run.model in MODELS or is_own(run.model)
    known = repr(run.model) if ours else run.model if run.model.isidentifier() else "your_model"
    yield from ("import json", "from pathlib import Path", "", "import torch", "from polycentric.models import build")
    yield from ("from safetensors.torch import load_file", "", f"about = json.loads(Path({str(about)!r}).read_text())")
    shape = '{name: tuple(shape) for name, shape in about["inputs"]}' if task.several else 'about["input_shape"]'
    own = "" if ours else f"  # {known}: your own, as the run had it"
    yield f'model = build({known}, {shape}, about["outputs"], symbols=about["symbols"]).eval(){own}'
    if task.dtype != torch.float32:
        yield f"model = model.to({task.dtype})"
    yield f"model.load_state_dict(load_file({str(path)!r}))"


def _calling(run: Run, what: str) -> Iterator[str]:
    """An example is prepared as it was in the run, and the module called."""
    task, scaling = run.clients.task, run.federation.scaling
    ready = f"x.to({task.dtype})"
    if task.symbols:
        ready = "x.long()"
    elif run.federation.train.x.dtype == torch.uint8:
        ready += " / 255"
    if scaling is not None:
        yield 'mean, spread = (torch.tensor(about["scaling"][key]).double() for key in ("mean", "spread"))'
        yield f"x = ((x - mean) / spread).float()  {what}"
    note = "" if scaling is not None else f"  {what}"
    if task.several:
        sizes, shapes = [math.prod(shape) for _, shape in task.several], [shape for _, shape in task.several]
        yield f"parts = torch.split({ready}, {sizes}, 1){note}"
        yield f"outputs = model(*(part.reshape(len(x), *shape) for part, shape in zip(parts, {shapes})))"
    else:
        yield f"outputs = model({ready}){note}"
