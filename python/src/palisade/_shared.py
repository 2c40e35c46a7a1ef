"""What `palisade` and `palisade.aio` have in common: everything that does not wait."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Iterable, Literal, Optional, Tuple, TypeVar, Union

from palisade import _native
from palisade._types import Misuse, Standing

if TYPE_CHECKING:
    from palisade._native import Operation

Self = TypeVar("Self", bound="BaseRequest")

Value = Union[str, bytes]


def as_bytes(value: Value) -> bytes:
    return value.encode() if isinstance(value, str) else value


def url_or_default(url: Optional[str]) -> str:
    return os.environ.get("PALISADE_URL", "embedded:") if url is None else url


@dataclass(frozen=True)
class Wanted:
    """A request that is not sent yet."""

    kind: Literal["lock", "read", "write", "permits", "leadership"]
    names: Tuple[str, ...]
    count: int = 0
    of: int = 0
    value: Optional[bytes] = None
    delay: Optional[float] = None
    efficiency: bool = False
    accept_failover: bool = False

    @classmethod
    def locks(cls, names: Iterable[str]) -> Wanted:
        if isinstance(names, str):
            raise Misuse(
                f"lock_all takes several names; for one write lock({names!r})", operation="acquire", lock=names
            )
        return cls("lock", tuple(names))


class BaseRequest:
    """The part of a request that does not wait."""

    def __init__(self, native: _native.Client, wanted: Wanted) -> None:
        self._native = native
        self._wanted = wanted
        self._is_entered = False

    def delay(self: Self, seconds: float) -> Self:
        """Sets the lock-delay: when the holder's session expires (not when it releases), the engine grants the lock to no other
        client for this time. Use it for resources that cannot check a token.

        >>> import palisade
        >>> client = palisade.connect("memory:")
        >>> with client.lock("printer").delay(60) as guard:
        ...     guard
        <LockGuard of printer: held>
        """
        return type(self)(self._native, replace(self._wanted, delay=seconds))

    def dangerous_accept_failover(self: Self) -> Self:
        """Accepts an engine whose tokens rise only while its store keeps its data, such as Redis. After a failover, two clients may
        hold the lock, and the newer holder may have the lower token, so a fence cannot help.

        >>> import palisade
        >>> client = palisade.connect("memory:")
        >>> with client.lock("report").dangerous_accept_failover() as guard:
        ...     guard.token
        1
        """
        return type(self)(self._native, replace(self._wanted, accept_failover=True))

    def _operation(self, wait: bool, timeout: Optional[float] = None) -> Operation[Optional[_native.Guard]]:
        wanted = self._wanted
        return self._native.acquire(
            wanted.kind,
            wanted.names,
            (wanted.count, wanted.of),
            wanted.value,
            wanted.delay,
            wanted.efficiency,
            wanted.accept_failover,
            wait,
            timeout,
        )

    def _enter(self) -> None:
        if self._is_entered:
            raise Misuse(
                "this request is in a with statement already; make another request for the same lock, or call acquire()",
                operation="acquire",
                lock=", ".join(self._wanted.names),
            )
        self._is_entered = True

    def __repr__(self) -> str:
        return f"<{type(self).__name__} for {', '.join(self._wanted.names)}>"


class BaseGuard:
    """The part of all guards that does not wait. Dropping a guard releases its lock in the background."""

    def __init__(self, native: _native.Guard, locks: Tuple[str, ...]) -> None:
        self._native = native
        self._locks = locks

    @property
    def standing(self) -> Standing:
        """Whether the lock is held, in jeopardy or lost.

        >>> import palisade
        >>> client = palisade.connect("memory:")
        >>> guard = client.lock("orders/42").acquire()
        >>> guard.standing.state
        'held'
        """
        return self._native.standing()

    @property
    def locks(self) -> Tuple[str, ...]:
        """The locks that this guard holds.

        >>> import palisade
        >>> client = palisade.connect("memory:")
        >>> client.lock_all(["accounts/1", "accounts/2"]).acquire().locks
        ('accounts/1', 'accounts/2')
        """
        return self._locks

    @property
    def session(self) -> int:
        """The session that holds the lock.

        >>> import palisade
        >>> client = palisade.connect("memory:")
        >>> guard = client.lock("orders/42").acquire()
        >>> guard.session == client.inspect("orders/42").holders[0].session
        True
        """
        return self._native.session()

    @property
    def safe_until(self) -> float:
        """The end of the lease, in seconds of `time.clock_gettime(time.CLOCK_BOOTTIME)`. The lock is certainly held until then, unless it
        is released, also by force. A renewal moves it.

        >>> import palisade, time
        >>> client = palisade.connect("memory:", ttl=30)
        >>> guard = client.lock("orders/42").acquire()
        >>> 20 < guard.safe_until - time.clock_gettime(time.CLOCK_BOOTTIME) < 30
        True
        """
        return self._native.safe_until()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {', '.join(self._locks)}: {self.standing.state}>"


class WithToken(BaseGuard):
    """The part of a guard with a token that does not wait."""

    @property
    def token(self) -> int:
        """The fencing token. Present it with every access to the resource. Raises `Lost` once the lock is lost or its lease is over.

        >>> import palisade
        >>> client = palisade.connect("memory:")
        >>> guard = client.lock("orders/42").acquire()
        >>> guard.token
        1
        >>> client.close()
        >>> guard.token  # doctest: +IGNORE_EXCEPTION_DETAIL
        Traceback (most recent call last):
        palisade.Lost: its session was closed
        """
        return self._native.token()

    def ensure(self, seconds: float) -> None:
        """Checks that the lock stays held for at least this time, even if no further keep-alive succeeds. Raises `Lost`;
        `Unavailable` if less time is left: wait for a renewal; or `Misuse` if a keep-alive can never promise as much.

        >>> import palisade
        >>> client = palisade.connect("memory:", ttl=30)
        >>> guard = client.lock("orders/42").acquire()
        >>> guard.ensure(2)
        """
        self._native.ensure(seconds)


class Exclusive(WithToken):
    """A guard that excludes all other holders. Only such a guard can seal a resource."""
