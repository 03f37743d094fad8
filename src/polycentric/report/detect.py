"""Pictures of any size, with what a trained detector sees drawn into copies of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from ..data.archive import LIMIT
from ..data.pictures import SUFFIXES, made_grey, unpacked
from ..errors import require
from ..runs.loop import Run
from ..runs.serving import holder
from .boxes import as_image, drawn


@dataclass(frozen=True)
class Seen:
    """What is seen in one picture."""

    picture: Path
    written: Path
    boxes: list[dict[str, Any]]  # class, score, and corners in pixels of the picture

    @property
    def words(self) -> str:
        """How many objects of which class."""
        counts = Counter(box["class"] for box in self.boxes)
        return ", ".join(f"{n} {name}" for name, n in counts.most_common()) or "nothing"

    def to_json(self) -> dict[str, Any]:
        """For a program."""
        return {"image": str(self.picture), "written": str(self.written), "boxes": self.boxes}


def detect_in(
    run: Run,
    pictures: Sequence[Path],
    out: Path,
    *,
    client: int | str | None = None,
    center: int | None = None,
    least: float = 0.3,
    force: bool = False,
) -> list[Seen]:
    """Draw boxes into copies of pictures, one after another.

    Arguments:
        run: a finished run whose targets are boxes.
        pictures: files, or folders of them.
        out: where copies go, as PNG.
        client, center: whose model looks; neither: the center's, where there is one.
        least: the lowest score that counts.
        force: replace copies that are there.
    """
    federation, task = run.federation, run.clients.task
    require(
        task.goal.placed,
        f"the run learned {federation.kind}, not boxes in images: `polycentric predict` tells what it answers",
    )
    whose = holder(run, client, center)
    files = list(_files(pictures))
    targets = [out / f"{file.stem}.png" for file in files]
    twice = [name for name, n in Counter(targets).items() if n > 1]
    require(not twice, f"two pictures would be written as {twice[0] if twice else ''}: detect them one by one, --out")
    there = [target for target in targets if target.exists() and not force]
    require(not there, f"{there[0] if there else ''} is there already: choose another --out, or add --force to replace")
    out.mkdir(parents=True, exist_ok=True)
    channels, height, width = federation.shape
    seen = []
    for file, target in zip(files, targets, strict=True):
        whole = torch.from_numpy(unpacked([file], [str(file)], None, LIMIT))[0]
        x = torch.from_numpy(unpacked([file], [str(file)], (height, width), LIMIT))
        x = made_grey(x)[0] if channels == 1 else x.expand(-1, channels, -1, -1)
        with torch.no_grad():
            found = task.goal.answers(task.predict(whose.rows, task.inputs(x.to(task.device))))[0].cpu()
        found = found[(found[:, 0] >= 0) & (found[:, 1] >= least)]
        page = drawn(as_image(whole), found, federation.classes, least=least)
        _written(page, target)
        sides = torch.tensor([whole.shape[2], whole.shape[1]] * 2)
        boxes = [
            {"class": federation.classes[int(row[0])], "score": round(float(row[1]), 4)}
            | {"box": [round(v, 1) for v in (row[2:] * sides).tolist()]}
            for row in found
        ]
        seen.append(Seen(file, target, boxes))
    return seen


def _files(pictures: Sequence[Path]) -> Iterator[Path]:
    for path in pictures:
        require(path.exists(), f"there is no file or folder '{path}'; check the path")
        if not path.is_dir():
            yield path
            continue
        inside = sorted(file for file in path.iterdir() if file.suffix.lower() in SUFFIXES and file.is_file())
        require(bool(inside), f"{path} has no pictures ({', '.join(SUFFIXES)})")
        yield from inside


def _written(page: Image.Image, target: Path) -> None:
    from ..runs.checkpoint import replace_file

    replace_file(target, lambda temporary: page.save(temporary, "PNG"))
