"""Access control: access keys with secrets, and their rights on topics and groups.

If a server has access keys, every request must be signed (codec/signature.py). A key has all rights, or only
those given: {topic or group: "PUB", "SUB" or "PUB|SUB"}, with "*" for all other names. Consuming needs SUB on
the group. Retry and dead letter topics belong to their group. "*" gives no right to read the broker's own
topics: delayed and half messages of every topic are in them. A key with restricted rights may not
administrate: change topics, set the offsets of groups that it may not consume from, or send any request that
is not in the table here.

A signature has no time: an eavesdropper can replay a request. Use TLS as well.

RocketMQ: acl/plain/PlainAccessValidator.java, PlainPermissionManager.java.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from mq.api.recall import RecallHandle
from mq.names import DEAD_PREFIX, RETRY_PREFIX, SYSTEM_PREFIX, UNSENDABLE_TOPICS
from mq.remoting.codec.bodies.consuming import QueueLock
from mq.remoting.codec.bodies.heartbeat import ClientCheck, Heartbeat
from mq.remoting.codec.fields import Request
from mq.remoting.codec.frame import Frame
from mq.remoting.codec.json_body import from_json
from mq.remoting.codec.requests import consuming, groups, name_servers, offsets, sending
from mq.remoting.codec.response_codes import ResponseCode
from mq.remoting.codec.signature import ACCESS_KEY, is_signed_by
from mq.remoting.server.replies import Refusal

__all__ = ["Access", "AccessKeys"]

AccessKeys = Mapping[str, "str | tuple[str, Mapping[str, str]]"]
PUB, SUB = "PUB", "SUB"
ANY = "*"
KINDS: Final = frozenset({PUB, SUB})
Need = tuple[str, str]  # a topic or a group, and the right that is needed
Needs = Callable[[Any, Frame], Iterable[Need]]
NOBODY = "no such key"  # the secret to compare with if the key is unknown


def _send(request: sending.SendFields, _: Frame) -> Iterable[Need]:
    if request.topic.startswith((RETRY_PREFIX, DEAD_PREFIX)):  # They are their group's.
        return [_read(request.topic)]
    return [(request.topic, PUB)]


def _pull(request: consuming.PullFields, _: Frame) -> Iterable[Need]:
    return [_read(request.topic), (request.consumer_group, SUB)]


def _offsets(request: offsets.QueryConsumerOffset | offsets.UpdateConsumerOffset, _: Frame) -> Iterable[Need]:
    return [_read(request.topic), (request.consumer_group, SUB)]


def _topic(request: Any, _: Frame) -> Iterable[Need]:
    return [_read(request.topic)]


def _heartbeat(_: groups.HeartBeat, frame: Frame) -> Iterable[Need]:
    for group in from_json(Heartbeat, frame.body).consumer_data_set:
        yield group.group_name, SUB
        for each in group.subscription_data_set:
            yield _read(each.topic)


def _unregister(request: groups.UnregisterClient, _: Frame) -> Iterable[Need]:
    return [(request.consumer_group, SUB)] if request.consumer_group else []


def _check(_: groups.CheckClientConfig, frame: Frame) -> Iterable[Need]:
    return [(from_json(ClientCheck, frame.body).group, SUB)]


def _lock(_: groups.LockQueues, frame: Frame) -> Iterable[Need]:
    return [(from_json(QueueLock, frame.body).consumer_group, SUB)]


def _consumer_group(request: Any, _: Frame) -> Iterable[Need]:
    return [(request.consumer_group, SUB)]


def _send_back(request: sending.SendMessageBack, _: Frame) -> Iterable[Need]:
    return [(request.group, SUB)]


def _nothing(_request: Request, _: Frame) -> Iterable[Need]:
    """No right is needed besides a valid signature."""
    return []


def _recall(request: sending.RecallMessage, _: Frame) -> Iterable[Need]:
    yield request.topic, PUB
    with contextlib.suppress(ValueError):  # The handler says what is wrong with the handle.
        yield RecallHandle.of(request.recall_handle).topic, PUB


def _read(topic: str) -> Need:
    for prefix in (RETRY_PREFIX, DEAD_PREFIX):
        if topic.startswith(prefix):
            return topic.removeprefix(prefix), SUB
    return topic, SUB


# The requests that a key with restricted rights may send, with the rights they need.
NEEDS: Final[dict[type[Request], Needs]] = {
    sending.SendMessage: _send,
    sending.SendMessageV2: _send,
    sending.SendBatchMessage: _send,
    sending.SendReplyMessage: _send,
    sending.SendReplyMessageV2: _send,
    sending.SendMessageBack: _send_back,  # The handler checks the topic of the message at the offset.
    sending.EndTransaction: _nothing,  # The handler checks the topic of the half message.
    sending.RecallMessage: _recall,
    consuming.PullMessage: _pull,
    consuming.LitePullMessage: _pull,
    consuming.QueryMessage: _topic,
    offsets.QueryConsumerOffset: _offsets,
    offsets.UpdateConsumerOffset: _offsets,
    offsets.GetMaxOffset: _topic,
    offsets.GetMinOffset: _topic,
    offsets.SearchOffsetByTimestamp: _topic,
    offsets.GetEarliestStoreTime: _topic,
    groups.HeartBeat: _heartbeat,
    groups.UnregisterClient: _unregister,
    groups.CheckClientConfig: _check,
    groups.GetConsumerList: _consumer_group,
    groups.LockQueues: _lock,
    groups.UnlockQueues: _lock,
    name_servers.GetRoute: _nothing,
    name_servers.GetClusterInfo: _nothing,
}


def _secret_and_rights(name: object, given: Any) -> tuple[str, Mapping[str, str]]:
    """What a key has that has not all rights. Raises TypeError."""
    if isinstance(given, tuple | list) and len(given) == 2:
        secret, rights = given
        if isinstance(rights, Mapping) and all(isinstance(kinds, str) for kinds in rights.values()):
            return secret, rights
    raise TypeError(
        f"access key {name!r}: give its secret, or (secret, {{topic or group: 'PUB', 'SUB', 'PUB|SUB' or"
        " 'DENY'})"
    )


class Access:
    """The keys of one server. Raises TypeError or ValueError if they are malformed."""

    def __init__(self, keys: AccessKeys) -> None:
        self._secrets: dict[str, str] = {}
        self._rights: dict[str, dict[str, frozenset[str]] | None] = {}
        for name, given in keys.items():
            secret, rights = (given, None) if isinstance(given, str) else _secret_and_rights(name, given)
            if not isinstance(name, str) or not isinstance(secret, str) or not name or not secret:
                raise TypeError("access_keys are {access_key: secret_key}, both of them texts")
            self._secrets[name] = secret
            self._rights[name] = None if rights is None else {k: _kinds(k, v) for k, v in rights.items()}

    def authenticate(self, frame: Frame) -> str:
        """The access key. Raises Refusal if the request is not signed with a key of this server."""
        name = frame.fields.get(ACCESS_KEY, "")
        secret = self._secrets.get(name)
        is_genuine = is_signed_by(frame.fields, frame.body, secret or NOBODY) and secret is not None
        if not is_genuine:
            raise Refusal(
                ResponseCode.NO_PERMISSION,
                "the request has no valid signature: give the client an access key of this server, and its"
                " secret",
            )
        return name

    def may_send(self, name: str, topic: str) -> bool:
        """Whether this access key has PUB for a topic."""
        try:
            self._check(name, [(topic, PUB)])
        except (Refusal, KeyError):
            return False
        return True

    def authorize(self, request: Request, frame: Frame) -> None:
        """Raises Refusal if the sender of an authenticated request lacks the rights for it."""
        name = frame.fields[ACCESS_KEY]
        if self._rights[name] is None:
            return
        needs = NEEDS.get(type(request))
        if needs is None:
            raise Refusal(
                ResponseCode.NO_PERMISSION,
                f"{request.NAME} is for operators: access key {name!r} has restricted rights; use a key with"
                " all rights",
            )
        self._check(name, needs(request, frame))

    def is_restricted(self, frame: Frame) -> bool:
        """Whether the key of an authenticated request has restricted rights."""
        return self._rights[frame.fields[ACCESS_KEY]] is not None

    def check_sendable(self, frame: Frame, topic: str) -> None:
        """Raises Refusal if the sender of an authenticated request may not send to this topic."""
        self._check(frame.fields[ACCESS_KEY], [(topic, PUB)])

    def check_readable(self, frame: Frame, topics: Iterable[str]) -> None:
        """Raises Refusal if the sender of an authenticated request may not read one of these topics."""
        self._check(frame.fields[ACCESS_KEY], map(_read, topics))

    def _check(self, name: str, needs: Iterable[Need]) -> None:
        rights = self._rights[name]
        if rights is None:
            return
        for what, kind in needs:
            is_hidden = kind == SUB and (what in UNSENDABLE_TOPICS or what.startswith(SYSTEM_PREFIX))
            allowed = rights.get(what, frozenset() if is_hidden else rights.get(ANY, frozenset()))
            if kind not in allowed:
                raise Refusal(
                    ResponseCode.NO_PERMISSION,
                    f"access key {name!r} lacks {kind} for {what!r}: give it in access_keys of serve()",
                )


def _kinds(what: str, text: str) -> frozenset[str]:
    kinds = frozenset(part.strip() for part in text.split("|")) - {"", "DENY"}
    if kinds - KINDS:
        raise ValueError(f"the rights of {what!r} are {text!r}: give 'PUB', 'SUB', 'PUB|SUB' or 'DENY'")
    return kinds
