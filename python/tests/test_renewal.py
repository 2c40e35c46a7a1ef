"""A busy interpreter, the GIL and a blocked event loop do not lose locks."""

from __future__ import annotations

import asyncio
import ctypes
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Callable, List

import pytest

import palisade
import palisade.aio
from conftest import ENGINES, engine_url

# Long enough that the sessions outlive a standstill of the machine.
TTL = 15.0
BLOCKED = 1.5 * TTL


def busy_loop() -> None:
    end = time.monotonic() + BLOCKED
    while time.monotonic() < end:
        pass


def c_call_with_the_gil() -> None:
    # A PyDLL does not release the GIL.
    ctypes.PyDLL(None).usleep(int(BLOCKED * 1e6))


@pytest.mark.parametrize("block", [busy_loop, c_call_with_the_gil])
def test_a_busy_interpreter_keeps_its_locks(block: Callable[[], None], tmp_path: Path, name: str) -> None:
    with ExitStack() as stack:
        guards: List[palisade.LockGuard] = []
        for engine in ENGINES:
            client = stack.enter_context(palisade.connect(engine_url(engine, tmp_path), ttl=TTL))
            guards.append(stack.enter_context(client.lock(name).dangerous_accept_failover()))
        tokens = [guard.token for guard in guards]
        block()
        assert [guard.token for guard in guards] == tokens


def test_a_blocked_event_loop_keeps_its_locks(tmp_path: Path, name: str) -> None:
    async def main() -> None:
        clients = [await palisade.aio.connect(engine_url(engine, tmp_path), ttl=TTL) for engine in ENGINES]
        guards = [await client.lock(name).dangerous_accept_failover().acquire() for client in clients]
        tokens = [guard.token for guard in guards]
        time.sleep(BLOCKED)
        assert [guard.token for guard in guards] == tokens
        for client in clients:
            await client.close()

    asyncio.run(main())
