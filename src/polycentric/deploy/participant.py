"""A client of a real federation: its own examples, what it has agreed to, and the node that it is in a run.

It is given parcels, and answers them: who it is, or replies to letters that come with the terms of their run. A run's
terms are looked at once; the model and the examples stay loaded.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ..data import Federation
from ..runs.loop import Run
from .letters import FACTS, Reply, Spoiled, digest, unpacked
from .node import Keeper, Node, begins_of, refusal
from .relay import SealedNode, check_relayed, sealed_begins
from .roster import Hello, about
from .terms import Limits, Terms, run_at_node

if TYPE_CHECKING:
    from .seal import Seal

REPLIES = 2  # that are remembered
MOST = 4 + FACTS + (1 << 12)  # bytes of a letter without numbers


@dataclass(eq=False)
class Participant:
    """Answers parcels.

    Arguments:
        own: its examples, as a federation of one client.
        folder: where it keeps what it keeps, a folder for each run; None: in memory.
        limits: what it has agreed to.
        name: what it calls itself; where nodes have keys, its key says who it is.
        device: where it trains.
        shows: whether it tells its scores.
        log: told what happens here, and nobody else is.
        seal: its key, and those of nodes that it trusts; None: what it sends, the server can read.
    """

    own: Federation
    folder: Path | None = None
    limits: Limits = Limits()
    name: str = ""
    device: str = "auto"
    shows: bool = True
    log: Callable[[str], None] = lambda line: None
    seal: Seal | None = None  # its key and those of nodes that it trusts, for letters that the server cannot read
    _node: tuple[str, Node] | None = None
    _replied: dict[str, bytes] = field(default_factory=dict)  # the last letters and their replies
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def answer(self, parcel: Sequence[bytes]) -> list[bytes]:
        """Replies to a parcel: who this is, or one to every letter behind the terms; nothing raises."""
        with self._lock:  # one after another: a letter that is repeated finds what the first one kept
            if not parcel:
                return []
            first, *letters = parcel
            try:
                unpacked(first, Hello, MOST)
                return [about(self.own, self.name, time.time())]
            except Spoiled:
                pass
            try:
                node = self._at(first)
            except (Spoiled, ValueError) as error:
                self.log(f"terms were refused: {error}")
                return [refusal(digest(letter)) for letter in letters]
            except Exception as error:  # the user's model: anything can happen there
                self.log(f"terms cannot be met: {type(error).__name__}: {error}")
                return [refusal(digest(letter)) for letter in letters]
            return [self._reply(node, letter) for letter in letters]

    def _node_of(self, terms: Terms, run: Run) -> Node:
        begins, folder = begins_of(run, terms.client), None if self.folder is None else self.folder / terms.run
        model = None if folder is None else folder / "model.safetensors"
        same = (terms.run, self.shows, self.log, model)
        if terms.names is None:
            return Node(run, terms.client, Keeper(begins, folder), *same)
        if self.seal is None:
            raise Spoiled("the terms ask to seal letters for neighbours: join with --neighbours FOLDER")
        check_relayed(run.method)
        begins = sealed_begins(begins, run.state.centers, terms.client, run.method)
        names = {int(number): name for number, name in terms.names.items() if number.isdecimal()}
        return SealedNode(run, terms.client, Keeper(begins, folder), *same, seal=self.seal, names=names)

    def _reply(self, node: Node, letter: bytes) -> bytes:
        """A letter that came twice is not learned twice: the reply would be the same. What failed is tried again."""
        name = digest(letter)
        if name in self._replied:
            return self._replied[name]
        reply = node.answer(letter)
        if Reply.told(reply).code == "ok":  # a disk that was full may not be any more
            while len(self._replied) >= REPLIES:
                self._replied.pop(next(iter(self._replied)))
            self._replied[name] = reply
        return reply

    def _at(self, data: bytes) -> Node:
        name = digest(data)
        if self._node is None or self._node[0] != name:
            terms: Terms = unpacked(data, Terms, MOST)[0]
            run = run_at_node(terms, self.own, self.limits, self.device)
            node = self._node_of(terms, run)
            self._node, self._replied = (name, node), {}
            settings = run.settings
            self.log(
                f"run {terms.run}: {settings.method}, {settings.rounds} rounds, model {run.model}, as client "
                f"{terms.client} of {terms.clients}"
            )
        return self._node[1]
