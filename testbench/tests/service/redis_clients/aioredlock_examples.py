"""The documented use of aioredlock: PORT [tokens]. With `tokens` the server gives each holder its fencing token."""

import asyncio
import sys

import redis.asyncio as redis
from aioredlock import Aioredlock, LockError

port, has_tokens = int(sys.argv[1]), sys.argv[2:] == ["tokens"]


async def refused(lock):
    try:
        await lock
    except LockError:
        return
    raise AssertionError("it was not refused")


async def main():
    server = redis.Redis(port=port)
    first_manager = Aioredlock([{"host": "127.0.0.1", "port": port, "db": 0}], retry_count=1)
    second_manager = Aioredlock([f"redis://127.0.0.1:{port}/0"], retry_count=1)

    lock = await first_manager.lock("aioredlock", lock_timeout=60)
    assert lock.valid and await second_manager.is_locked("aioredlock")
    token = await server.execute_command("LOCK", "TOKEN", lock.resource, lock.id) if has_tokens else 0
    await refused(second_manager.lock("aioredlock", lock_timeout=60))
    await first_manager.extend(lock, lock_timeout=120)
    assert 60_000 < await server.pttl("aioredlock") <= 120_000
    if has_tokens:
        assert await server.execute_command("LOCK", "TOKEN", lock.resource, lock.id) == token, "extending keeps the token"
    assert (await first_manager.get_lock("aioredlock", lock.id)).valid
    await refused(second_manager.get_lock("aioredlock", "another-id"))
    await first_manager.unlock(lock)
    assert not await second_manager.is_locked("aioredlock")

    async with await second_manager.lock("aioredlock", lock_timeout=60) as later:
        if has_tokens:
            assert await server.execute_command("LOCK", "TOKEN", later.resource, later.id) > token
        await refused(first_manager.lock("aioredlock", lock_timeout=60))
    assert await server.get("aioredlock") is None

    await first_manager.destroy()
    await second_manager.destroy()
    await server.aclose()


asyncio.run(main())
