"""What both sides know of Flower: how it is spoken to on this machine, and messages that carry bytes.

Flower gives work to executors: processes that claim a task, do it and report. Its own executor starts a process for
every message, which runs code that the server sent. Ours is a resident process that runs its own code, and nothing
that was sent: the server's task is claimed by the user's process there, which from then on pushes and pulls messages;
a node's tasks, one for every message, by the user's process there, which answers. Whoever claims a task must know a
secret, in a file that only its owner can read.

Of Flower this needs more than its authors promise to keep: a new version must be tried before it is let in.
"""

from __future__ import annotations

import json
import secrets
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import TypeVar

from ...errors import UsageError, require

OLDEST, NEWEST = (1, 41), (1, 43)  # of Flower: from, and below
_WANTED = "Flower {}.{} or newer and below {}.{}: pip install 'polycentric[deploy]'".format(*OLDEST, *NEWEST)


def check_version() -> None:
    """Refuse to go on without Flower, or with one that this was never tried with."""
    try:
        found = version("flwr")
    except PackageNotFoundError:
        raise UsageError(f"a federation between machines needs {_WANTED}") from None
    numbers = tuple(int(part) for part in found.split(".")[:2])
    require(OLDEST <= numbers < NEWEST, f"Flower {found} is installed, and a federation needs {_WANTED}")


try:
    check_version()
    import httpx as httpx
    from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
    from flwr.app.message import remove_content_from_message
    from flwr.common.serde import message_to_proto
    from flwr.proto.node_pb2 import Node
    from flwr.proto.runtime_pb2 import AcquireTaskRequest, PushAppMessagesRequest
    from flwr.supercore.inflatable.inflatable_object import (
        get_all_nested_objects,
        get_object_body,
        get_object_head_values_from_object_content,
        get_object_tree,
        no_object_id_recompute,
    )
    from flwr.supercore.inflatable.inflatable_protobuf_utils import make_push_object_fn_protobuf
    from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents, push_objects
    from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor, SuperExecAuthHttpInterceptor
    from flwr.supercore.protobuf.client import ProtobufClient, ProtobufClientInterceptor
    from flwr.supercore.runtime import RuntimeHttpClient
except ImportError as missing:
    raise UsageError(f"a part of Flower is missing ({missing.name}); a federation needs {_WANTED}") from missing

LARGEST, SMALL = 2 << 30, 1 << 18  # bytes of a parcel; of what need not be cut into pieces
HEADS = 1 << 12  # bytes of a piece that are not of a parcel
WAIT = 30.0  # seconds for one call
BEAT = 10.0  # seconds between two signs of life: a task is taken away from who gives none for a minute
FAILURES = (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError, RuntimeError, LookupError, TypeError)
# What a call, or reading what it brought, may raise where the other side is gone, slow, or sends nonsense.

PARCEL, ABOUT, CODE, COUNT = "parcel", "about", "code", "count"

Client = TypeVar("Client", bound=ProtobufClient)


@dataclass(frozen=True)
class Address:
    """Where one of Flower's programs listens on this machine; and how it is known to be the one that we started."""

    host: str
    port: int
    tls: ssl.SSLContext | None
    secret: bytes

    def client(self, kind: type[Client], *more: ProtobufClientInterceptor) -> Client:
        """A client that asks once, and no proxy: the retries of Flower's own may interrupt the whole process."""
        named = RuntimeVersionHttpInterceptor(component_name="SuperExec")
        made = kind(self._url, interceptors=[named, *more], verify=self.tls or False)
        made._client.close()
        made._client = httpx.Client(verify=self.tls or False, timeout=WAIT, trust_env=False)
        return made

    def healthy(self) -> bool:
        """Whether it answers."""
        try:
            with httpx.Client(verify=self.tls or False, timeout=2.0, trust_env=False) as asking:
                return asking.get(f"{self._url}/health").status_code == 200
        except httpx.HTTPError:
            return False

    @property
    def _url(self) -> str:
        return f"{'https' if self.tls else 'http'}://{self.host}:{self.port}"


class Claims:
    """Claims tasks, by the secret that we share with the program which has them."""

    def __init__(self, address: Address, kind: str) -> None:
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


def check_size(parcel: Sequence[bytes]) -> None:
    """Refuse what is too large to travel."""
    size = sum(map(len, parcel))
    require(size <= LARGEST, f"a message of {size:,} bytes is larger than {LARGEST:,}: choose a smaller model")


def packed(parcel: Sequence[bytes], code: str = "") -> RecordDict:
    """Bytes as one array each, which Flower cuts into pieces; or, as long as they are few, in one record.

    A record costs a call, so that the second is faster. A random number keeps others from guessing the message's own.
    """
    about: dict[str, bytes | str] = {CODE: code, "number": secrets.token_hex(16)}
    arrays: dict[str, Array] = {}
    room = SMALL
    for k, one in enumerate(parcel):
        room -= len(one)
        if room >= 0:
            about[f"{k:08d}"] = bytes(one)
        else:
            arrays[f"{k:08d}"] = Array("uint8", (len(one),), "bytes", bytes(one))
    found = RecordDict({ABOUT: ConfigRecord({COUNT: len(parcel), **about})})
    if arrays:
        found[PARCEL] = ArrayRecord(arrays)
    return found


def unpacked(content: RecordDict) -> tuple[list[bytes], str]:
    """The bytes and the code of a message; a ValueError where it is none of ours."""
    about, arrays = content.config_records.get(ABOUT), content.array_records.get(PARCEL)
    if about is None:
        raise ValueError("no parcel")
    count, code = about.get(COUNT), about.get(CODE)
    pieces = {name: one.data for name, one in arrays.items()} if arrays else {}
    pieces |= {name: one for name, one in about.items() if isinstance(one, bytes)}
    parcel = [pieces[name] for name in sorted(pieces)]
    whole = sorted(pieces) == [f"{k:08d}" for k in range(len(pieces))] and count == len(pieces)
    if not whole or not isinstance(code, str) or sum(map(len, parcel)) > LARGEST:
        raise ValueError("half a parcel")
    return parcel, "".join(letter for letter in code[:40] if letter.isalnum() or letter == " ")


def assembled(first: str, pieces: Mapping[str, bytes]) -> Message:
    """A message from its pieces; a ValueError where they make none, or one that is too large.

    An array names its pieces, and may name one many times: a few bytes could become more than any memory holds.
    """
    size = 0
    for piece in pieces.values():
        kind, children, _ = get_object_head_values_from_object_content(piece)
        if kind == Array.__qualname__:
            named = json.loads(get_object_body(piece, Array))["arraychunk_ids"]
            size += sum(len(pieces[children[k]]) for k in named)
    if size > LARGEST + len(pieces) * HEADS:
        raise ValueError("too large")
    try:
        message = inflate_object_from_contents(first, dict(pieces))
    except Exception as error:  # of Flower, protobuf, or of a piece in the place of another: many kinds
        raise ValueError("pieces that cannot be read") from error
    if not isinstance(message, Message):
        raise ValueError("no message")
    message.metadata.__dict__["_message_id"] = first
    return message


def pushed(client: RuntimeHttpClient, node: Node, run: int, messages: Sequence[Message]) -> list[str]:
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
