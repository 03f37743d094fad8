"""What came in an exchange, on the disk before anything is made of it: one file for the numbers, one for who came.

A center that was killed goes on with just those replies. Where letters are sealed, they are forwarded from here; where
clients are hidden by noise, the same sum must never be told twice with other noise, nor another sum with the same.
Who could be asked at all is on the disk before a letter leaves: letters follow from it, and a client that hides its
examples answers one letter for each exchange, and no other.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor

from ..language.files import parsed, read_text
from ..runs.checkpoint import replace_file
from ..stacks.stack import Stacks, aligned

RECENT = 4  # exchanges that stay in any case: a center that was killed may be at an earlier one
NAME = re.compile(r"(\d{10})-(\d{4})\.(?:json|asked)")
Key = tuple[int, int]  # round and turn


@dataclass(eq=False)
class Store:
    """Exchanges by (round, turn): who came, in their order, and what each of them sent; in memory without a folder."""

    folder: Path | None = None
    _held: dict[Key, dict[int, Stacks]] = field(default_factory=dict)

    def invite(self, key: Key, everyone: Mapping[str, Any]) -> None:
        """Who could be asked, before anybody is."""
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            replace_file(self._path(key, "asked"), lambda temporary: temporary.write_text(json.dumps(dict(everyone))))

    def invited(self, key: Key) -> dict[str, Any] | None:
        """The same; None: nobody was asked yet."""
        if self.folder is None or not (path := self._path(key, "asked")).is_file():
            return None
        return dict(parsed(read_text(path)))

    def write(self, key: Key, sent: dict[int, Stacks]) -> None:
        """All that came."""
        self._held[key] = sent
        if self.folder is None:
            return
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        flat = {f"{k}:{name}": rows.cpu().contiguous() for k, each in sent.items() for name, rows in each.items()}
        path = self._path(key)
        replace_file(path.with_suffix(".safetensors"), lambda temporary: save_file(flat, str(temporary)))
        replace_file(path, lambda temporary: temporary.write_text(json.dumps(list(sent))))  # last: then it is whole

    def read(self, key: Key) -> dict[int, Stacks] | None:
        """The same; None: nothing is known of that exchange."""
        if key not in self._held:
            if self.folder is None or not (path := self._path(key)).is_file():
                return None
            sent: dict[int, dict[str, Tensor]] = {int(k): {} for k in parsed(read_text(path))}
            for name, rows in load_file(path.with_suffix(".safetensors")).items():
                client, _, what = name.partition(":")
                sent[int(client)][what] = rows
            self._held[key] = {client: aligned(each) for client, each in sent.items()}
        return self._held[key]

    def forget(self, wanted: Collection[Key] = (), recent: int = RECENT) -> None:
        """All but what is wanted, and the most recent."""
        for key in set(self._held) - {*wanted, *sorted(self._held)[max(0, len(self._held) - recent) :]}:
            del self._held[key]
        if self.folder is None or not self.folder.is_dir():
            return
        names = (NAME.fullmatch(path.name) for path in self.folder.iterdir())
        there = sorted({(int(found[1]), int(found[2])) for found in names if found})
        for key in set(there) - {*wanted, *there[max(0, len(there) - recent) :]}:
            for end in ("json", "asked", "safetensors"):
                with contextlib.suppress(OSError):
                    self._path(key, end).unlink()

    def _path(self, key: Key, end: str = "json") -> Path:
        assert self.folder is not None
        return self.folder / f"{key[0]:010d}-{key[1]:04d}.{end}"
