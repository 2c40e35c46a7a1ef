"""A forked child cannot use or disturb its parent's clients and locks."""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import os
import subprocess
import sys
import traceback
import warnings
from pathlib import Path
from typing import Callable

import pytest

import palisade
import palisade.aio
from conftest import BOUND, held

# Python 3.12 and newer warn of every fork of a process with threads.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")


def in_child(work: Callable[[], None]) -> None:
    """Runs it in a fork of this process, and fails if it fails."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        status = 1
        try:
            work()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_a_child_is_refused_and_the_parent_keeps_its_lock(
    client: palisade.Client, other: palisade.Client, url: str, name: str
) -> None:
    guard = client.lock(name).dangerous_accept_failover().acquire()
    watch, token = client.watch(name), guard.token
    things = {"client": client, "guard": guard, "watch": watch}

    def child() -> None:
        uses: list[Callable[[], object]] = [
            lambda: things["guard"].token,  # type: ignore[attr-defined]
            lambda: things["guard"].release(),  # type: ignore[attr-defined]
            lambda: things["guard"].ensure(0),  # type: ignore[attr-defined]
            lambda: things["guard"].standing,  # type: ignore[attr-defined]
            lambda: things["client"].lock("x").acquire(),  # type: ignore[attr-defined]
            lambda: things["client"].inspect(name),  # type: ignore[attr-defined]
            lambda: things["client"].guarantees,  # type: ignore[attr-defined]
            lambda: things["client"].close(),  # type: ignore[attr-defined]
            lambda: things["watch"].next(),  # type: ignore[attr-defined]
        ]
        for use in uses:
            with pytest.raises(palisade.Forked, match="is a fork of it; .* connect again"):
                use()
        if url.startswith("embedded:"):
            # SQLite counts its file locks per process, and the child does not have those of its parent.
            with pytest.raises(palisade.Unavailable, match="had a database open when it forked this process"):
                palisade.connect(url)
            return
        # Another client of this process works, and sees the parent's lock.
        with palisade.connect(url) as own:
            assert not own.lock(name).dangerous_accept_failover().try_acquire()
            own.lock(f"{name}/own").dangerous_accept_failover().acquire().release()
            things.clear()
            gc.collect()
            assert held(own, name) == 1

    in_child(child)
    assert guard.token == token
    assert held(other, name) == 1
    guard.release()
    with other.lock(name).dangerous_accept_failover() as later:
        assert later.token > token


def test_a_child_that_drops_everything_changes_nothing(
    client: palisade.Client, other: palisade.Client, name: str
) -> None:
    held_by_parent = [client.lock(name).dangerous_accept_failover().acquire()]
    pending = client._native.inspect(name)
    token = held_by_parent[0].token

    def child() -> None:
        nonlocal pending
        del pending
        held_by_parent.clear()
        gc.collect()

    in_child(child)
    assert held_by_parent[0].token == token
    assert not other.lock(name).dangerous_accept_failover().try_acquire()


_guard: palisade.LockGuard


def use_the_guard_of_the_parent(url: str) -> str:
    try:
        _guard.token
    except palisade.Forked:
        if url.startswith("embedded:"):
            return "contended"
        with palisade.connect(url) as client:
            return (
                "contended"
                if not client.lock(_guard.locks[0]).dangerous_accept_failover().try_acquire()
                else "granted"
            )
    return "used"


def test_multiprocessing_children_connect_again(client: palisade.Client, url: str, name: str) -> None:
    global _guard
    _guard = client.lock(name).dangerous_accept_failover().acquire()
    token = _guard.token
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert pool.map(use_the_guard_of_the_parent, [url] * 4) == ["contended"] * 4
    assert _guard.token == token
    _guard.release()


def test_a_guard_of_asyncio_is_refused_in_a_child(url: str, name: str) -> None:
    async def main() -> None:
        async with await palisade.aio.connect(url) as client:
            async with client.lock(name).dangerous_accept_failover() as guard:
                token = guard.token

                def child() -> None:
                    asyncio.events._set_running_loop(None)

                    async def use() -> None:
                        with pytest.raises(palisade.Forked):
                            await guard.release()
                        if url.startswith("embedded:"):
                            return
                        async with await palisade.aio.connect(url) as own:
                            assert not await own.lock(name).dangerous_accept_failover().try_acquire()

                    asyncio.run(use())

                in_child(child)
                assert guard.token == token

    asyncio.run(main())


def test_children_of_a_process_without_clients_share_a_file(tmp_path: Path, name: str) -> None:
    url = f"embedded://{tmp_path}/locks.db"
    script = """
import os, sys, palisade
url, name = sys.argv[1:]
children = []
for _ in range(3):
    pid = os.fork()
    if pid == 0:
        with palisade.connect(url) as client, client.lock(name):
            os._exit(0)
    children.append(pid)
sys.exit(any(os.waitpid(pid, 0)[1] for pid in children))
"""
    subprocess.run([sys.executable, "-c", script, url, name], check=True, timeout=BOUND / 2)
