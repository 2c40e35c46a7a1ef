"""The same for asyncio."""

from __future__ import annotations

import asyncio
import gc
import threading
from typing import Any, Callable, Coroutine, List, Optional

import pytest

import palisade
import palisade.aio
from conftest import BOUND, held, until, waiting


def lock(client: palisade.aio.Client, name: str) -> palisade.aio.Request[palisade.aio.LockGuard]:
    return client.lock(name).dangerous_accept_failover()


def run(url: str, work: Callable[[palisade.aio.Client, palisade.aio.Client], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        async with await palisade.aio.connect(url, label="first") as client:
            async with await palisade.aio.connect(url, label="second") as other:
                await work(client, other)

    asyncio.run(main())


async def event(condition: Callable[[], Coroutine[Any, Any, bool]]) -> None:
    async def poll() -> None:
        while not await condition():
            await asyncio.sleep(0.01)

    await asyncio.wait_for(poll(), BOUND / 2)


async def is_waited_for(client: palisade.aio.Client, name: str, count: int) -> None:
    async def condition() -> bool:
        info = await client.inspect(name)
        return (0 if info is None else len(info.waiters)) == count

    await event(condition)


def test_tokens_rise_and_contention_is_a_value(url: str, name: str) -> None:
    async def work(client: palisade.aio.Client, other: palisade.aio.Client) -> None:
        async with lock(client, name) as guard:
            first = guard.token
            assert not await lock(other, name).try_acquire()
            assert isinstance(await lock(other, name).acquire(timeout=0.05), palisade.Contended)
        async with lock(other, name) as later:
            assert later.token > first
        with pytest.raises(palisade.Lost):
            guard.token

    run(url, work)


def test_a_cancelled_acquire_leaves_nothing_queued(url: str, name: str) -> None:
    async def work(client: palisade.aio.Client, other: palisade.aio.Client) -> None:
        async with lock(client, name):
            waits = [asyncio.ensure_future(lock(other, name).acquire()) for _ in range(5)]
            # An engine without a queue of its own is asked once for all waits of a client.
            await event(lambda: _has_waiters(client, name))
            for wait in waits:
                wait.cancel()
            assert all(
                isinstance(end, asyncio.CancelledError)
                for end in await asyncio.gather(*waits, return_exceptions=True)
            )
            await is_waited_for(client, name, 0)
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(lock(other, name).acquire(), 0.05)
            await is_waited_for(client, name, 0)

    run(url, work)


async def _has_waiters(client: palisade.aio.Client, name: str) -> bool:
    info = await client.inspect(name)
    return info is not None and len(info.waiters) > 0


def test_an_acquire_that_is_cancelled_at_any_moment_leaves_nothing_held(url: str, name: str) -> None:
    async def work(client: palisade.aio.Client, other: palisade.aio.Client) -> None:
        for step in range(40):
            task = asyncio.ensure_future(lock(client, name).acquire())
            for _ in range(step % 20):
                await asyncio.sleep(0 if step < 20 else 0.0005)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            del task
            gc.collect()
            # It waits for what may still be held.
            guard = await asyncio.wait_for(lock(other, name).acquire(), BOUND / 2)
            await guard.release()

    run(url, work)


def test_a_cancelled_task_releases_its_lock(url: str, name: str) -> None:
    async def work(client: palisade.aio.Client, other: palisade.aio.Client) -> None:
        entered = asyncio.Event()

        async def hold() -> None:
            async with lock(client, name):
                entered.set()
                await asyncio.Event().wait()

        task = asyncio.ensure_future(hold())
        await entered.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert await lock(other, name).try_acquire()

    run(url, work)


def test_many_tasks_take_turns(url: str, name: str) -> None:
    async def work(client: palisade.aio.Client, other: palisade.aio.Client) -> None:
        tokens: List[int] = []

        async def turn(client: palisade.aio.Client) -> None:
            async with lock(client, name) as guard:
                tokens.append(guard.token)
                await asyncio.sleep(0)
                assert tokens[-1] == guard.token

        await asyncio.gather(*(turn(each) for each in [client, other] * 10))
        assert tokens == sorted(tokens) and len(set(tokens)) == 20

    run(url, work)


def test_a_loss_is_reported(url: str, name: str) -> None:
    async def work(client: palisade.aio.Client, other: palisade.aio.Client) -> None:
        guard = await lock(client, name).acquire()
        told: asyncio.Future[palisade.Loss] = asyncio.get_running_loop().create_future()
        guard.on_lost(told.set_result)
        jeopardy = asyncio.ensure_future(guard.jeopardy())
        await other.force_release(name, "for a test")
        loss = await guard.lost()
        assert (loss.kind, loss.by) == ("forced", "second")
        assert await told == loss and (await jeopardy).loss == loss
        with pytest.raises(palisade.Lost):
            await guard.release()

    run(url, work)


def test_work_is_cancelled_when_its_lock_is_lost(url: str, name: str) -> None:
    async def work(client: palisade.aio.Client, other: palisade.aio.Client) -> None:
        ends: List[str] = []

        async def endless(guard: palisade.aio.LockGuard) -> None:
            try:
                await other.force_release(name, "for a test")
                await asyncio.Event().wait()
            finally:
                ends.append("cancelled")

        with pytest.raises(palisade.Lost, match="cannot finish the work under"):
            await lock(client, name).run(endless)
        assert ends == ["cancelled"]

        async def short(guard: palisade.aio.LockGuard) -> int:
            return guard.token

        assert await lock(client, name).run(short) > 0
        assert await lock(other, name).try_acquire()

    run(url, work)


def test_every_kind_of_lock(url: str, name: str) -> None:
    async def work(client: palisade.aio.Client, other: palisade.aio.Client) -> None:
        async with client.rw_lock(name).read().dangerous_accept_failover():
            async with other.rw_lock(name).read().dangerous_accept_failover():
                assert not await client.rw_lock(name).write().dangerous_accept_failover().try_acquire()
        async with client.semaphore(f"{name}/s", 2).many(2).dangerous_accept_failover():
            assert not await other.semaphore(f"{name}/s", 2).dangerous_accept_failover().try_acquire()
            await client.resize(f"{name}/s", 3)
        async with client.lock_all([f"{name}/a", f"{name}/b"]).dangerous_accept_failover() as both:
            assert len(both.locks) == 2
            assert [info.name for info in await other.list(f"{name}/a")] == [f"{name}/a"]
        async with client.lock(name).efficiency() as guard:
            assert not hasattr(guard, "token")
            assert guard.safe_until > 0

    run(url, work)


def test_elections_and_watches(url: str, name: str) -> None:
    async def work(client: palisade.aio.Client, other: palisade.aio.Client) -> None:
        leaders = await other.election(name).observe()
        watch = await other.watch(name)
        assert await leaders.__anext__() is None
        async with client.election(name).candidacy("a").dangerous_accept_failover() as leadership:
            leader: Optional[palisade.Leader] = await leaders.__anext__()
            assert leader is not None and leader.value == b"a"
            await leadership.publish(b"b")
            leader = await leaders.__anext__()
            assert leader is not None and leader == await other.election(name).leader()
        async for event in watch:
            if event.kind == "ended":
                break
        await other.close()
        # The watch delivers the events from before its end, and then ends.
        assert all([event.kind != "granted" async for event in watch])

    run(url, work)


def test_a_detached_session(url: str, name: str) -> None:
    async def work(client: palisade.aio.Client, other: palisade.aio.Client) -> None:
        guard = await lock(client, name).acquire()
        token = guard.token
        session = other.detached_session(await client.detach())
        await session.keep_alive()
        await session.release(name, token)
        await session.close()
        async with await palisade.aio.connect(url) as third:
            assert await lock(third, name).try_acquire()

    async def main() -> None:
        client, other = await palisade.aio.connect(url), await palisade.aio.connect(url)
        await work(client, other)
        await other.close()

    asyncio.run(main())


def test_two_event_loops_wait_for_each_other(client: palisade.Client, url: str, name: str) -> None:
    tokens: List[int] = []

    async def main() -> None:
        async with await palisade.aio.connect(url) as own:
            async with lock(own, name) as guard:
                tokens.append(guard.token)

    guard = client.lock(name).dangerous_accept_failover().acquire()
    threads = [threading.Thread(target=lambda: asyncio.run(main())) for _ in range(2)]
    for thread in threads:
        thread.start()
    assert until(lambda: waiting(client, name) == 2)
    guard.release()
    for thread in threads:
        thread.join()
    assert len(set(tokens)) == 2 and held(client, name) == 0
