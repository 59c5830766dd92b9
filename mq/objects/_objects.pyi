from collections.abc import Callable, Sequence
from typing import Any

from typing_extensions import Self

class SentFields:
    @property
    def topic(self) -> str: ...
    @property
    def body(self) -> bytes: ...
    @property
    def flag(self) -> int: ...
    @property
    def plain(self) -> bool: ...
    @property
    def encoded(self) -> bytes: ...
    @classmethod
    def restored(cls, topic: str, body: bytes, flag: int, plain: bool, encoded: bytes, /) -> Any: ...

class StoredFields:
    @property
    def record(self) -> bytes: ...
    @property
    def broker_name(self) -> str: ...
    @property
    def body(self) -> bytes: ...
    @property
    def encoded(self) -> bytes: ...
    @classmethod
    def restored(cls, record: bytes, broker_name: str, /) -> Any: ...

class SendFields:
    _ids: Any
    _place: Any
    @property
    def _out_ms(self) -> int: ...
    @property
    def _receipt(self) -> bytes: ...
    @property
    def status(self) -> Any: ...
    @property
    def queue(self) -> Any: ...
    @property
    def queue_offset(self) -> int: ...
    @property
    def transaction_id(self) -> str | None: ...
    @classmethod
    def restored(
        cls,
        status: Any,
        queue: Any,
        queue_offset: int,
        ids: Any,
        place: Any,
        transaction_id: str | None,
        out_ms: int,
        /,
    ) -> Any: ...

class PullFields:
    @property
    def status(self) -> Any: ...
    @property
    def messages(self) -> Sequence[Any]: ...
    @property
    def next_offset(self) -> int: ...
    @property
    def min_offset(self) -> int: ...
    @property
    def max_offset(self) -> int: ...
    @classmethod
    def restored(
        cls, status: Any, messages: Sequence[Any], next_offset: int, min_offset: int, max_offset: int, /
    ) -> Any: ...

class Line:
    def __new__(cls, log: Any, address: int, /) -> Line: ...
    def let_go(self) -> None: ...
    def appender(
        self,
        queue: Any,
        number: int,
        version: int,
        unusual: Callable[..., Any],
        failed: Callable[[int, int, int], Any],
        flushed: Callable[[int, Any], Any] | None,
        asides: Asides,
        belongs: bytes,
        /,
    ) -> Callable[..., Any]: ...
    def puller(
        self,
        queue: Any,
        broker_name: str,
        unusual: Callable[..., Any],
        place: Callable[[Any], tuple[int, int]],
        /,
    ) -> Callable[..., Any]: ...

class Asides:
    def __new__(cls, size_max: int, /) -> Asides: ...
    def set_level(
        self, level: int, number: int, delay_ms: int, alarm: tuple[Any, int, Callable[[], None]], /
    ) -> None: ...
    def set_timers(
        self,
        number: int,
        precision_ms: int,
        delay_max_ms: int,
        alarm: tuple[Any, int, Callable[[], None]],
        /,
    ) -> None: ...

class Halves:
    def __new__(cls, line: Line, table: Any, address: int, /) -> Halves: ...
    def let_go(self) -> None: ...
    def preparer(
        self,
        queue: Any,
        number: int,
        version: int,
        belongs: bytes,
        unusual: Callable[..., Any],
        failed: Callable[[int, int, int], Any],
        flushed: Callable[[Any], Any] | None,
        /,
    ) -> Callable[..., Any]: ...
    def ender(
        self, group: bytes, unusual: Callable[..., Any], commit: Any, rollback: Any, /
    ) -> Callable[[int, int, Any], None]: ...

class Sender:
    def __new__(
        cls,
        otherwise: Callable[..., Any],
        failed: Callable[[Any, Any, Exception, float], Any],
        before: list[Any],
        after: list[Any],
        size_max: int,
        /,
    ) -> Sender: ...
    @property
    def send(self) -> Callable[..., Any]: ...
    @property
    def turns(self) -> dict[str, Any] | None: ...
    def stop(self) -> None: ...

class Transactor:
    def __new__(
        cls,
        half: Callable[..., Any],
        end: Callable[[int, int, Any], None],
        otherwise: Any,
        made: type[TransactionFields],
        commit: Any,
        rollback: Any,
        /,
    ) -> Transactor: ...
    @property
    def send(self) -> Callable[..., Any]: ...
    @property
    def begin(self) -> Callable[..., Any]: ...
    def begun(self, result: Any, /) -> Any: ...

class TransactionFields:
    @property
    def result(self) -> Any: ...
    @property
    def state(self) -> Any: ...
    def _decide(self, state: Any, /) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, kind: object, error: object, trace: object, /) -> None: ...

def bind(name: str, value: Any, /) -> None: ...
def bind_calls(append: int, pull: int, /) -> None: ...
def bind_transactions(prepare: int, end: int, /) -> None: ...
def pack(messages: list[Any], /) -> tuple[bytes, bytes, bytes, bytes] | None: ...
def survey(messages: list[Any], /) -> int | None: ...
