"""What is made, or called, once a message, in C: a function in Python would cost more than the whole append.

Each type here is the base of a class that has everything else in Python: SentFields of mq.Message,
StoredFields of mq.MessageExt, SendFields of SendResult, PullFields of PullResult. Line and what it makes call
the data plane (mq/store/native), through addresses that the store hands in; Asides has it put aside what is
to be delivered later. Halves is to half messages and their ends what Line is to messages. survey and pack go
over a batch. Sender is what Producer.send does with the usual message, Transactor what TransactionProducer
does; TransactionFields is the base of mq.Transaction. What the classes in Python need is in classes.py.
"""

from mq.objects._objects import (
    Asides,
    Halves,
    Line,
    PullFields,
    Sender,
    SendFields,
    SentFields,
    StoredFields,
    TransactionFields,
    Transactor,
    bind,
    bind_calls,
    bind_transactions,
    pack,
    survey,
)
from mq.objects.classes import Signature, added_state

__all__ = [
    "Asides",
    "Halves",
    "Line",
    "PullFields",
    "SendFields",
    "Sender",
    "SentFields",
    "Signature",
    "StoredFields",
    "TransactionFields",
    "Transactor",
    "added_state",
    "bind",
    "bind_calls",
    "bind_transactions",
    "pack",
    "survey",
]
