"""Everything that mq raises by name.

    MQError
    +-- StoreCorrupted        bytes on disk contradict their layout
    +-- StoreFull             no space left; nothing was written
    +-- StoreLocked           another program (a RocketMQ broker) has the directory
    +-- InsufficientResources too few descriptors or threads, too little memory
    +-- VersionMismatch       another version of mq has the directory, or has written a file of it
    +-- StorePoisoned         a flush failed: sends are refused, reads go on
    +-- ConfigMismatch        the directory was made with other sizes (also a ValueError)
    +-- BrokerClosed          the broker or producer was used after close()
    +-- ForkedBroker          a broker was used in a forked child: the child opens its own
    +-- TopicNotFound         no such topic, and it may not be made by sending to it
    +-- TopicInvalid          not a name for a topic (also a ValueError)
    +-- GroupInvalid          not a name for a group (also a ValueError)
    |   +-- SubscriptionConflict   live members of the group subscribe otherwise
    +-- MessageNotFound       no message has this id
    +-- MessageInvalid        breaks a limit of RocketMQ's format (also a ValueError)
    |   +-- MessageTooLarge   the body is larger than the broker accepts
    +-- NotPermitted          the topic or the broker does not allow this
    |   +-- NotSupported      this kind of broker cannot do it
    +-- AddressInUse          another program listens on this port (also an OSError)
    +-- ReplicaBehind         the master has deleted what the replica needs next
    +-- ReplicaDiverged       the replica and the master have nothing in common
    +-- FilterSyntaxError     an expression that cannot be parsed (also a ValueError)
    +-- SendFailed            every attempt failed; .attempts has each one's error
    +-- RemotingError         the other end of a connection answered with an error, or not at all
    |   +-- ProtocolMismatch  it does not speak RocketMQ's Remoting, or a version without the request
    +-- RequestTimeout        no answer in time (also a TimeoutError)

Facts are attributes; the text names the value, the limit and the way out. All of them can be pickled.
An argument of a wrong Python type is a TypeError. No message yet is a result, not an error.
"""

from __future__ import annotations

from typing import Any


class MQError(Exception):
    """What all errors of mq have in common.

    unique_id is set by a broker where the message of a failed append may nevertheless have been
    stored; the retry sends the same id again, so that consumers recognise the duplicate.
    """

    unique_id: str | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        # Constructors differ from class to class; the text and the facts are all there is to keep.
        return _restore, (type(self), self.args), self.__dict__


def _restore(kind: type[MQError], args: tuple[Any, ...]) -> MQError:
    error = kind.__new__(kind, *args)
    error.args = args  # OSError, of which RequestTimeout is one, sets them in __init__ alone.
    return error


class StoreCorrupted(MQError):
    """path, log_offset, queue and queue_offset say where, as far as that is known."""

    def __init__(
        self,
        message: str,
        *,
        path: str | None = None,
        log_offset: int | None = None,
        queue: Any = None,
        queue_offset: int | None = None,
    ) -> None:
        super().__init__(message)
        self.path = path
        self.log_offset = log_offset
        self.queue = queue
        self.queue_offset = queue_offset


class StoreFull(MQError):
    """path is the file that could not grow. Once there is space again, the next send works."""

    def __init__(self, message: str, *, path: str) -> None:
        super().__init__(message)
        self.path = path


class StoreLocked(MQError):
    """path is the directory, pid the process that has it, where that is known."""

    def __init__(self, message: str, *, path: str, pid: int | None = None) -> None:
        super().__init__(message)
        self.path = path
        self.pid = pid


class InsufficientResources(MQError):
    """resource is "descriptors", "memory", "threads", or "groups" of a connection to a server. Once there are
    more, the same call works."""

    def __init__(self, message: str, *, resource: str) -> None:
        super().__init__(message)
        self.resource = resource


class VersionMismatch(MQError):
    """path is the file, found the number of its layout there, needed that of this version."""

    def __init__(self, message: str, *, path: str, found: int, needed: int) -> None:
        super().__init__(message)
        self.path = path
        self.found = found
        self.needed = needed


class StorePoisoned(MQError):
    """Open the store again once the disk is sound: what was flushed is there."""


class ConfigMismatch(MQError, ValueError):
    """option is what differs, stored what the directory has, asked what was asked for."""

    def __init__(self, message: str, *, option: str, stored: Any, asked: Any) -> None:
        super().__init__(message)
        self.option = option
        self.stored = stored
        self.asked = asked


class BrokerClosed(MQError):
    """The broker was closed: open another."""


class ForkedBroker(MQError):
    """What the parent opened belongs to the parent."""


class TopicNotFound(MQError):
    """topic is its name."""

    def __init__(self, topic: str) -> None:
        super().__init__(f"topic {topic!r} does not exist: make it with broker.create_topic({topic!r})")
        self.topic = topic


class TopicInvalid(MQError, ValueError):
    """mq.names says what is allowed."""


class GroupInvalid(MQError, ValueError):
    """mq.names says what is allowed."""


class SubscriptionConflict(GroupInvalid):
    """group is its name, ours and theirs are the subscriptions that differ, pid is the other member's.

    All members of a group subscribe to the same, or queues would go to members that want nothing of them.
    """

    def __init__(self, message: str, *, group: str, ours: Any, theirs: Any, pid: int | None = None) -> None:
        super().__init__(message)
        self.group = group
        self.ours = ours
        self.theirs = theirs
        self.pid = pid


class MessageNotFound(MQError):
    """It was never there, or is too old to be kept."""

    def __init__(self, msg_id: str, message: str | None = None) -> None:
        super().__init__(
            message or f"no message has the id {msg_id!r}: it was never sent here, or retention took it"
        )
        self.msg_id = msg_id


class MessageInvalid(MQError, ValueError):
    """Nothing was written."""


class MessageTooLarge(MessageInvalid):
    """size and limit, in bytes of what the text says: the body, the properties, both, or a batch."""

    def __init__(self, size: int, limit: int, message: str | None = None) -> None:
        super().__init__(
            message
            or f"a body of {size:,} bytes is over the limit of {limit:,}:"
            " send a reference to it, or open the broker with a larger message_size_max"
        )
        self.size = size
        self.limit = limit


class NotPermitted(MQError):
    """The text says which permission, and where it is given."""


class NotSupported(NotPermitted):
    """The text says what was asked for, and which broker can do it."""


class AddressInUse(MQError, OSError):
    """address is its host:port."""

    def __init__(self, message: str, *, address: str) -> None:
        super().__init__(message)
        self.address = address


class ReplicaBehind(MQError):
    """replica_end is the log offset where the replica ends, master_begin the one where its master begins."""

    def __init__(self, message: str, *, replica_end: int, master_begin: int) -> None:
        super().__init__(message)
        self.replica_end = replica_end
        self.master_begin = master_begin


class ReplicaDiverged(MQError):
    """path is the directory. Its log is none that the master ever had."""

    def __init__(self, message: str, *, path: str) -> None:
        super().__init__(message)
        self.path = path


class FilterSyntaxError(MQError, ValueError):
    """position: index of the character at which the expression stops making sense."""

    def __init__(self, message: str, *, position: int) -> None:
        super().__init__(message)
        self.position = position


class SendFailed(MQError):
    """attempts: (broker name, error) for each attempt, in order."""

    def __init__(self, message: str, *, attempts: tuple[tuple[str, Exception], ...] = ()) -> None:
        super().__init__(message)
        self.attempts = attempts


class RemotingError(MQError):
    """code and remark as the other end gave them; None and "" where it did not answer, or not so.

    address is its host:port, where there is one.
    """

    def __init__(
        self, message: str, *, code: int | None = None, remark: str = "", address: str | None = None
    ) -> None:
        super().__init__(message)
        self.code = code
        self.remark = remark
        self.address = address


class ProtocolMismatch(RemotingError):
    """The other end does not speak RocketMQ's Remoting protocol, or its version lacks the request."""


class RequestTimeout(MQError, TimeoutError):
    """The request may have been carried out all the same. address is the host:port that gave no answer, where
    there is one."""

    address: str | None = None

    def __init__(self, *args: object, address: str | None = None) -> None:
        super().__init__(*args)
        if address is not None:
            self.address = address
