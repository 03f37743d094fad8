"""What a server asks of its superlink: who may join, a run, messages to nodes and their replies.

The app of a run is empty, since no code travels; Flower asks for one.
"""

from __future__ import annotations

import time
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.app import Message, Metadata
from flwr.app.message import make_message
from flwr.cli.build import build_fab_from_files
from flwr.common.constant import SUPERLINK_NODE_ID, Status, SubStatus
from flwr.proto.control_pb2 import (
    ListNodesRequest,
    ListRunsRequest,
    RegisterNodeRequest,
    StartRunRequest,
    StopRunRequest,
    UnregisterNodeRequest,
)
from flwr.proto.fab_pb2 import Fab
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, ObjectTree, PullObjectRequest
from flwr.proto.node_pb2 import Node
from flwr.proto.runtime_pb2 import (
    PullAppMessagesRequest,
    PullTaskInputRequest,
    PushTaskOutputRequest,
    SendTaskHeartbeatRequest,
)
from flwr.supercore.constant import TaskType
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
from flwr.supercore.interceptors import RuntimeTokenHttpInterceptor
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supercore.runtime import RuntimeHttpClient

from .flower import FAILURES, HEADS, LARGEST, Address, Claims, assembled, packed, pushed, unpacked

ENDING = 3.0  # seconds for a call when all is over
AT_ONCE, MOST_AT_ONCE = 32 << 20, 64  # bytes and messages that are pushed at once, about
SERVER = Node(node_id=SUPERLINK_NODE_ID)
APP = """\
[project]
name = "polycentric-parcels"
version = "1.0.0"
description = "Carries bytes; there is no code in here."
license = {text = "Apache-2.0"}
dependencies = ["flwr>=1.41"]
[tool.flwr.app]
publisher = "polycentric"
[tool.flwr.app.components]
serverapp = "nothing:app"
clientapp = "nothing:app"
"""


@dataclass(frozen=True)
class Registered:
    """A node that is registered."""

    number: int
    key: bytes
    online: bool

    @property
    def header(self) -> str:
        """What this node writes into a header of all its calls: its public key."""
        return header_of(self.key)


def key_bytes(public: ec.EllipticCurvePublicKey) -> bytes:
    """A public key as Flower keeps it."""
    return public_key_to_bytes(public)


def header_of(key: bytes) -> str:
    """A public key as nodes send it."""
    return b64encode(key).decode("ascii")


class Office:
    """What the owner of a server may do: let nodes in, turn them out, begin a run."""

    def __init__(self, address: Address) -> None:
        self._client = address.client(ControlHttpClient)

    def nodes(self) -> list[Registered]:
        """All that are registered."""
        listed = self._client.ListNodes(ListNodesRequest()).nodes_info
        found = [one for one in listed if one.status != "unregistered"]
        return [Registered(one.node_id, one.public_key, one.status == "online") for one in found]

    def register(self, key: bytes) -> None:
        """Let a node in."""
        self._client.RegisterNode(RegisterNodeRequest(public_key=key))

    def unregister(self, number: int) -> None:
        """Turn a node out."""
        self._client.UnregisterNode(UnregisterNodeRequest(node_id=number))

    def begin(self) -> int:
        """A new run, and the end of all others, whose messages would otherwise still be delivered; its number."""
        for number, run in self._client.ListRuns(ListRunsRequest(limit=100)).run_dict.items():
            if run.status.status != Status.FINISHED:
                self._client.StopRun(StopRunRequest(run_id=number))
        bundle, _ = build_fab_from_files({"pyproject.toml": APP.encode()})
        began = self._client.StartRun(StartRunRequest(fab=Fab(content=bundle)))
        if not began.run_id:
            raise ValueError("Flower began no run")
        return int(began.run_id)

    def close(self) -> None:
        """Let go of the connection."""
        self._client.close()


@dataclass(frozen=True)
class Came:
    """A reply: to which message, from which node, the parcel (None: there is none), and a code."""

    to: str
    number: int
    parcel: list[bytes] | None
    code: str


class Serving:
    """A server's claimed task: whoever has it pushes and pulls the messages of its run."""

    def __init__(self, address: Address, run: int, seconds: float) -> None:
        self._client = address.client(RuntimeHttpClient, RuntimeTokenHttpInterceptor(_claimed(address, run, seconds)))
        self._client.PullTaskInput(PullTaskInputRequest())
        self._arriving: dict[str, _Arriving] = {}
        self.run = run

    def beat(self) -> bool:
        """Say that we are alive; whether the task is still ours."""
        try:
            return bool(self._client.SendTaskHeartbeat(SendTaskHeartbeatRequest()).success)
        except httpx.HTTPStatusError as error:
            if error.response.status_code < 500:
                return False
            raise

    def written(self, parcels: Mapping[int, Sequence[bytes]], seconds: float) -> dict[int, Message]:
        """Messages to nodes, by their numbers."""
        out = {}
        for number, parcel in parcels.items():
            about = Metadata(
                run_id=self.run,
                message_id="",
                src_node_id=SUPERLINK_NODE_ID,
                dst_node_id=number,
                reply_to_message_id="",
                group_id="",
                created_at=time.time(),
                ttl=seconds,
                message_type="query",
            )
            out[number] = make_message(metadata=about, content=packed(parcel))
        return out

    def push(self, messages: Mapping[int, Message]) -> dict[int, str]:
        """Hand messages over; their own numbers, of those that were taken.

        If this fails, the same messages must be pushed again, or the run ended: a message of which a part is there is
        delivered, and its node waits for the rest.
        """
        taken = pushed(self._client, SERVER, self.run, list(messages.values()))
        return {number: message for number, message in zip(messages, taken, strict=True) if message}

    def pull(self, messages: Iterable[str], seconds: float) -> list[Came]:
        """Replies that are there as a whole; one whose bytes still arrive is looked at again in the next call.

        Takes about so many seconds at most, so that a slow node does not hold up the others' replies.
        """
        end = time.monotonic() + seconds
        asked = set(messages) - {one.to for one in self._arriving.values()}  # of what arrives it knows nothing more
        fresh = self._client.PullMessages(PullAppMessagesRequest(message_ids=asked))
        for bare, tree in zip(fresh.messages_list, fresh.message_object_trees, strict=True):
            self._arriving[tree.object_id] = _Arriving(bare.metadata.reply_to_message_id, tree)
        out: list[Came] = []
        for name, one in list(self._arriving.items()):
            try:
                if not self._completed(one, end):
                    continue
                came = _came(one.to, assembled(name, one.contents))
            except httpx.TransportError:
                raise  # the superlink is away: what came so far stays
            except FAILURES:
                came = Came(one.to, 0, None, "not readable")
            del self._arriving[name]
            out.append(came)
        return out

    def _completed(self, one: _Arriving, end: float) -> bool:
        """Fetch what is there of a reply; whether that is all."""
        for name in [name for name in one.names if name not in one.contents]:
            if time.monotonic() > end:
                return False
            found = self._client.PullObject(PullObjectRequest(node=SERVER, run_id=self.run, object_id=name))
            if not found.object_found:
                raise ValueError("a piece is missing")
            if not found.object_available:
                return False
            one.contents[name] = found.object_content
            one.size += len(found.object_content)
            if one.size > LARGEST + len(one.names) * HEADS:
                raise ValueError("too large")
        done = ConfirmMessageReceivedRequest(node=SERVER, run_id=self.run, message_object_id=one.names[0])
        self._client.ConfirmMessageReceived(done)
        return True

    def forget(self, message: str) -> None:
        """A message whose reply is not waited for any more."""
        self._arriving = {name: one for name, one in self._arriving.items() if one.to != message}

    def finish(self) -> None:
        """Say that the run is over."""
        self._client._client.timeout = httpx.Timeout(ENDING)
        self._client.PushTaskOutput(PushTaskOutputRequest(sub_status=SubStatus.COMPLETED, details=""))

    def close(self) -> None:
        """Let go of the connection."""
        self._client.close()


class _Arriving:
    """A reply of which a part is here."""

    def __init__(self, to: str, tree: ObjectTree) -> None:
        self.to, first = to, tree.object_id
        self.names = list(dict.fromkeys([first, *(one.object_id for one in iterate_object_tree(tree))]))
        self.contents: dict[str, bytes] = {}
        self.size = 0


def _came(to: str, reply: Message) -> Came:
    if reply.has_error():  # made up by Flower, or by a node that is none of ours; its words are not passed on
        return Came(to, reply.metadata.src_node_id, None, f"error {int(reply.error.code)}")
    parcel, code = unpacked(reply.content)
    return Came(to, reply.metadata.src_node_id, parcel, code)


def _claimed(address: Address, run: int, seconds: float) -> str:
    """The token of a run's task; tasks of other runs, which nobody but us should have begun, are ended unseen."""
    end = time.monotonic() + seconds
    claims = Claims(address, TaskType.SERVER_APP)
    try:
        while time.monotonic() < end:
            found = claims.next()
            if found is None:
                time.sleep(0.05)
            elif found[1] == run:
                return found[0]
            else:
                other = address.client(RuntimeHttpClient, RuntimeTokenHttpInterceptor(found[0]))
                other.PushTaskOutput(PushTaskOutputRequest(sub_status=SubStatus.FAILED, details="refused"))
                other.close()
    finally:
        claims.close()
    raise ValueError("Flower offered no task for the run")


def batches(addressed: Mapping[int, str], parcels: Mapping[str, Sequence[bytes]]) -> Iterator[dict[int, str]]:
    """Nodes whose parcels are pushed at once: few at a time where they are large, so that the first need not wait."""
    some: dict[int, str] = {}
    size = 0
    for number, peer in addressed.items():
        some[number] = peer
        size += sum(map(len, parcels[peer]))
        if size > AT_ONCE or len(some) >= MOST_AT_ONCE:
            yield some
            some, size = {}, 0
    if some:
        yield some
