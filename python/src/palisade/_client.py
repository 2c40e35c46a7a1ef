"""The library for threads."""

from __future__ import annotations

import threading
from dataclasses import replace
from types import TracebackType
from typing import (
    TYPE_CHECKING,
    Callable,
    Generic,
    Iterable,
    Iterator,
    List,
    Optional,
    Type,
    TypeVar,
    Union,
    overload,
)

from palisade import _native
from palisade._shared import BaseGuard, BaseRequest, Exclusive, Value, Wanted, WithToken, as_bytes, url_or_default
from palisade._types import Contended, Error, Event, Forced, Guarantees, Leader, LockInfo, Loss, Standing

if TYPE_CHECKING:
    from palisade._native import Operation

G = TypeVar("G", bound="AnyGuard")
Self = TypeVar("Self", bound="AnyGuard")
T = TypeVar("T")


def connect(
    url: Optional[str] = None,
    *,
    ttl: Optional[float] = None,
    label: Optional[str] = None,
    drift_per_mille: Optional[int] = None,
    observer: bool = False,
) -> Client:
    """Connects to the engine that a URL names; without one, that `PALISADE_URL` names, or to `embedded:`.

    >>> import palisade
    >>> with palisade.connect("memory:", ttl=30) as client:
    ...     with client.lock("orders/42") as guard:
    ...         print("writing with token", guard.token)
    writing with token 1

    `ttl` is how many seconds the session lives without a keep-alive (30 unless given), `label` tells people which client it is,
    `drift_per_mille` bounds how much the rates of clocks differ, and an `observer` has no session and only looks.
    """
    return Client(_native.connect(url_or_default(url), ttl, label, drift_per_mille, observer).wait())


class Client:
    """A client: one session, kept alive by a thread that needs neither the GIL nor an event loop. `close()` it, or use `with`."""

    def __init__(self, native: _native.Client) -> None:
        self._native = native

    @property
    def guarantees(self) -> Guarantees:
        """The promises of the engine.

        >>> import palisade
        >>> palisade.connect("memory:").guarantees.level
        'fenced'
        """
        return self._native.guarantees()

    def lock(self, name: str) -> Request[LockGuard]:
        """Returns a request for a lock that one holder has at a time.

        >>> import palisade
        >>> client = palisade.connect("memory:")
        >>> with client.lock("orders/42") as guard:
        ...     guard.token
        1
        """
        return Request(self._native, Wanted("lock", (name,)))

    def lock_all(self, names: Iterable[str]) -> Request[LockGuard]:
        """Returns a request for several locks at once, all or nothing, under one token.

        >>> import palisade
        >>> client = palisade.connect("memory:")
        >>> with client.lock_all(["accounts/1", "accounts/2"]) as guard:
        ...     guard.locks
        ('accounts/1', 'accounts/2')
        """
        return Request(self._native, Wanted.locks(names))

    def rw_lock(self, name: str) -> RwLock:
        """Returns a lock that many share for reading, or one has for writing.

        >>> import palisade
        >>> client = palisade.connect("memory:")
        >>> with client.rw_lock("table").read(), client.rw_lock("table").read():
        ...     client.rw_lock("table").write().try_acquire()
        Contended(locks=('table',))
        """
        return RwLock(self._native, name)

    def semaphore(self, name: str, permits: int) -> Semaphore:
        """Returns a semaphore that has this number of permits in all. It is a request for one of them.

        >>> import palisade
        >>> client = palisade.connect("memory:")
        >>> gpus = client.semaphore("gpu", 4)
        >>> with gpus.many(3), client.semaphore("gpu", 4):
        ...     bool(gpus.try_acquire())
        False
        """
        return Semaphore(self._native, Wanted("permits", (name,), count=1, of=permits))

    def election(self, name: str) -> Election:
        """Returns an election: one client leads, and all clients can see which one.

        >>> import palisade
        >>> client = palisade.connect("memory:")
        >>> with client.election("scheduler").campaign("10.0.0.1:80") as leadership:
        ...     client.election("scheduler").leader().value
        b'10.0.0.1:80'
        """
        return Election(self._native, name)

    def inspect(self, name: str) -> Optional[LockInfo]:
        """Returns the current state of a lock; None if it is not in use.

        >>> import palisade
        >>> client = palisade.connect("memory:", label="worker 1")
        >>> with client.lock("orders/42"):
        ...     client.inspect("orders/42").holders[0].label
        'worker 1'
        >>> client.inspect("orders/43") is None
        True
        """
        return self._native.inspect(name).wait()

    def list(self, prefix: str = "") -> List[LockInfo]:
        """Returns all locks in use whose names have this prefix.

        >>> import palisade
        >>> client = palisade.connect("memory:")
        >>> with client.lock("orders/42"), client.lock("stock/7"):
        ...     [lock.name for lock in client.list("orders/")]
        ['orders/42']
        """
        return self._native.list(prefix).wait()

    def watch(self, prefix: str = "") -> Watch:
        """Watches all locks whose names have this prefix, from now on.

        >>> import palisade
        >>> client = palisade.connect("memory:")
        >>> watch = client.watch("orders/")
        >>> with client.lock("orders/42"):
        ...     event = next(watch)
        >>> event.kind, event.locks, event.token
        ('granted', ['orders/42'], 1)
        """
        return Watch(self._native.watch(prefix).wait())

    def force_release(self, name: str, reason: str, *, token: Optional[int] = None) -> Forced:
        """Releases a lock by force; with a token, only if it is still held with that one. Its holder loses it, and reports the reason.

        >>> import palisade
        >>> client = palisade.connect("memory:", label="ops")
        >>> guard = client.lock("orders/42").acquire()
        >>> client.force_release("orders/42", "hangs since noon").grants
        1
        >>> print(guard.lost())
        it was taken away by ops: hangs since noon
        """
        return Forced(*self._native.force_release(name, reason, token).wait())

    def resize(self, name: str, permits: int) -> None:
        """Changes the permits of a semaphore that is in use.

        >>> import palisade
        >>> client = palisade.connect("memory:")
        >>> with client.semaphore("gpu", 1):
        ...     client.resize("gpu", 2)
        ...     bool(client.semaphore("gpu", 2).try_acquire())
        True
        """
        self._native.resize(name, permits).wait()

    def raise_tokens(self, above: int) -> bool:
        """Raises the engine's tokens above this one. Returns whether this call has raised them.

        >>> import palisade
        >>> client = palisade.connect("memory:")
        >>> client.raise_tokens(1000)
        True
        >>> client.lock("orders/42").acquire().token > 1000
        True
        """
        return self._native.raise_tokens(above).wait()

    def detach(self) -> int:
        """Ends this client, and leaves its session open until the TTL expires. Returns the session, for `detached_session`."""
        return self._native.detach().wait()

    def detached_session(self, session: int) -> DetachedSession:
        """Returns a handle for a session whose client has detached.

        >>> import palisade
        >>> first, second = palisade.connect("memory:shared"), palisade.connect("memory:shared")
        >>> guard = first.lock("production").acquire()
        >>> token = guard.token
        >>> session = second.detached_session(first.detach())
        >>> session.keep_alive()
        >>> session.release("production", token)
        >>> session.close()
        """
        return DetachedSession(self._native, session)

    def close(self) -> None:
        """Closes the session, which releases everything that it holds.

        >>> import palisade
        >>> client = palisade.connect("memory:")
        >>> guard = client.lock("orders/42").acquire()
        >>> client.close()
        >>> guard.standing.state
        'lost'
        """
        self._native.close().wait()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        _end(self.close, error)


def _end(end: Callable[[], None], error: Optional[BaseException]) -> None:
    """Ends what a with statement began. An error of its body is more important than an error of the end."""
    try:
        end()
    except Error:
        if error is None:
            raise


class Request(BaseRequest, Generic[G]):
    """A request that is not sent yet. `with` acquires the lock and releases it.

    >>> import palisade
    >>> client = palisade.connect("memory:")
    >>> with client.lock("orders/42") as guard:
    ...     guard
    <LockGuard of orders/42: held>
    """

    _guard: Optional[G] = None

    def efficiency(self) -> Request[EfficiencyGuard]:
        """Declares that two holders at once would only waste work. Engines that cannot fence are then allowed, and the guard has no
        token.

        >>> import palisade
        >>> client = palisade.connect("memory:")
        >>> with client.lock("warm-the-cache").efficiency() as guard:
        ...     hasattr(guard, "token")
        False
        """
        return Request(self._native, replace(self._wanted, efficiency=True))

    @overload
    def acquire(self) -> G: ...
    @overload
    def acquire(self, timeout: None) -> G: ...
    @overload
    def acquire(self, timeout: float) -> Union[G, Contended]: ...

    def acquire(self, timeout: Optional[float] = None) -> Union[G, Contended]:
        """Waits in the lock's queue until it is granted. With a timeout in seconds it waits no longer, and then returns `Contended`,
        which is false.

        It waits without the GIL. Ctrl-C interrupts it, and leaves nothing queued and nothing held. While the connection is lost, it
        goes on waiting, and keeps its position in the queue until its session ends.

        >>> import palisade
        >>> client = palisade.connect("memory:")
        >>> guard = client.lock("orders/42").acquire()
        >>> client.lock("orders/42").acquire(timeout=0.01)
        Contended(locks=('orders/42',))
        >>> guard.release()
        """
        return self._finish(self._operation(wait=True, timeout=timeout))

    def try_acquire(self) -> Union[G, Contended]:
        """Acquires the lock if it is available now. Otherwise returns `Contended`, which is false.

        >>> import palisade
        >>> client = palisade.connect("memory:")
        >>> guard = client.lock("nightly").try_acquire()
        >>> if guard:
        ...     with guard:
        ...         print("this run does it")
        this run does it
        """
        return self._finish(self._operation(wait=False))

    def _finish(self, operation: Operation[Optional[_native.Guard]]) -> Union[G, Contended]:
        native = operation.wait()
        if native is None:
            return Contended(self._wanted.names)
        guard: G = _guard_class(self._wanted)(native, self._wanted.names)  # type: ignore[assignment]
        return guard

    def __enter__(self) -> G:
        self._enter()
        try:
            guard = self.acquire()
        except BaseException:
            self._is_entered = False
            raise
        self._guard = guard
        return guard

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        guard, self._guard, self._is_entered = self._guard, None, False
        if guard is not None:
            _end(guard.release, error)


class RwLock:
    """A lock that many share for reading, or one has for writing."""

    def __init__(self, native: _native.Client, name: str) -> None:
        self._native = native
        self._name = name

    def read(self) -> Request[ReadGuard]:
        """Returns a request for reading, together with other readers. A reader queues behind a writer that waits already.

        >>> import palisade
        >>> client = palisade.connect("memory:")
        >>> with client.rw_lock("table").read() as first, client.rw_lock("table").read() as second:
        ...     first.token < second.token
        True
        """
        return Request(self._native, Wanted("read", (self._name,)))

    def write(self) -> Request[WriteGuard]:
        """Returns a request for writing, which excludes all other holders.

        >>> import palisade
        >>> client = palisade.connect("memory:")
        >>> with client.rw_lock("table").write():
        ...     bool(client.rw_lock("table").read().try_acquire())
        False
        """
        return Request(self._native, Wanted("write", (self._name,)))


class Semaphore(Request["Permit"]):
    """A semaphore: a request for one of its permits."""

    def many(self, count: int) -> Request[Permit]:
        """Returns a request for `count` permits at once. Later requests for fewer permits do not overtake it.

        >>> import palisade
        >>> client = palisade.connect("memory:")
        >>> with client.semaphore("gpu", 4).many(3):
        ...     client.semaphore("gpu", 4).many(2).try_acquire()
        Contended(locks=('gpu',))
        """
        return Request(self._native, replace(self._wanted, count=count))


class Election:
    """An election: one client leads, and all clients can see which one."""

    def __init__(self, native: _native.Client, name: str) -> None:
        self._native = native
        self._name = name

    def candidacy(self, value: Value) -> Request[Leadership]:
        """Returns the request that `campaign` sends.

        >>> import palisade
        >>> client = palisade.connect("memory:")
        >>> with client.election("scheduler").candidacy("10.0.0.1:80") as leadership:
        ...     leadership.token
        1
        """
        return Request(self._native, Wanted("leadership", (self._name,), value=as_bytes(value)))

    @overload
    def campaign(self, value: Value) -> Leadership: ...
    @overload
    def campaign(self, value: Value, timeout: None) -> Leadership: ...
    @overload
    def campaign(self, value: Value, timeout: float) -> Union[Leadership, Contended]: ...

    def campaign(self, value: Value, timeout: Optional[float] = None) -> Union[Leadership, Contended]:
        """Waits to be elected, and publishes a value. With a timeout in seconds it waits no longer, and then returns `Contended`.

        >>> import palisade
        >>> client = palisade.connect("memory:")
        >>> with client.election("scheduler").campaign("10.0.0.1:80"):
        ...     client.election("scheduler").campaign("10.0.0.2:80", timeout=0.01)
        Contended(locks=('scheduler',))
        """
        return self.candidacy(value).acquire(timeout)

    def leader(self) -> Optional[Leader]:
        """Returns the current leader, or None while no candidate leads.

        >>> import palisade
        >>> client = palisade.connect("memory:")
        >>> client.election("scheduler").leader() is None
        True
        >>> with client.election("scheduler").campaign("10.0.0.1:80"):
        ...     client.election("scheduler").leader().token
        1
        """
        return self._native.leader(self._name).wait()

    def observe(self) -> Observer:
        """Returns the leaders from now on.

        >>> import palisade
        >>> client = palisade.connect("memory:")
        >>> leaders = client.election("scheduler").observe()
        >>> next(leaders) is None
        True
        >>> leadership = client.election("scheduler").campaign("ready")
        >>> next(leaders).value
        b'ready'
        """
        return Observer(self._native.observe(self._name).wait())


class Observer:
    """The leaders of an election: an iterator that begins with the current one. None is between two leaders. It has no end."""

    def __init__(self, native: _native.Observer) -> None:
        self._native = native

    def next(self, timeout: Optional[float] = None) -> Optional[Leader]:
        """Waits until there is another leader, or another value. Raises TimeoutError after this many seconds.

        >>> import palisade
        >>> client = palisade.connect("memory:")
        >>> leaders = client.election("scheduler").observe()
        >>> leaders.next() is None
        True
        >>> leadership = client.election("scheduler").campaign("starts")
        >>> leadership.publish("ready")
        >>> leaders.next(timeout=5).value
        b'ready'
        """
        return self._native.next().wait(timeout)

    def __iter__(self) -> Iterator[Optional[Leader]]:
        return self

    def __next__(self) -> Optional[Leader]:
        return self.next()


class Watch:
    """The events of locks: an iterator that ends when the client is closed."""

    def __init__(self, native: _native.Watch) -> None:
        self._native = native

    def next(self, timeout: Optional[float] = None) -> Optional[Event]:
        """Waits for the next event; None once the client is closed. Raises TimeoutError after this many seconds.

        >>> import palisade
        >>> client = palisade.connect("memory:")
        >>> watch = client.watch()
        >>> guard = client.lock("orders/42").acquire()
        >>> watch.next(timeout=5).kind
        'granted'
        """
        return self._native.next().wait(timeout)

    def __iter__(self) -> Iterator[Event]:
        return self

    def __next__(self) -> Event:
        event = self.next()
        if event is None:
            raise StopIteration
        return event


class DetachedSession:
    """A session whose client has detached from it. It stays open until its TTL expires."""

    def __init__(self, native: _native.Client, session: int) -> None:
        self._native = native
        self._session = session

    def keep_alive(self) -> None:
        """Renews the session: its TTL starts again. Raises `Lost` if it has ended."""
        self._native.detached_keep_alive(self._session).wait()

    def release(self, name: str, token: int) -> None:
        """Releases the session's grant with this token. Raises `Lost` if it does not hold the lock with this token."""
        self._native.detached_release(self._session, name, token).wait()

    def close(self) -> None:
        """Closes the session, which releases everything that it holds."""
        self._native.detached_close(self._session).wait()


class AnyGuard(BaseGuard):
    """The part that all guards have. `with guard:` releases the lock at the end."""

    def lost(self, timeout: Optional[float] = None) -> Optional[Loss]:
        """Waits until the lock is lost, and returns the reason; None if it is not lost within this many seconds.

        >>> import palisade
        >>> client = palisade.connect("memory:")
        >>> guard = client.lock("orders/42").acquire()
        >>> guard.lost(timeout=0) is None
        True
        >>> client.close()
        >>> print(guard.lost())
        its session was closed
        """
        return _within(self._native.lost(), timeout)

    def on_lost(self, callback: Callable[[Loss], object]) -> None:
        """Calls `callback` with the reason, in a thread that it starts, if the lock is lost. A release is no loss.

        >>> import palisade, queue
        >>> client, losses = palisade.connect("memory:"), queue.Queue()
        >>> guard = client.lock("orders/42").acquire()
        >>> guard.on_lost(losses.put)
        >>> client.close()
        >>> losses.get(timeout=5).kind
        'session-closed'
        """
        # The thread does not refer to this guard, so that dropping the guard still releases the lock.
        operation = self._native.lost()

        def tell() -> None:
            loss = operation.wait()
            if loss.kind != "released":
                callback(loss)

        threading.Thread(target=tell, name="palisade-on-lost", daemon=True).start()

    def jeopardy(self, timeout: Optional[float] = None) -> Optional[Standing]:
        """Waits until the lock is in jeopardy or lost; None if it is not within this many seconds.

        >>> import palisade
        >>> client = palisade.connect("memory:")
        >>> guard = client.lock("orders/42").acquire()
        >>> guard.jeopardy(timeout=0) is None
        True
        """
        return _within(self._native.jeopardy(), timeout)

    def renewed(self, timeout: Optional[float] = None) -> Optional[float]:
        """Waits until the session was renewed, and returns the new `safe_until`; None if it was not within this many seconds.

        >>> import palisade
        >>> client = palisade.connect("memory:", ttl=0.3)
        >>> guard = client.lock("orders/42").acquire()
        >>> before = guard.safe_until
        >>> guard.renewed() > before
        True
        """
        return _within(self._native.renewed(), timeout)

    def release(self) -> None:
        """Releases the lock. Releasing it again is not an error. Raises `Lost` if it had been lost before: the work since then may have
        overlapped with another holder's.

        >>> import palisade
        >>> client = palisade.connect("memory:")
        >>> guard = client.lock("orders/42").acquire()
        >>> guard.release()
        >>> guard.release()
        >>> client.inspect("orders/42") is None
        True
        """
        self._native.release().wait()

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        _end(self.release, error)


def _within(operation: Operation[T], timeout: Optional[float]) -> Optional[T]:
    try:
        return operation.wait(timeout)
    except TimeoutError:
        return None


class Guard(WithToken, AnyGuard):
    """A held lock, several locks at once, or permits, with a token."""

    def signed_token(self, lock: Optional[str] = None) -> str:
        """Returns the token, signed, for a resource that verifies signatures. If several locks are held, say which one."""
        return self._native.signed_token(lock).wait()


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

    def publish(self, value: Value) -> None:
        """Replaces the value that observers read.

        >>> import palisade
        >>> client = palisade.connect("memory:")
        >>> leadership = client.election("scheduler").campaign("starts")
        >>> leadership.publish("ready")
        >>> client.election("scheduler").leader().value
        b'ready'
        """
        self._native.publish(as_bytes(value)).wait()


class EfficiencyGuard(AnyGuard):
    """A lock for efficiency. It has no token, because two clients may hold it at once."""


_GUARDS = {"lock": LockGuard, "read": ReadGuard, "write": WriteGuard, "permits": Permit, "leadership": Leadership}


def _guard_class(wanted: Wanted) -> Type[AnyGuard]:
    return EfficiencyGuard if wanted.efficiency else _GUARDS[wanted.kind]
