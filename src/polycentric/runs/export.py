"""Models out of a run, as files that other programs can use.

    safetensors     the parameters by the names of their layers; whoever loads them needs the class of the model
    torch-export    a .pt2 archive: the computation itself, with what is done to an example before it
    onnx            the same for ONNX runtimes

Beside FILE stands FILE.json: which model, what goes in and what comes out, whose model it is, from which run and
which data. A file gets its name only after it was loaded again and gave the outputs of the run's model, to rounding.

What goes into a .pt2 or .onnx file are examples as they are before anything is done to them: bytes of pictures (divided
by 255 inside), features in their own units (standardised inside, where the run's were), symbols; several inputs one by
one, each in its own shape. Rows of a table become numbers, and pictures get their size, outside: the lines that are
printed do it. What comes out are the outputs z of the model: `softmax(z)` are probabilities of classes, `sigmoid(z)` of
labels, numbers are themselves.

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

from ..data.federation import Federation, Scaling
from ..errors import UsageError, require, unknown
from ..stacks.draw import uniform
from ..tasks.task import side_by_side
from .checkpoint import renamed
from .model_card import arguments, description, loading
from .serving import Holder, everybody, holder, holders

if TYPE_CHECKING:
    from .loop import Run

Format = Literal["safetensors", "torch-export", "onnx"]
SUFFIXES: dict[str, str] = {"safetensors": ".safetensors", "torch-export": ".pt2", "onnx": ".onnx"}
CHECKED = 64  # examples on which an exported model is compared
OFF = {torch.float32: 1e-4, torch.float64: 1e-8}  # how far outputs may be apart, as a share of the largest


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


class FromSeveral(nn.Module):
    """The same from several inputs, which it lays end to end as `from_arrays` does."""

    def __init__(self, whole: FromRaw) -> None:
        super().__init__()
        self.whole = whole

    def forward(self, *given: Tensor) -> Tensor:
        """Outputs, (batch, n_outputs)."""
        each = [part.float() / 255 if part.dtype == torch.uint8 else part for part in given]
        return torch.as_tensor(self.whole(torch.cat([part.flatten(1) for part in each], 1)))


def from_raw(run: Run, module: nn.Module) -> nn.Module:
    """A run's model from what its user has in hand, ready to predict."""
    whole = FromRaw(run, module)
    return (FromSeveral(whole) if run.federation.inputs else whole).eval()


def _apart(run: Run, x: Tensor) -> tuple[Tensor, ...]:
    """Examples as a model is called with them, from rows that were not scaled yet."""
    given = arguments(run)
    if not run.federation.inputs:
        return (x,)
    parts = torch.split(x, [math.prod(one.shape) for one in given], 1)
    shaped = [part.reshape(-1, *one.shape) for part, one in zip(parts, given, strict=True)]
    return tuple(
        (part * 255).round().to(torch.uint8) if one.dtype == "uint8" else part
        for part, one in zip(shaped, given, strict=True)
    )


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
    given = _apart(run, x)
    found: list[float] = []

    def write(temporary: Path) -> None:
        again = WRITERS[format](run, module, given, temporary)
        found.extend(_off(run, whose, path, again, given, right) if again else ())

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
    x = _made_up(federation) if federation.absent else x
    with torch.no_grad():
        right = task.predict(whose.rows, task.inputs(x.to(task.device))).cpu()
    x, scaling = x.cpu(), federation.scaling
    return x if scaling is None else (x.double() * scaling.spread.cpu() + scaling.mean.cpu()).to(x.dtype), right


def _made_up(federation: Federation) -> Tensor:
    """Examples to compare models on, where the run's own are not here."""
    x, scaling = federation.train.x, federation.scaling
    drawn = uniform(0, "made up", torch.arange(CHECKED * math.prod(federation.shape))).reshape(
        CHECKED, *federation.shape
    )
    if not x.is_floating_point():
        return (drawn * (federation.symbols or 256)).to(x.dtype)
    if federation.inputs:  # some may be bytes
        drawn = (255 * drawn).round() / 255
        return (drawn if scaling is None else scaling(drawn)).to(x.dtype)
    return (4 * drawn - 2).to(x.dtype)


def _off(
    run: Run, whose: Holder, path: Path, again: Callable[..., Tensor], given: tuple[Tensor, ...], right: Tensor
) -> Iterator[float]:
    """How far the outputs of what was written are from the run's own: of all examples together, and of one alone."""
    for part in (slice(None), slice(1)):
        with torch.no_grad():
            found = again(*(one[part] for one in given))
        off = float((found - right[part]).abs().max())
        most = OFF[run.clients.task.dtype] * max(1.0, float(right.abs().max()))
        if not off <= most:
            raise UsageError(
                f"{path.name} does not predict what {whose.words} does in the run: outputs are off by {off:.2g}; "
                "nothing was written: use --format safetensors"
            )
        yield off


# -- the formats: each writes a file, and gives what loads it again ---------------------------------------------------


def _safetensors(run: Run, module: nn.Module, given: tuple[Tensor, ...], path: Path) -> Callable[..., Tensor]:
    save_file({name: tensor.detach().contiguous().clone() for name, tensor in module.state_dict().items()}, path)
    again = copy.deepcopy(module)
    for tensor in again.state_dict().values():
        tensor.zero_()  # whatever is not in the file is not there
    again.load_state_dict(load_file(path))
    return from_raw(run, again)


def _torch_export(run: Run, module: nn.Module, given: tuple[Tensor, ...], path: Path) -> Callable[..., Tensor]:
    with _traced(run, "torch-export"):
        program = torch.export.export(from_raw(run, module), given, dynamic_shapes=_any(run), strict=False)
        program.example_inputs = None  # they would be a pickle
        stream = io.BytesIO()
        torch.export.save(program, stream)
    path.write_bytes(stream.getvalue())
    again: Callable[..., Tensor] = torch.export.load(io.BytesIO(path.read_bytes())).module()
    return again


def _onnx(run: Run, module: nn.Module, given: tuple[Tensor, ...], path: Path) -> Callable[..., Tensor] | None:
    names = [one.variable for one in arguments(run)]
    with _traced(run, "onnx"):
        whole = from_raw(run, module)
        how: dict[str, Any] = {"input_names": names, "output_names": ["outputs"], "dynamic_shapes": _any(run)}
        program: Any = torch.onnx.export(whole, given, dynamo=True, verbose=False, **how)
        path.write_bytes(program.model_proto.SerializeToString())
    if find_spec("onnxruntime") is None:
        warnings.warn("the .onnx file was not run: pip install onnxruntime, and export again to check it", stacklevel=5)
        return None
    import onnxruntime

    session = onnxruntime.InferenceSession(path.read_bytes(), providers=["CPUExecutionProvider"])
    return lambda *some: torch.from_numpy(
        session.run(None, {name: one.numpy() for name, one in zip(names, some, strict=True)})[0]
    )


WRITERS: dict[str, Callable[[Run, nn.Module, tuple[Tensor, ...], Path], Callable[..., Tensor] | None]] = {
    "safetensors": _safetensors,
    "torch-export": _torch_export,
    "onnx": _onnx,
}


def _any(run: Run) -> Any:
    """Any number of examples, the same of all inputs."""
    batch = torch.export.Dim("batch")
    return (tuple({0: batch} for _ in run.federation.inputs),) if run.federation.inputs else ({0: batch},)


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
