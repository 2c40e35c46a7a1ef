"""Errors, and what the library says about locks."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Dict, List, Literal, NoReturn, Optional, Tuple


class Error(Exception):
    """An operation that failed. That a lock is not available is not an error: see `Contended`.

    >>> import palisade
    >>> client = palisade.connect("memory:")
    >>> try:
    ...     client.lock("").acquire()
    ... except palisade.Error as error:
    ...     print(type(error).__name__, error.engine, error.operation, error.is_retryable)
    Misuse memory acquire False
    """

    def __init__(
        self,
        message: str,
        *,
        engine: str = "",
        operation: str = "",
        lock: Optional[str] = None,
        is_retryable: bool = False,
        may_have_taken_effect: bool = False,
        loss: Optional[Loss] = None,
    ) -> None:
        super().__init__(message)
        self.engine = engine
        """The engine's name; empty if the URL names no engine."""
        self.operation = operation
        """The operation that failed."""
        self.lock = lock
        """The lock that the operation was for."""
        self.is_retryable = is_retryable
        """Whether the same call may succeed later without a change by the operator."""
        self.may_have_taken_effect = may_have_taken_effect
        """Whether the call may have taken effect although it failed."""
        self.loss = loss
        """Why the lock was lost, if it was."""


class Misuse(Error):
    """The call is invalid: correct the calling code. Nothing has changed."""


class Forked(Misuse):
    """A client, a guard or a watch of the parent process was used in a forked child. The parent still has its locks."""


class Unavailable(Error):
    """The engine could not be reached, or failed. `may_have_taken_effect` tells whether the operation may have been done."""


class Denied(Error):
    """The engine refuses this client's credentials or rights. Nothing has changed."""


class Lost(Error):
    """The lock, or the session that requested it, was lost; `loss` has the reason."""


class Unsupported(Error):
    """The engine does not offer this feature. Nothing has changed."""


@dataclass(frozen=True)
class Contended:
    """The answer of `try_acquire`, and of `acquire` with a timeout, if others hold the lock. It is false.

    >>> import palisade
    >>> client = palisade.connect("memory:")
    >>> guard = client.lock("orders/42").acquire()
    >>> client.lock("orders/42").try_acquire()
    Contended(locks=('orders/42',))
    >>> if not client.lock("orders/42").try_acquire():
    ...     print("another client is at it")
    another client is at it
    """

    locks: Tuple[str, ...]
    """The locks that were requested."""

    def __bool__(self) -> Literal[False]:
        return False

    def __enter__(self) -> NoReturn:
        raise Misuse(f"{', '.join(self.locks)} was not acquired: test the result before you use it as a guard")

    def __exit__(self, *_: object) -> None:
        raise NotImplementedError

    async def __aenter__(self) -> NoReturn:
        self.__enter__()

    async def __aexit__(self, *_: object) -> None:
        raise NotImplementedError


LossKind = Literal[
    "expired", "forced", "session-closed", "released", "detached", "data-lost", "paused", "unreachable", "other"
]


@dataclass(frozen=True)
class Loss:
    """Why a lock is no longer held. `str(loss)` is a sentence for people."""

    kind: LossKind
    """`expired`: the session is over. `forced`: an operator released it. `session-closed`, `released`, `detached`: this client did it.
    `data-lost`: the store has lost its data. `paused`: this process did not run. `unreachable`: the engine could not be reached."""
    message: str
    """The same in words."""
    by: Optional[str] = None
    """The label of the client that forced the release. Not escaped."""
    reason: Optional[str] = None
    """The reason that it gave. Not escaped."""

    def __str__(self) -> str:
        return self.message


@dataclass(frozen=True)
class Standing:
    """The state of a lock that was granted."""

    state: Literal["held", "jeopardy", "lost"]
    """`jeopardy`: it is held, but two thirds of its lease have passed since the last confirmed keep-alive."""
    loss: Optional[Loss] = None
    """Why it is lost, if it is."""


@dataclass(frozen=True)
class Forced:
    """The answer to a force-release."""

    grants: int
    """How many grants ended."""
    moved_to: int
    """A token above those of the ended grants and below that of any later one."""


@dataclass(frozen=True)
class Leader:
    """The leader of an election."""

    value: bytes
    """The value that it publishes."""
    token: int
    """Its token."""
    label: str
    """The label of its session. Not escaped."""


@dataclass(frozen=True)
class Mode:
    """How a lock is held or requested."""

    kind: Literal["exclusive", "shared", "permits"]
    """`permits`: some permits of a semaphore."""
    count: Optional[int] = None
    """How many permits."""
    of: Optional[int] = None
    """How many permits the semaphore has in all."""

    @classmethod
    def _from(cls, mode: Any) -> Mode:
        if isinstance(mode, dict):
            return cls("permits", **mode["Permits"])
        return cls("shared" if mode == "Shared" else "exclusive")


@dataclass(frozen=True)
class Holder:
    """A grant."""

    token: int
    """Its token."""
    mode: Mode
    """How the lock is held."""
    session: Optional[int]
    """The holder; None if its session has expired and its lock-delay lasts."""
    label: Optional[str]
    """The label of the holder's session. Not escaped."""
    held_for_ms: Optional[int]
    """How long it has been held; None if the engine does not know it."""
    time_left_ms: Optional[int]
    """How long the session lives without another keep-alive; None if the engine does not know it."""


@dataclass(frozen=True)
class Waiter:
    """A request in the queue."""

    session: int
    """The session that waits."""
    label: str
    """The label of the waiter's session. Not escaped."""
    mode: Mode
    """How the lock is requested."""


@dataclass(frozen=True)
class Ended:
    """A grant that has ended."""

    token: int
    """Its token."""
    session: int
    """The session that held it."""
    label: str
    """The label of that session. Not escaped."""
    how: str
    """How it ended, in words: `released`, `closed`, `expired`, or `forced by …: …`. Not escaped."""


@dataclass(frozen=True)
class LockInfo:
    """A lock that has holders or waiters, or was released by force recently."""

    name: str
    """Its name."""
    limit: Optional[int]
    """How many permits it has, for a semaphore."""
    holders: List[Holder]
    """Its holders, oldest first."""
    waiters: List[Waiter]
    """Its waiters, in the order of the queue."""
    value: Optional[bytes]
    """The value that its holder publishes."""
    history: List[Ended]
    """The last grants that ended while the lock was in use, oldest first."""

    @classmethod
    def _from_json(cls, text: str) -> LockInfo:
        fields = json.loads(text)
        return cls(
            name=fields["name"],
            limit=fields["limit"],
            holders=[Holder(**_with_mode(holder)) for holder in fields["holders"]],
            waiters=[Waiter(**_with_mode(waiter)) for waiter in fields["waiters"]],
            value=None if fields["value"] is None else bytes(fields["value"]),
            history=[Ended(**ended) for ended in fields["history"]],
        )


def _with_mode(fields: Dict[str, Any]) -> Dict[str, Any]:
    return {**fields, "mode": Mode._from(fields["mode"])}


EventKind = Literal[
    "queued", "left-queue", "granted", "ended", "withheld", "delay-ended", "published", "resized", "missed"
]


@dataclass(frozen=True)
class Event:
    """An event of a lock. `missed`: some events are missing here, because the watcher was too slow or the connection broke; inspect
    the locks again."""

    kind: EventKind
    """What happened."""
    locks: List[str]
    """The locks."""
    session: Optional[int] = None
    """The session that waits, waited, holds or held them."""
    token: Optional[int] = None
    """The token of the grant."""
    how: Optional[str] = None
    """How a grant or a wait ended, in words. Not escaped."""
    value: Optional[bytes] = None
    """The value that was published."""
    permits: Optional[int] = None
    """The permits of the semaphore from now on."""

    @classmethod
    def _from_json(cls, text: str) -> Event:
        fields = json.loads(text)
        if "value" in fields:
            fields["value"] = bytes(fields["value"])
        return cls(**fields)


@dataclass(frozen=True)
class Offers:
    """The kinds of lock and the operations that an engine has in addition to exclusive locks."""

    shared: bool
    permits: bool
    resize: bool
    several: bool
    values: bool
    delay: bool
    force_release: bool
    list: bool
    watch: bool
    detach: bool
    signed: bool


@dataclass(frozen=True)
class Guarantees:
    """The promises of an engine."""

    engine: str
    """The engine's name in messages."""
    level: Literal["advisory", "healthy-only", "fenced"]
    """How far its tokens can be trusted."""
    order: Literal["fair", "race"]
    """The order in which waiters are granted a lock."""
    session_clock: Literal["same-host", "engine", "store"]
    """The clock by which sessions end."""
    wake_up: Literal["pushed", "polled"]
    """How a waiter learns of its grant."""
    offers: Offers
    """The kinds of lock and the operations that it has."""

    @classmethod
    def _from_json(cls, text: str) -> Guarantees:
        fields = json.loads(text)
        return cls(**{**fields, "offers": Offers(**fields["offers"])})
