"""All that is known here of Flower's interfaces: messages that carry bytes, and the calls that move them.

Flower gives work to executors: processes that claim a task, do it and report. Its own executor starts a process for
every message, which runs code that the server sent. Ours is a resident process that runs its own code, and nothing that
was sent: a server's task is claimed by `serve`, which from then on may push and pull messages; a node's task, one for
every message, by `join`, which answers it. Whoever claims tasks must know a secret, a file that only its owner can read.

What is sent as an app is therefore empty: it is there since a run needs one.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import ssl
import threading
import time
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import TypeVar

from ...errors import UsageError, require

OLDEST, NEWEST = (1, 41), (1, 43)  # of Flower: from, and below


def check_version() -> None:
    """Refuse to go on without Flower, or with one that this was never tried with."""
    wanted = (
        f"Flower {OLDEST[0]}.{OLDEST[1]} or newer, below {NEWEST[0]}.{NEWEST[1]}: pip install 'polycentric[deploy]'"
    )
    try:
        found = version("flwr")
    except PackageNotFoundError:
        raise UsageError(f"a federation between machines needs {wanted}") from None
    numbers = tuple(int(part) for part in found.split(".")[:2])
    require(OLDEST <= numbers < NEWEST, f"Flower {found} is installed, and a federation needs {wanted}")


check_version()

import httpx  # noqa: E402
from cryptography.hazmat.primitives.asymmetric import ec  # noqa: E402
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, Metadata, RecordDict  # noqa: E402
from flwr.app.message import make_message, remove_content_from_message  # noqa: E402
from flwr.cli.build import build_fab_from_files  # noqa: E402
from flwr.common.constant import SUPERLINK_NODE_ID, SubStatus  # noqa: E402
from flwr.common.serde import message_to_proto  # noqa: E402
from flwr.proto.control_pb2 import (  # noqa: E402
    ListNodesRequest,
    RegisterNodeRequest,
    StartRunRequest,
    UnregisterNodeRequest,
)
from flwr.proto.fab_pb2 import Fab  # noqa: E402
from flwr.proto.fleet_pb2 import DeactivateNodeRequest  # noqa: E402
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, ObjectTree, PullObjectRequest  # noqa: E402
from flwr.proto.node_pb2 import Node, NodeInfo  # noqa: E402
from flwr.proto.runtime_pb2 import (  # noqa: E402
    AcquireTaskRequest,
    PullAppMessagesRequest,
    PullTaskInputRequest,
    PushAppMessagesRequest,
    PushTaskOutputRequest,
    SendTaskHeartbeatRequest,
)
from flwr.supercore.constant import TaskType  # noqa: E402
from flwr.supercore.control import ControlHttpClient  # noqa: E402
from flwr.supercore.inflatable.inflatable_object import (  # noqa: E402
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_protobuf_utils import (  # noqa: E402
    make_confirm_message_received_fn_protobuf,
    make_pull_object_fn_protobuf,
    make_push_object_fn_protobuf,
)
from flwr.supercore.inflatable.inflatable_utils import (  # noqa: E402
    inflate_object_from_contents,
    pull_and_inflate_object_from_tree,
    push_objects,
)
from flwr.supercore.interceptors import (  # noqa: E402
    RuntimeTokenHttpInterceptor,
    RuntimeVersionHttpInterceptor,
    SuperExecAuthHttpInterceptor,
)
from flwr.supercore.primitives.asymmetric import public_key_to_bytes  # noqa: E402
from flwr.supercore.protobuf.client import ProtobufClient, ProtobufClientInterceptor  # noqa: E402
from flwr.supercore.runtime import RuntimeHttpClient  # noqa: E402
from flwr.supernode.fleet_http_client import FleetHttpClient  # noqa: E402
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor  # noqa: E402

logging.getLogger("flwr").setLevel(logging.CRITICAL)  # in this process; what matters is told to our own log

LARGEST = 2 << 30  # bytes of a parcel
WAIT = 30.0  # seconds for one call
BEAT = 10.0  # seconds between two signs of life
FAILURES = (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError, RuntimeError, KeyError, TypeError)
# What a call, or reading what it brought, may raise where the other side is gone, slow, or sends nonsense.

PARCEL, ABOUT, CODE = "parcel", "about", "code"
_QUERY, _SERVER = "query", Node(node_id=SUPERLINK_NODE_ID)
_APP = """\
[project]
name = "polycentric-parcels"
version = "1.0.0"
description = "Carries bytes. No code travels: nodes run their own."
license = {text = "Apache-2.0"}
dependencies = ["flwr>=1.41"]
[tool.flwr.app]
publisher = "polycentric"
[tool.flwr.app.components]
serverapp = "nothing:app"
clientapp = "nothing:app"
"""

Client = TypeVar("Client", bound=ProtobufClient)


@dataclass(frozen=True)
class Address:
    """Where one of Flower's programs listens on this machine; and how it is known to be the one we started."""

    host: str
    port: int
    tls: ssl.SSLContext | None
    secret: bytes

    def client(self, kind: type[Client], *more: ProtobufClientInterceptor) -> Client:
        """A client that asks once, and no proxy: Flower's own retries may interrupt the whole process."""
        scheme = "http" if self.tls is None else "https"
        verify: ssl.SSLContext | bool = self.tls or False
        named = RuntimeVersionHttpInterceptor(component_name="SuperExec")
        made = kind(f"{scheme}://{self.host}:{self.port}", interceptors=[named, *more], verify=verify)
        made._client.close()
        made._client = httpx.Client(verify=verify, timeout=WAIT, trust_env=False)
        return made

    def healthy(self) -> bool:
        """Whether it answers."""
        scheme = "http" if self.tls is None else "https"
        try:
            with httpx.Client(verify=self.tls or False, timeout=2.0, trust_env=False) as asking:
                return asking.get(f"{scheme}://{self.host}:{self.port}/health").status_code == 200
        except httpx.HTTPError:
            return False


# -- parcels -------------------------------------------------------------------------------------------------


def check_size(parcel: Sequence[bytes]) -> None:
    """Refuse what is too large to travel."""
    size = sum(map(len, parcel))
    require(
        size <= LARGEST,
        f"a message of {size:,} bytes is larger than {LARGEST:,}: send a smaller model, or fewer at once",
    )


def packed(parcel: Sequence[bytes], code: str = "") -> RecordDict:
    """Bytes as one array each, in order; and a random number, so that nobody can guess the message's own."""
    arrays = {f"{k:08d}": Array("uint8", (len(one),), "bytes", bytes(one)) for k, one in enumerate(parcel)}
    about = ConfigRecord({CODE: code, "count": len(arrays), "number": secrets.token_hex(16)})
    return RecordDict({PARCEL: ArrayRecord(arrays), ABOUT: about})


def unpacked(content: RecordDict) -> tuple[list[bytes], str]:
    """The bytes and the code of a message; a ValueError where it is none of ours."""
    arrays, about = content.array_records.get(PARCEL), content.config_records.get(ABOUT)
    if arrays is None or about is None:
        raise ValueError("no parcel")
    parcel = [arrays[name].data for name in sorted(arrays)]
    code = about.get(CODE, "")
    if about.get("count") != len(parcel) or not isinstance(code, str) or sum(map(len, parcel)) > LARGEST:
        raise ValueError("half a parcel")
    return parcel, code


def _pushed(client: RuntimeHttpClient, node: Node, run: int, messages: Sequence[Message]) -> list[str]:
    """Hand messages over; their numbers, empty where one was not taken. Bytes that are equal travel once."""
    with no_object_id_recompute():
        for message in messages:
            message.metadata.__dict__["_message_id"] = message.object_id
        bare = [message_to_proto(remove_content_from_message(message)) for message in messages]
        trees = [get_object_tree(message) for message in messages]
        taken = client.PushMessages(PushAppMessagesRequest(messages_list=bare, message_object_trees=trees))
        objects = {name: one for message in messages for name, one in get_all_nested_objects(message).items()}
        push = make_push_object_fn_protobuf(client.PushObject, node, run, taken.session_id)
        push_objects(objects, push, object_ids_to_push=set(taken.objects_to_push))
    return list(taken.message_ids)


# -- the server's side ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Known:
    """A node, as a server's Flower lists it."""

    number: int
    key: bytes
    online: bool

    @property
    def header(self) -> str:
        """What this node writes into a header of all its calls: its public key."""
        return b64encode(self.key).decode("ascii")


def key_bytes(public: ec.EllipticCurvePublicKey) -> bytes:
    """A public key as Flower stores it."""
    return public_key_to_bytes(public)


class Office:
    """What the owner of a server may do: let nodes in, turn them out, begin a run."""

    def __init__(self, address: Address) -> None:
        self._client = address.client(ControlHttpClient)

    def nodes(self) -> list[Known]:
        """All that are registered."""
        found = self._client.ListNodes(ListNodesRequest()).nodes_info
        return [_known(one) for one in found if one.status != "unregistered"]

    def register(self, key: bytes) -> None:
        """Let a node in."""
        self._client.RegisterNode(RegisterNodeRequest(public_key=key))

    def unregister(self, number: int) -> None:
        """Turn a node out."""
        self._client.UnregisterNode(UnregisterNodeRequest(node_id=number))

    def begin(self) -> int:
        """A new run; its number."""
        bundle, _ = build_fab_from_files({"pyproject.toml": _APP.encode()})
        began = self._client.StartRun(StartRunRequest(fab=Fab(content=bundle)))
        if not began.run_id:
            raise ValueError("Flower began no run")
        return int(began.run_id)

    def close(self) -> None:
        """Let go of the connection."""
        self._client.close()


def _known(one: NodeInfo) -> Known:
    return Known(one.node_id, one.public_key, one.status == "online")


@dataclass(frozen=True)
class Came:
    """A reply: to which message, from which node, the parcel (None: there is none), and a code."""

    to: str
    number: int
    parcel: list[bytes] | None
    code: str


class _Arriving:
    """A reply of which a part is here."""

    def __init__(self, to: str, tree: ObjectTree) -> None:
        self.to = to
        self.names = list(dict.fromkeys(one.object_id for one in iterate_object_tree(tree)))
        self.names.remove(tree.object_id)
        self.names.insert(0, tree.object_id)
        self.contents: dict[str, bytes] = {}


def _came(to: str, reply: object) -> Came:
    if not isinstance(reply, Message):
        raise ValueError("no message")
    if reply.has_error():  # made up by Flower, or by a node that is none of ours; its words are not passed on
        return Came(to, reply.metadata.src_node_id, None, f"error {int(reply.error.code)}")
    parcel, code = unpacked(reply.content)
    return Came(to, reply.metadata.src_node_id, parcel, code)


class Serving:
    """A server's claimed task: whoever has it pushes and pulls the messages of its run."""

    def __init__(self, address: Address, run: int, seconds: float) -> None:
        token = _claimed(address, TaskType.SERVER_APP, run, seconds)
        self._client = address.client(RuntimeHttpClient, RuntimeTokenHttpInterceptor(token))
        self._client.PullTaskInput(PullTaskInputRequest())
        self._arriving: dict[str, _Arriving] = {}
        self.run = run

    def beat(self) -> bool:
        """Say that we are alive; whether the task is still ours."""
        return bool(self._client.SendTaskHeartbeat(SendTaskHeartbeatRequest()).success)

    def push(self, parcels: Mapping[int, Sequence[bytes]], seconds: float) -> dict[int, str]:
        """Messages to nodes, by their numbers; the messages' own numbers, of those that were taken."""
        messages = [self._message(number, parcel, seconds) for number, parcel in parcels.items()]
        taken = _pushed(self._client, _SERVER, self.run, messages)
        return {number: message for number, message in zip(parcels, taken, strict=True) if message}

    def _message(self, number: int, parcel: Sequence[bytes], seconds: float) -> Message:
        about = Metadata(
            run_id=self.run,
            message_id="",
            src_node_id=SUPERLINK_NODE_ID,
            dst_node_id=number,
            reply_to_message_id="",
            group_id="",
            created_at=time.time(),
            ttl=seconds,
            message_type=_QUERY,
        )
        return make_message(metadata=about, content=packed(parcel))

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
                reply = inflate_object_from_contents(name, one.contents)
                came = _came(one.to, reply)
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
            found = self._client.PullObject(PullObjectRequest(node=_SERVER, run_id=self.run, object_id=name))
            if not found.object_found:
                raise ValueError("a piece is missing")
            if not found.object_available:
                return False
            one.contents[name] = found.object_content
        done = ConfirmMessageReceivedRequest(node=_SERVER, run_id=self.run, message_object_id=one.names[0])
        self._client.ConfirmMessageReceived(done)
        return True

    def forget(self, message: str) -> None:
        """A message whose reply is not waited for any more."""
        self._arriving = {name: one for name, one in self._arriving.items() if one.to != message}

    def finish(self) -> None:
        """Say that the run is over."""
        self._client.PushTaskOutput(PushTaskOutputRequest(sub_status=SubStatus.COMPLETED, details=""))

    def close(self) -> None:
        """Let go of the connection."""
        self._client.close()


def _claimed(address: Address, kind: str, run: int, seconds: float) -> str:
    """The token of a run's task; tasks of other runs, which nobody but us should have begun, are ended unseen."""
    end = time.monotonic() + seconds
    claiming = Claims(address, kind)
    try:
        while time.monotonic() < end:
            found = claiming.next()
            if found is None:
                time.sleep(0.05)
            elif found[1] == run:
                return found[0]
            else:
                refused = address.client(RuntimeHttpClient, RuntimeTokenHttpInterceptor(found[0]))
                refused.PushTaskOutput(PushTaskOutputRequest(sub_status=SubStatus.FAILED, details="refused"))
                refused.close()
    finally:
        claiming.close()
    raise ValueError("Flower offered no task for the run")


class Claims:
    """Claims tasks, by the secret that we share with the program which has them."""

    def __init__(self, address: Address, kind: str = TaskType.CLIENT_APP) -> None:
        signing = SuperExecAuthHttpInterceptor(
            master_secret=address.secret, protected_methods=["/flwr.proto.Runtime/AcquireTask"]
        )
        self._client, self._kind = address.client(RuntimeHttpClient, signing), kind

    def next(self) -> tuple[str, int] | None:
        """The token and the run of the oldest task that waits; None: there is none."""
        found = self._client.AcquireTask(AcquireTaskRequest(supported_task_types=[self._kind]))
        return (found.token, int(found.task.run_id)) if found.HasField("task") and found.token else None

    def close(self) -> None:
        """Let go of the connection."""
        self._client.close()


# -- a node's side -------------------------------------------------------------------------------------------


class Answering:
    """A node's claimed task: one message, and the reply to it."""

    def __init__(self, address: Address, token: str) -> None:
        self._client = address.client(RuntimeHttpClient, RuntimeTokenHttpInterceptor(token))
        self._message: Message | None = None
        self._node, self._over = Node(), threading.Event()
        threading.Thread(target=self._beat, name="beats", daemon=True).start()

    def parcel(self, stop: threading.Event) -> list[bytes]:
        """What the server has sent."""
        begun = self._client.PullTaskInput(PullTaskInputRequest())
        self._node = Node(node_id=begun.context.node_id)
        waiting = self._client.PullMessages(PullAppMessagesRequest())
        if not waiting.messages_list:
            raise ValueError("no message")
        tree, run = waiting.message_object_trees[0], begun.run.run_id
        pull = make_pull_object_fn_protobuf(self._client.PullObject, self._node, run)

        def unless_stopped(name: str) -> bytes:
            if stop.is_set():
                raise ValueError("we stop")
            return pull(name)

        message = pull_and_inflate_object_from_tree(  # its bytes may still be on their way from the server
            tree,
            unless_stopped,
            make_confirm_message_received_fn_protobuf(self._client.ConfirmMessageReceived, self._node, run),
            return_type=Message,
            max_tries_per_object=None,
            initial_backoff=0.05,
            backoff_cap=0.5,
        )
        message.metadata.__dict__["_message_id"] = tree.object_id
        self._message = message
        return unpacked(message.content)[0]

    def _beat(self) -> None:
        """Say that we are alive, until it is over: otherwise Flower makes up a reply after a minute."""
        while not self._over.wait(BEAT):
            with contextlib.suppress(*FAILURES):
                self._client.SendTaskHeartbeat(SendTaskHeartbeatRequest())

    def reply(self, parcel: Sequence[bytes], code: str = "") -> None:
        """The reply, and the end of the task; with a code, and nothing else, where something went wrong."""
        if self._message is None:  # nothing to reply to: Flower makes a reply up when it notices
            self._client.PushTaskOutput(PushTaskOutputRequest(sub_status=SubStatus.FAILED, details="failed"))
            return
        reply = Message(packed(parcel, code), reply_to=self._message)
        _pushed(self._client, self._node, reply.metadata.run_id, [reply])
        self._client.PushTaskOutput(PushTaskOutputRequest(sub_status=SubStatus.COMPLETED, details=""))

    def close(self) -> None:
        """Let go of the connection."""
        self._over.set()
        self._client.close()


def sign_off(server: str, ca: str | None, key: ec.EllipticCurvePrivateKey, number: int) -> None:
    """Tell a server that a node is gone, for one that could not: until then it would not be let in again."""
    interceptors = [
        RuntimeVersionHttpInterceptor(component_name="SuperNode"),
        NodeAuthHttpInterceptor(key, key.public_key()),
    ]
    with FleetHttpClient.from_server_address(server, False, ca, interceptors) as client:
        client.DeactivateNode(DeactivateNodeRequest(node_id=number))
