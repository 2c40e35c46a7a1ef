"""Locks of every kind, on every engine."""

from __future__ import annotations

import gc
import queue
import socket
import threading
import time

import pytest

import palisade
from conftest import BOUND, Proxy, held, until, variable, waiting
from palisade import Contended


def lock(client: palisade.Client, name: str) -> palisade.Request[palisade.LockGuard]:
    """A correctness lock, also on Redis."""
    return client.lock(name).dangerous_accept_failover()


def test_tokens_rise(client: palisade.Client, other: palisade.Client, name: str) -> None:
    with lock(client, name) as guard:
        first = guard.token
        assert guard.locks == (name,)
        assert guard.standing.state == "held"
    with lock(other, name) as guard:
        assert guard.token > first


def test_a_held_lock_is_contended(client: palisade.Client, other: palisade.Client, name: str) -> None:
    with lock(client, name):
        refused = lock(other, name).try_acquire()
        assert not refused and refused == Contended((name,))
        late = lock(other, name).acquire(timeout=0.05)
        assert isinstance(late, Contended)
        assert until(lambda: waiting(client, name) == 0)
    granted = lock(other, name).try_acquire()
    assert granted
    granted.release()


def test_a_waiter_gets_the_lock_from_another_thread(
    client: palisade.Client, other: palisade.Client, name: str
) -> None:
    guard = lock(client, name).acquire()
    tokens: queue.Queue[int] = queue.Queue()

    def wait() -> None:
        with lock(other, name) as later:
            tokens.put(later.token)

    thread = threading.Thread(target=wait)
    thread.start()
    # This thread runs meanwhile: the waiting one has released the GIL.
    assert until(lambda: waiting(client, name) == 1)
    token = guard.token
    guard.release()
    assert tokens.get(timeout=BOUND / 2) > token
    thread.join()


def test_a_released_guard_has_no_token(client: palisade.Client, name: str) -> None:
    guard = lock(client, name).acquire()
    guard.release()
    guard.release()
    with pytest.raises(palisade.Lost, match="it was released; acquire it again first") as raised:
        guard.token
    assert raised.value.loss is not None and raised.value.loss.kind == "released"
    assert raised.value.lock == name and raised.value.operation == "use"


def test_readers_share_and_writers_do_not(client: palisade.Client, other: palisade.Client, name: str) -> None:
    table, same = client.rw_lock(name), other.rw_lock(name)
    with table.read().dangerous_accept_failover(), same.read().dangerous_accept_failover() as reader:
        assert isinstance(reader, palisade.ReadGuard)
        assert not same.write().dangerous_accept_failover().try_acquire()
    with table.write().dangerous_accept_failover() as writer:
        assert isinstance(writer, palisade.WriteGuard)
        assert not same.read().dangerous_accept_failover().try_acquire()


def test_a_semaphore_has_its_permits(client: palisade.Client, other: palisade.Client, name: str) -> None:
    with client.semaphore(name, 3).many(2).dangerous_accept_failover() as permit:
        assert isinstance(permit, palisade.Permit)
        with other.semaphore(name, 3).dangerous_accept_failover():
            assert not other.semaphore(name, 3).dangerous_accept_failover().try_acquire()
            client.resize(name, 4)
            more = other.semaphore(name, 4).dangerous_accept_failover().try_acquire()
            assert more
            more.release()
            info = client.inspect(name)
            assert info is not None and info.limit == 4
            assert {holder.mode.count for holder in info.holders} == {1, 2}


def test_several_locks_are_one_grant(client: palisade.Client, other: palisade.Client, name: str) -> None:
    names = [f"{name}/a", f"{name}/b"]
    with client.lock_all(names).dangerous_accept_failover() as guard:
        assert guard.locks == tuple(names)
        assert not lock(other, names[1]).try_acquire()
    with pytest.raises(palisade.Misuse, match="for one write lock"):
        client.lock_all(name)


def test_one_client_leads(client: palisade.Client, other: palisade.Client, name: str) -> None:
    observer = other.election(name).observe()
    assert observer.next(timeout=BOUND / 2) is None
    leadership = client.election(name).candidacy("starting").dangerous_accept_failover().acquire()
    leader = observer.next(timeout=BOUND / 2)
    assert leader is not None and leader.value == b"starting" and leader.token == leadership.token
    assert not other.election(name).candidacy("too").dangerous_accept_failover().acquire(timeout=0.05)
    leadership.publish("ready")
    leader = observer.next(timeout=BOUND / 2)
    assert leader is not None and leader.value == b"ready" and leader.label == "first"
    assert other.election(name).leader() == leader
    leadership.release()
    assert observer.next(timeout=BOUND / 2) is None
    with pytest.raises(TimeoutError):
        observer.next(timeout=0)


def test_locks_are_inspected_and_listed(client: palisade.Client, other: palisade.Client, name: str) -> None:
    assert client.inspect(name) is None
    with lock(client, name) as guard:
        info = other.inspect(name)
        assert info is not None and info.name == name and info.holders[0].mode.kind == "exclusive"
        assert (info.holders[0].token, info.holders[0].session) == (guard.token, guard.session)
        assert info.holders[0].label == "first"
        assert [found.name for found in other.list(name)] == [name]
    assert other.list(name) == []


def test_events_are_watched(client: palisade.Client, other: palisade.Client, name: str) -> None:
    watch = other.watch(name)
    with lock(client, name) as guard:
        granted = watch.next(timeout=BOUND / 2)
        assert granted is not None
        assert (granted.kind, granted.locks, granted.token) == ("granted", [name], guard.token)
    ended = watch.next(timeout=BOUND / 2)
    assert ended is not None and (ended.kind, ended.how) == ("ended", "released")
    with pytest.raises(TimeoutError):
        watch.next(timeout=0)
    other.close()
    assert list(watch) == []


def test_a_forced_release_is_a_loss(client: palisade.Client, other: palisade.Client, name: str) -> None:
    losses: queue.Queue[palisade.Loss] = queue.Queue()
    guard = lock(client, name).acquire()
    guard.on_lost(losses.put)
    assert guard.lost(timeout=0) is None
    assert guard.jeopardy(timeout=0) is None
    token = guard.token
    forced = other.force_release(name, "hangs since noon", token=token)
    assert forced.grants == 1 and forced.moved_to > token
    loss = guard.lost()
    assert loss is not None and (loss.kind, loss.by, loss.reason) == ("forced", "second", "hangs since noon")
    assert losses.get(timeout=BOUND / 2) == loss
    standing = guard.jeopardy()
    assert standing is not None and standing.state == "lost" and standing.loss == loss
    with pytest.raises(palisade.Lost, match="taken away by second: hangs since noon"):
        guard.token
    with pytest.raises(palisade.Lost):
        guard.ensure(0)
    with pytest.raises(palisade.Lost):
        guard.release()


def test_a_lost_lock_fails_its_with_statement(client: palisade.Client, other: palisade.Client, name: str) -> None:
    with pytest.raises(palisade.Lost):
        with lock(client, name):
            other.force_release(name, "for a test")
    # The error of the body comes first.
    with pytest.raises(ZeroDivisionError):
        with lock(client, name):
            other.force_release(name, "for a test")
            1 / 0


def test_a_guard_ensures_a_time(client: palisade.Client, name: str) -> None:
    with lock(client, name) as guard:
        guard.ensure(1)
        with pytest.raises(palisade.Misuse, match="connect with a longer TTL"):
            guard.ensure(3600)
        while True:
            seen = guard.safe_until
            try:
                guard.ensure(seen - time.clock_gettime(time.CLOCK_BOOTTIME) + 1e-6)
            except palisade.Unavailable as error:
                assert "wait for a renewal" in str(error)
                assert error.is_retryable and not error.may_have_taken_effect
                break
            assert guard.safe_until != seen, "it was not renewed meanwhile, and yet more is ensured than is left"


def test_a_renewal_moves_the_lease(url: str, name: str) -> None:
    with palisade.connect(url, ttl=18) as client:
        with lock(client, name) as guard:
            seen = guard.safe_until
            later = guard.renewed()
            assert later is not None and later > seen


def test_an_efficiency_lock_has_no_token(client: palisade.Client, other: palisade.Client, name: str) -> None:
    with client.lock(name).efficiency() as guard:
        assert isinstance(guard, palisade.EfficiencyGuard) and not hasattr(guard, "token")
        assert not other.lock(name).efficiency().try_acquire()


def test_a_dropped_guard_releases_its_lock(client: palisade.Client, other: palisade.Client, name: str) -> None:
    losses: queue.Queue[palisade.Loss] = queue.Queue()
    guard = lock(client, name).acquire()
    guard.on_lost(losses.put)
    del guard
    gc.collect()
    lock(other, name).acquire().release()
    # A release is no loss.
    assert losses.empty()


def test_a_request_is_entered_once(client: palisade.Client, name: str) -> None:
    request = lock(client, name)
    with request:
        with pytest.raises(palisade.Misuse, match="in a with statement already"):
            request.__enter__()
    with request:
        pass


def test_a_detached_session_is_kept_by_another_client(
    client: palisade.Client, other: palisade.Client, name: str
) -> None:
    guard = lock(client, name).acquire()
    token = guard.token
    session = other.detached_session(client.detach())
    session.keep_alive()
    assert held(other, name) == 1
    session.release(name, token)
    assert held(other, name) == 0
    session.close()
    with pytest.raises(palisade.Lost):
        session.keep_alive()


def test_a_delay_is_set_where_it_is_offered(client: palisade.Client, name: str) -> None:
    request = lock(client, name).delay(5)
    if client.guarantees.offers.delay:
        request.acquire().release()
    else:
        with pytest.raises(palisade.Unsupported, match="lock-delay"):
            request.acquire()


def test_an_observer_holds_nothing(url: str, name: str) -> None:
    with palisade.connect(url, observer=True) as client:
        assert client.inspect(name) is None
        with pytest.raises(palisade.Misuse, match="an observer has no session"):
            client.lock(name).efficiency().acquire()


def test_a_closed_client_says_so(url: str, name: str) -> None:
    client = palisade.connect(url)
    guard = lock(client, name).acquire()
    client.close()
    with pytest.raises(palisade.Lost, match="its session was closed; connect again"):
        guard.token
    with pytest.raises(palisade.Lost):
        client.inspect(name)


def test_a_wrong_call_is_misuse(client: palisade.Client) -> None:
    with pytest.raises(palisade.Misuse) as raised:
        client.lock("").efficiency().acquire()
    assert raised.value.lock == "" and not raised.value.is_retryable and not raised.value.may_have_taken_effect
    with pytest.raises(ValueError, match="timeout is a number of seconds"):
        client.lock("x").acquire(timeout=-1)


def test_redis_refuses_correctness_locks_by_default() -> None:
    with palisade.connect(variable("PALISADE_TEST_REDIS")) as client:
        assert client.guarantees.level == "healthy-only"
        with pytest.raises(palisade.Unsupported, match="dangerous_accept_failover"):
            client.lock("orders").acquire()


def test_a_url_without_an_engine_is_misuse() -> None:
    with pytest.raises(palisade.Misuse, match="names no engine of this build"):
        palisade.connect("gopher://host")


def test_an_unreachable_service_is_unavailable() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        with pytest.raises(palisade.Unavailable) as raised:
            palisade.connect(f"palisade://127.0.0.1:{port}")
    assert raised.value.engine == "palisade" and not raised.value.may_have_taken_effect
    assert "(nothing has changed)" in str(raised.value)


def test_the_service_signs_tokens(name: str) -> None:
    with palisade.connect(variable("PALISADE_TEST_SERVICE")) as client:
        with client.lock(name) as guard:
            assert guard.signed_token().count(".") == 2
        with client.lock_all([f"{name}/a", f"{name}/b"]) as both:
            with pytest.raises(palisade.Misuse):
                both.signed_token()
            assert both.signed_token(f"{name}/a").count(".") == 2


def test_a_lock_whose_service_is_out_of_reach_is_in_jeopardy_and_then_lost(name: str) -> None:
    proxy = Proxy(variable("PALISADE_TEST_SERVICE"))
    losses: queue.Queue[palisade.Loss] = queue.Queue()
    client = palisade.connect(proxy.url, ttl=20)
    guard = client.lock(name).acquire()
    guard.on_lost(losses.put)
    proxy.is_deaf = True
    standing = guard.jeopardy()
    assert standing is not None
    if standing.state == "jeopardy":
        assert guard.token > 0
        with pytest.raises(palisade.Unavailable, match="wait for a renewal"):
            guard.ensure(19.5)
    loss = guard.lost()
    # A client that notices it a second late takes its process for paused.
    assert loss is not None and loss.kind in ("unreachable", "paused")
    assert standing.state == "jeopardy" or loss.kind == "paused", "it was not in jeopardy before"
    told = losses.get(timeout=BOUND / 2)
    assert told.kind in ("unreachable", "paused")
    with pytest.raises(palisade.Lost, match="could not be reached to keep its session alive|this process was paused"):
        guard.token
    client.close()


def test_an_outage_says_whether_it_may_have_taken_effect(name: str) -> None:
    proxy = Proxy(variable("PALISADE_TEST_SERVICE"))
    with palisade.connect(proxy.url, ttl=60) as client, palisade.connect(variable("PALISADE_TEST_SERVICE")) as direct:
        guard = direct.lock(name).acquire()
        proxy.is_deaf = True
        with pytest.raises(palisade.Unavailable) as raised:
            client.force_release(name, "for a test", token=guard.token)
        assert raised.value.may_have_taken_effect and raised.value.is_retryable
        assert "(it may have taken effect)" in str(raised.value)
        # It has.
        loss = guard.lost()
        assert loss is not None and loss.kind == "forced"
        proxy.is_deaf = False
