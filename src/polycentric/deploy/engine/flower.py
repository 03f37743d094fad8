"""All that is known here of Flower's interfaces: messages that carry bytes, and the calls that move them.

Flower gives work to executors: processes that claim a task, do it and report. Its own executor starts a process for
every message, which runs code that the server sent. Ours is a resident process that runs its own code, and nothing that
was sent: a server's task is claimed by `serve`, which from then on may push and pull messages; a node's task, one for
every message, by `join`, which answers it. Whoever claims tasks must know a secret, a file that only its owner can read.

What is sent as an app is therefore empty: it is there since a run needs one.
"""

from __future__ import annotations

import logging
import secrets
import ssl
import time
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any, TypeVar

from ...errors import UsageError, require

OLDEST, NEWEST = (1, 41), (1, 43)  # of Flower: from, and below


def check_version() -> None:
    """Refuse to go on without Flower, or with one that this was never tried with."""
    wanted = f"Flower {OLDEST[0]}.{OLDEST[1]} or newer, below {NEWEST[0]}.{NEWEST[1]}: pip install 'polycentric[deploy]'"
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
from flwr.common.serde import message_to_proto, run_from_proto  # noqa: E402
from flwr.proto.control_pb2 import (  # noqa: E402
    ListNodesRequest,
    RegisterNodeRequest,
    StartRunRequest,
    UnregisterNodeRequest,
)
from flwr.proto.fab_pb2 import Fab  # noqa: E402
from flwr.proto.fleet_pb2 import DeactivateNodeRequest  # noqa: E402
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
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_protobuf_utils import (  # noqa: E402
    make_confirm_message_received_fn_protobuf,
    make_pull_object_fn_protobuf,
    make_push_object_fn_protobuf,
)
from flwr.supercore.inflatable.inflatable_utils import pull_and_inflate_object_from_tree, push_objects  # noqa: E402
from flwr.supercore.interceptors import (  # noqa: E402
    RuntimeTokenHttpInterceptor,
    RuntimeVersionHttpInterceptor,
    SuperExecAuthHttpInterceptor,
)
from flwr.supercore.primitives.asymmetric import public_key_to_bytes  # noqa: E402
from flwr.supercore.protobuf.client import ProtobufClient, ProtobufClientInterceptor  # noqa: E402
from flwr.supercore.runtime import RuntimeHttpClient  # noqa: E402
from flwr.superlink.grid import HttpGrid  # noqa: E402
from flwr.supernode.fleet_http_client import FleetHttpClient  # noqa: E402
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor  # noqa: E402

logging.getLogger("flwr").setLevel(logging.CRITICAL)  # in this process; what matters is told to our own log

LARGEST = 2 << 30  # bytes of a parcel
WAIT = 30.0  # seconds for one call
FAILURES = (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError, RuntimeError, KeyError, TypeError)
# What a call, or reading what it brought, may raise where the other side is gone, slow, or sends nonsense.

PARCEL, ABOUT, CODE = "parcel", "about", "code"
_QUERY = "query"
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
        size <= LARGEST, f"a message of {size:,} bytes is larger than {LARGEST:,}: send a smaller model, or fewer at once"
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


class Serving:
    """A server's claimed task: whoever has it pushes and pulls the messages of its run."""

    def __init__(self, address: Address, run: int, seconds: float) -> None:
        token = _claimed(address, TaskType.SERVER_APP, run, seconds)
        self._client = address.client(RuntimeHttpClient, RuntimeTokenHttpInterceptor(token))
        self._grid = HttpGrid(token=token)
        self._grid._client = self._client
        begun = self._client.PullTaskInput(PullTaskInputRequest())
        self._grid.set_run(run_from_proto(begun.run))
        self.run = run

    def beat(self) -> bool:
        """Say that we are alive; whether the task is still ours."""
        return bool(self._client.SendTaskHeartbeat(SendTaskHeartbeatRequest()).success)

    def push(self, parcels: Mapping[int, Sequence[bytes]], seconds: float) -> dict[int, str]:
        """Messages to nodes, by their numbers; the messages' own numbers, of those that were taken."""
        messages = [self._message(number, parcel, seconds) for number, parcel in parcels.items()]
        taken = self._grid.push_messages(messages)
        return {number: message for number, message in zip(parcels, taken, strict=False) if message}

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

    def pull(self, messages: Iterable[str]) -> list[tuple[str, int, list[bytes] | None, str]]:
        """Replies that are there: to which message, from which node, the parcel (None: there is none), a code."""
        out: list[tuple[str, int, list[bytes] | None, str]] = []
        for reply in self._grid.pull_messages(list(messages)):
            about = reply.metadata
            parcel: list[bytes] | None = None
            if reply.has_error():
                code = f"error {reply.error.code}"
            else:
                try:
                    parcel, code = unpacked(reply.content)
                except FAILURES:
                    code = "no parcel"
            out.append((about.reply_to_message_id, about.src_node_id, parcel, code))
        return out

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
        self._node = Node()

    def parcel(self) -> list[bytes]:
        """What the server has sent."""
        begun = self._client.PullTaskInput(PullTaskInputRequest())
        self._node = Node(node_id=begun.context.node_id)
        waiting = self._client.PullMessages(PullAppMessagesRequest())
        if not waiting.messages_list:
            raise ValueError("no message")
        tree, run = waiting.message_object_trees[0], begun.run.run_id
        message = pull_and_inflate_object_from_tree(
            tree,
            make_pull_object_fn_protobuf(self._client.PullObject, self._node, run),
            make_confirm_message_received_fn_protobuf(self._client.ConfirmMessageReceived, self._node, run),
            return_type=Message,
        )
        message.metadata.__dict__["_message_id"] = tree.object_id
        self._message = message
        return unpacked(message.content)[0]

    def beat(self) -> bool:
        """Say that we are alive."""
        return bool(self._client.SendTaskHeartbeat(SendTaskHeartbeatRequest()).success)

    def reply(self, parcel: Sequence[bytes], code: str = "") -> None:
        """The reply, and the end of the task; with a code, and nothing else, where something went wrong."""
        if self._message is None:  # nothing to reply to: Flower makes a reply up when it notices
            self._client.PushTaskOutput(PushTaskOutputRequest(sub_status=SubStatus.FAILED, details="failed"))
            return
        reply = Message(packed(parcel, code), reply_to=self._message)
        reply.metadata.__dict__["_message_id"] = reply.object_id
        bare: Any = message_to_proto(remove_content_from_message(reply))
        with no_object_id_recompute():
            tree = get_object_tree(reply)
            taken = self._client.PushMessages(
                PushAppMessagesRequest(messages_list=[bare], message_object_trees=[tree])
            )
            push = make_push_object_fn_protobuf(
                self._client.PushObject, self._node, reply.metadata.run_id, taken.session_id
            )
            push_objects(get_all_nested_objects(reply), push, object_ids_to_push=set(taken.objects_to_push))
        self._client.PushTaskOutput(PushTaskOutputRequest(sub_status=SubStatus.COMPLETED, details=""))

    def close(self) -> None:
        """Let go of the connection."""
        self._client.close()


def sign_off(server: str, ca: str | None, key: ec.EllipticCurvePrivateKey, number: int) -> None:
    """Tell a server that a node is gone, for one that could not: until then it would not be let in again."""
    interceptors = [
        RuntimeVersionHttpInterceptor(component_name="SuperNode"),
        NodeAuthHttpInterceptor(key, key.public_key()),
    ]
    with FleetHttpClient.from_server_address(server, False, ca, interceptors) as client:
        client.DeactivateNode(DeactivateNodeRequest(node_id=number))
