"""What a node asks of its supernode: a message that has come, and to bring the reply back."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence

from cryptography.hazmat.primitives.asymmetric import ec
from flwr.app import Message
from flwr.common.constant import SubStatus
from flwr.proto.fleet_pb2 import DeactivateNodeRequest
from flwr.proto.node_pb2 import Node
from flwr.proto.runtime_pb2 import (
    PullAppMessagesRequest,
    PullTaskInputRequest,
    PushTaskOutputRequest,
    SendTaskHeartbeatRequest,
)
from flwr.supercore.constant import TaskType
from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
from flwr.supercore.inflatable.inflatable_protobuf_utils import (
    make_confirm_message_received_fn_protobuf,
    make_pull_object_fn_protobuf,
)
from flwr.supercore.inflatable.inflatable_utils import pull_objects
from flwr.supercore.interceptors import RuntimeTokenHttpInterceptor, RuntimeVersionHttpInterceptor
from flwr.supercore.protobuf.client import ProtobufClientInterceptor
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from .flower import BEAT, FAILURES, Address, Claims, assembled, httpx, packed, pushed, unpacked

SHORT = 5.0  # seconds for what may as well fail


def claims_of_messages(address: Address) -> Claims:
    """What claims a task for every message."""
    return Claims(address, TaskType.CLIENT_APP)


class Answering:
    """A claimed task: one message, and the reply to it."""

    def __init__(self, address: Address, token: str) -> None:
        self._client = address.client(RuntimeHttpClient, RuntimeTokenHttpInterceptor(token))
        self._message: Message | None = None
        self._node, self._over = Node(), threading.Event()
        threading.Thread(target=self._beat, name="beats", daemon=True).start()

    def _beat(self) -> None:
        """Say that we are alive, until it is over."""
        while not self._over.wait(BEAT):
            with contextlib.suppress(*FAILURES):
                self._client.SendTaskHeartbeat(SendTaskHeartbeatRequest())

    def parcel(self, stop: threading.Event) -> list[bytes]:
        """What the server has sent; its bytes may still be on their way."""
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

        names = list(dict.fromkeys(one.object_id for one in iterate_object_tree(tree)))
        pieces = pull_objects(names, unless_stopped, max_tries_per_object=None, initial_backoff=0.05, backoff_cap=0.5)
        make_confirm_message_received_fn_protobuf(self._client.ConfirmMessageReceived, self._node, run)(tree.object_id)
        self._message = assembled(tree.object_id, pieces)
        return unpacked(self._message.content)[0]

    def reply(self, parcel: Sequence[bytes], code: str = "") -> None:
        """The reply, and the end of the task; with a code, and nothing else, where something went wrong.

        Where no message could be read there is nothing to reply to: the task is left, and after a minute without a sign
        of life Flower makes a reply up. It waits for one for ever if the task is ended.
        """
        if self._message is not None:
            reply = Message(packed(parcel, code), reply_to=self._message)
            pushed(self._client, self._node, reply.metadata.run_id, [reply])
            self._client.PushTaskOutput(PushTaskOutputRequest(sub_status=SubStatus.COMPLETED, details=""))

    def close(self) -> None:
        """Let go of the connection."""
        self._over.set()
        self._client.close()


def sign_off(server: str, ca: str, key: ec.EllipticCurvePrivateKey, number: int) -> None:
    """Tell a server that a node is gone, for one that could not: until then it would not be let in again."""
    signing: list[ProtobufClientInterceptor] = [
        RuntimeVersionHttpInterceptor(component_name="SuperNode"),
        NodeAuthHttpInterceptor(key, key.public_key()),
    ]
    with FleetHttpClient.from_server_address(server, False, ca, signing) as client:
        client._client.timeout = httpx.Timeout(SHORT)
        client.DeactivateNode(DeactivateNodeRequest(node_id=number))
