"""What is made, or called, once a message, in C: a function in Python would cost more than the whole append.

Each type here is the base of a class that has everything else in Python: SentFields of mq.Message,
StoredFields of mq.MessageExt, SendFields of SendResult, PullFields of PullResult. LogHandle and what it makes
call the data plane (mq/store/native), through addresses that the store hands in; DelayedRecords is how they
store a delayed message. HalfMessages is to half messages and their ends what LogHandle is to messages.
survey, pack and unpack go over a batch. Sender is the base of mq.Producer, whose send does the usual message
in C; TransactionSender, with Transactor, is that of mq.TransactionProducer, and TransactionFields that of
mq.Transaction. Guards are locks that no exception leaves locked. while_unchanged gives messages while a queue
is owned, commit_slot commits then. HandedOver is a method that another thread does, which no interrupt comes
before. keyed_appender makes what stores a message under a dedup key. What the classes in Python need is in
classes.py.
"""

from mq.fastpath._objects import (
    DelayedRecords,
    Guard,
    HalfMessages,
    HandedOver,
    LogHandle,
    PullFields,
    Sender,
    SendFields,
    SentFields,
    StoredFields,
    TransactionFields,
    TransactionSender,
    Transactor,
    bind,
    bind_calls,
    bind_guards,
    bind_hand_over,
    bind_keyed,
    bind_slots,
    bind_transactions,
    bucket_guard,
    byte_guard,
    close_guarded_files,
    commit_slot,
    due_ms,
    file_guard,
    keyed_appender,
    log_guard,
    mutex_guard,
    open_guard,
    pack,
    slot_ms,
    survey,
    thread_guard,
    time_guard,
    time_left,
    unpack,
    while_unchanged,
)
from mq.fastpath.classes import Signature, added_state, in_c

__all__ = [
    "DelayedRecords",
    "Guard",
    "HalfMessages",
    "HandedOver",
    "LogHandle",
    "PullFields",
    "SendFields",
    "Sender",
    "SentFields",
    "Signature",
    "StoredFields",
    "TransactionFields",
    "TransactionSender",
    "Transactor",
    "added_state",
    "bind",
    "bind_calls",
    "bind_guards",
    "bind_hand_over",
    "bind_keyed",
    "bind_slots",
    "bind_transactions",
    "bucket_guard",
    "byte_guard",
    "close_guarded_files",
    "commit_slot",
    "due_ms",
    "file_guard",
    "in_c",
    "keyed_appender",
    "log_guard",
    "mutex_guard",
    "open_guard",
    "pack",
    "slot_ms",
    "survey",
    "thread_guard",
    "time_guard",
    "time_left",
    "unpack",
    "while_unchanged",
]
