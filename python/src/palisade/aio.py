"""The same for asyncio: every call that waits is a coroutine. Cancelling it leaves nothing queued and nothing held.

>>> import asyncio, palisade.aio
>>> async def main():
...     async with await palisade.aio.connect("memory:") as client:
...         async with client.lock("orders/42") as guard:
...             print("writing with token", guard.token)
>>> asyncio.run(main())
writing with token 1

Code that blocks its event loop keeps its locks: a thread that needs neither the loop nor the GIL renews the session.
"""

from __future__ import annotations

import asyncio
import itertools
import weakref
from dataclasses import replace
from types import TracebackType
from typing import (
    TYPE_CHECKING,
    AsyncIterator,
    Awaitable,
    Callable,
    Dict,
    Generic,
    Iterable,
    List,
    Optional,
    Set,
    Type,
    TypeVar,
    Union,
    overload,
)

from palisade import _native
from palisade._shared import BaseGuard, BaseRequest, Exclusive, Value, Wanted, WithToken, as_bytes, url_or_default
from palisade._types import Contended, Error, Event, Forced, Guarantees, Leader, LockInfo, Loss, Lost, Standing

if TYPE_CHECKING:
    from palisade._native import Operation

__all__ = [
    "AnyGuard",
    "Client",
    "DetachedSession",
    "EfficiencyGuard",
    "Election",
    "Guard",
    "Leadership",
    "LockGuard",
    "Observer",
    "Permit",
    "ReadGuard",
    "Request",
    "RwLock",
    "Semaphore",
    "Watch",
    "WriteGuard",
    "connect",
]

G = TypeVar("G", bound="AnyGuard")
Self = TypeVar("Self", bound="AnyGuard")
T = TypeVar("T")


class _Waiters:
    """The coroutines of one event loop that wait for an operation."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.wakeups = _native.Wakeups()
        self.numbers = itertools.count()
        self.waiting: Dict[int, asyncio.Future[None]] = {}
        loop.add_reader(self.wakeups.fileno(), self.wake)

    def wake(self) -> None:
        for number in self.wakeups.take():
            waiter = self.waiting.get(number)
            if waiter is not None and not waiter.done():
                waiter.set_result(None)


_waiters: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Waiters] = weakref.WeakKeyDictionary()


async def _answer(operation: Operation[T]) -> T:
    """Polls the operation on the event loop whenever it may go on."""
    loop = asyncio.get_running_loop()
    waiters = _waiters.get(loop)
    if waiters is None:
        waiters = _waiters[loop] = _Waiters(loop)
    number = next(waiters.numbers)
    try:
        while True:
            answer = operation.poll(waiters.wakeups, number)
            if answer is not None:
                return answer[0]
            waiters.waiting[number] = loop.create_future()
            await waiters.waiting[number]
    finally:
        waiters.waiting.pop(number, None)
        operation.cancel()


async def connect(
    url: Optional[str] = None,
    *,
    ttl: Optional[float] = None,
    label: Optional[str] = None,
    drift_per_mille: Optional[int] = None,
    observer: bool = False,
) -> Client:
    """Connects to the engine that a URL names. See `palisade.connect`."""
    return Client(await _answer(_native.connect(url_or_default(url), ttl, label, drift_per_mille, observer)))


class Client:
    """A client. See `palisade.Client`."""

    def __init__(self, native: _native.Client) -> None:
        self._native = native

    @property
    def guarantees(self) -> Guarantees:
        """The promises of the engine."""
        return self._native.guarantees()

    def lock(self, name: str) -> Request[LockGuard]:
        """Returns a request for a lock that one holder has at a time."""
        return Request(self._native, Wanted("lock", (name,)))

    def lock_all(self, names: Iterable[str]) -> Request[LockGuard]:
        """Returns a request for several locks at once, all or nothing, under one token."""
        return Request(self._native, Wanted.locks(names))

    def rw_lock(self, name: str) -> RwLock:
        """Returns a lock that many share for reading, or one has for writing."""
        return RwLock(self._native, name)

    def semaphore(self, name: str, permits: int) -> Semaphore:
        """Returns a semaphore that has this number of permits in all. It is a request for one of them."""
        return Semaphore(self._native, Wanted("permits", (name,), count=1, of=permits))

    def election(self, name: str) -> Election:
        """Returns an election: one client leads, and all clients can see which one."""
        return Election(self._native, name)

    async def inspect(self, name: str) -> Optional[LockInfo]:
        """Returns the current state of a lock; None if it is not in use."""
        return await _answer(self._native.inspect(name))

    async def list(self, prefix: str = "") -> List[LockInfo]:
        """Returns all locks in use whose names have this prefix."""
        return await _answer(self._native.list(prefix))

    async def watch(self, prefix: str = "") -> Watch:
        """Watches all locks whose names have this prefix, from now on."""
        return Watch(await _answer(self._native.watch(prefix)))

    async def force_release(self, name: str, reason: str, *, token: Optional[int] = None) -> Forced:
        """Releases a lock by force; with a token, only if it is still held with that one."""
        return Forced(*await _answer(self._native.force_release(name, reason, token)))

    async def resize(self, name: str, permits: int) -> None:
        """Changes the permits of a semaphore that is in use."""
        await _answer(self._native.resize(name, permits))

    async def raise_tokens(self, above: int) -> bool:
        """Raises the engine's tokens above this one. Returns whether this call has raised them."""
        return await _answer(self._native.raise_tokens(above))

    async def detach(self) -> int:
        """Ends this client, and leaves its session open until the TTL expires. Returns the session, for `detached_session`."""
        return await _answer(self._native.detach())

    def detached_session(self, session: int) -> DetachedSession:
        """Returns a handle for a session whose client has detached."""
        return DetachedSession(self._native, session)

    async def close(self) -> None:
        """Closes the session, which releases everything that it holds."""
        await _answer(self._native.close())

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        await _end(self.close, error)


async def _end(end: Callable[[], Awaitable[None]], error: Optional[BaseException]) -> None:
    """Ends what an async with statement began. An error of its body is more important than an error of the end."""
    try:
        await end()
    except Error:
        if error is None:
            raise


class Request(BaseRequest, Generic[G]):
    """A request that is not sent yet. `async with` acquires the lock and releases it.

    >>> import asyncio, palisade.aio
    >>> async def main():
    ...     client = await palisade.aio.connect("memory:")
    ...     async with client.lock("orders/42"):
    ...         return await client.lock("orders/42").acquire(timeout=0.01)
    >>> asyncio.run(main())
    Contended(locks=('orders/42',))
    """

    _guard: Optional[G] = None

    def efficiency(self) -> Request[EfficiencyGuard]:
        """Declares that two holders at once would only waste work. See `palisade.Request.efficiency`."""
        return Request(self._native, replace(self._wanted, efficiency=True))

    @overload
    async def acquire(self) -> G: ...
    @overload
    async def acquire(self, timeout: None) -> G: ...
    @overload
    async def acquire(self, timeout: float) -> Union[G, Contended]: ...

    async def acquire(self, timeout: Optional[float] = None) -> Union[G, Contended]:
        """Waits in the lock's queue until it is granted. With a timeout in seconds it waits no longer, and then returns `Contended`,
        which is false.

        >>> import asyncio, palisade.aio
        >>> async def main():
        ...     client = await palisade.aio.connect("memory:")
        ...     guard = await client.lock("orders/42").acquire()
        ...     print(await client.lock("orders/42").acquire(timeout=0.01))
        >>> asyncio.run(main())
        Contended(locks=('orders/42',))
        """
        return self._made(await _answer(self._operation(wait=True, timeout=timeout)))

    async def try_acquire(self) -> Union[G, Contended]:
        """Acquires the lock if it is available now. Otherwise returns `Contended`, which is false."""
        return self._made(await _answer(self._operation(wait=False)))

    async def run(self, work: Callable[[G], Awaitable[T]]) -> T:
        """Acquires the lock, runs `work`, and releases the lock. Cancels `work` if the lock is lost, and raises `Lost`.

        >>> import asyncio, palisade.aio
        >>> async def main():
        ...     client = await palisade.aio.connect("memory:")
        ...     async def work(guard):
        ...         return f"written with token {guard.token}"
        ...     print(await client.lock("orders/42").run(work))
        >>> asyncio.run(main())
        written with token 1
        """
        async with self as guard:
            working = asyncio.ensure_future(work(guard))
            losing = asyncio.ensure_future(guard.lost())
            try:
                await asyncio.wait({working, losing}, return_when=asyncio.FIRST_COMPLETED)
                if working.done():
                    return await working
            finally:
                for task in (working, losing):
                    task.cancel()
                await asyncio.wait({working, losing})
            loss = losing.result()
            lock = ", ".join(guard.locks)
            raise Lost(
                f"cannot finish the work under '{lock}': {loss}",
                operation="finish the work under",
                lock=lock,
                loss=loss,
            )

    def _made(self, native: Optional[_native.Guard]) -> Union[G, Contended]:
        if native is None:
            return Contended(self._wanted.names)
        guard: G = _guard_class(self._wanted)(native, self._wanted.names)  # type: ignore[assignment]
        return guard

    async def __aenter__(self) -> G:
        self._enter()
        try:
            guard = await self.acquire()
        except BaseException:
            self._is_entered = False
            raise
        self._guard = guard
        return guard

    async def __aexit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        guard, self._guard, self._is_entered = self._guard, None, False
        if guard is not None:
            await _end(guard.release, error)


class RwLock:
    """A lock that many share for reading, or one has for writing."""

    def __init__(self, native: _native.Client, name: str) -> None:
        self._native = native
        self._name = name

    def read(self) -> Request[ReadGuard]:
        """Returns a request for reading, together with other readers. A reader queues behind a writer that waits already."""
        return Request(self._native, Wanted("read", (self._name,)))

    def write(self) -> Request[WriteGuard]:
        """Returns a request for writing, which excludes all other holders."""
        return Request(self._native, Wanted("write", (self._name,)))


class Semaphore(Request["Permit"]):
    """A semaphore: a request for one of its permits."""

    def many(self, count: int) -> Request[Permit]:
        """Returns a request for `count` permits at once. Later requests for fewer permits do not overtake it."""
        return Request(self._native, replace(self._wanted, count=count))


class Election:
    """An election: one client leads, and all clients can see which one.

    >>> import asyncio, palisade.aio
    >>> async def main():
    ...     client = await palisade.aio.connect("memory:")
    ...     async with await client.election("scheduler").campaign("10.0.0.1:80"):
    ...         return await client.election("scheduler").leader()
    >>> asyncio.run(main()).value
    b'10.0.0.1:80'
    """

    def __init__(self, native: _native.Client, name: str) -> None:
        self._native = native
        self._name = name

    def candidacy(self, value: Value) -> Request[Leadership]:
        """Returns the request that `campaign` sends."""
        return Request(self._native, Wanted("leadership", (self._name,), value=as_bytes(value)))

    @overload
    async def campaign(self, value: Value) -> Leadership: ...
    @overload
    async def campaign(self, value: Value, timeout: None) -> Leadership: ...
    @overload
    async def campaign(self, value: Value, timeout: float) -> Union[Leadership, Contended]: ...

    async def campaign(self, value: Value, timeout: Optional[float] = None) -> Union[Leadership, Contended]:
        """Waits to be elected, and publishes a value. With a timeout in seconds it waits no longer, and then returns `Contended`."""
        return await self.candidacy(value).acquire(timeout)

    async def leader(self) -> Optional[Leader]:
        """Returns the current leader, or None while no candidate leads."""
        return await _answer(self._native.leader(self._name))

    async def observe(self) -> Observer:
        """Returns the leaders from now on."""
        return Observer(await _answer(self._native.observe(self._name)))


class Observer:
    """The leaders of an election: begins with the current one. None is between two leaders. It has no end."""

    def __init__(self, native: _native.Observer) -> None:
        self._native = native

    def __aiter__(self) -> AsyncIterator[Optional[Leader]]:
        return self

    async def __anext__(self) -> Optional[Leader]:
        return await _answer(self._native.next())


class Watch:
    """The events of locks. They end when the client is closed.

    >>> import asyncio, palisade.aio
    >>> async def main():
    ...     client = await palisade.aio.connect("memory:")
    ...     watch = await client.watch("orders/")
    ...     async with client.lock("orders/42"):
    ...         async for event in watch:
    ...             return event.kind
    >>> asyncio.run(main())
    'granted'
    """

    def __init__(self, native: _native.Watch) -> None:
        self._native = native

    def __aiter__(self) -> AsyncIterator[Event]:
        return self

    async def __anext__(self) -> Event:
        event = await _answer(self._native.next())
        if event is None:
            raise StopAsyncIteration
        return event


class DetachedSession:
    """A session whose client has detached from it. See `palisade.DetachedSession`."""

    def __init__(self, native: _native.Client, session: int) -> None:
        self._native = native
        self._session = session

    async def keep_alive(self) -> None:
        """Renews the session: its TTL starts again. Raises `Lost` if it has ended."""
        await _answer(self._native.detached_keep_alive(self._session))

    async def release(self, name: str, token: int) -> None:
        """Releases the session's grant with this token. Raises `Lost` if it does not hold the lock with this token."""
        await _answer(self._native.detached_release(self._session, name, token))

    async def close(self) -> None:
        """Closes the session, which releases everything that it holds."""
        await _answer(self._native.detached_close(self._session))


_callbacks: Set[asyncio.Future[None]] = set()


class AnyGuard(BaseGuard):
    """The part that all guards have. `async with guard:` releases the lock at the end.

    >>> import asyncio, palisade.aio
    >>> async def main():
    ...     client = await palisade.aio.connect("memory:")
    ...     guard = await client.lock("orders/42").acquire()
    ...     await client.close()
    ...     return await guard.lost()
    >>> print(asyncio.run(main()))
    its session was closed
    """

    async def lost(self) -> Loss:
        """Waits until the lock is lost, and returns the reason."""
        return await _answer(self._native.lost())

    def on_lost(self, callback: Callable[[Loss], object]) -> None:
        """Calls `callback` with the reason, on this event loop, if the lock is lost. A release is no loss."""
        # The task does not refer to this guard, so that dropping the guard still releases the lock.
        operation = self._native.lost()

        async def tell() -> None:
            loss = await _answer(operation)
            if loss.kind != "released":
                callback(loss)

        task = asyncio.ensure_future(tell())
        _callbacks.add(task)
        task.add_done_callback(_callbacks.discard)

    async def jeopardy(self) -> Standing:
        """Waits until the lock is in jeopardy or lost."""
        return await _answer(self._native.jeopardy())

    async def renewed(self) -> float:
        """Waits until the session was renewed, and returns the new `safe_until`."""
        return await _answer(self._native.renewed())

    async def release(self) -> None:
        """Releases the lock. Releasing it again is not an error. Raises `Lost` if it had been lost before: the work since then may have
        overlapped with another holder's. If it is cancelled, the lock is released nevertheless.
        """
        await _answer(self._native.release())

    async def __aenter__(self: Self) -> Self:
        return self

    async def __aexit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        await _end(self.release, error)


class Guard(WithToken, AnyGuard):
    """A held lock, several locks at once, or permits, with a token."""

    async def signed_token(self, lock: Optional[str] = None) -> str:
        """Returns the token, signed, for a resource that verifies signatures. If several locks are held, say which one."""
        return await _answer(self._native.signed_token(lock))


class LockGuard(Guard, Exclusive):
    """A lock, or several at once, held exclusively."""


class ReadGuard(Guard):
    """A lock held together with other readers."""


class WriteGuard(Guard, Exclusive):
    """A lock held for writing."""


class Permit(Guard):
    """Permits of a semaphore."""


class Leadership(Guard, Exclusive):
    """The leadership of an election."""

    async def publish(self, value: Value) -> None:
        """Replaces the value that observers read."""
        await _answer(self._native.publish(as_bytes(value)))


class EfficiencyGuard(AnyGuard):
    """A lock for efficiency. It has no token, because two clients may hold it at once."""


_GUARDS = {"lock": LockGuard, "read": ReadGuard, "write": WriteGuard, "permits": Permit, "leadership": Leadership}


def _guard_class(wanted: Wanted) -> Type[AnyGuard]:
    return EfficiencyGuard if wanted.efficiency else _GUARDS[wanted.kind]
