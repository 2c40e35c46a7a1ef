"""Stands in for tests/test_asyncio/conftest.py of redis-py, as conftest.py does for the synchronous tests."""

import pytest
import pytest_asyncio
import redis.asyncio as redis

from tests.conftest import LOCK


class Client(redis.Redis):
    async def set(self, name, value, nx=False, **options):
        if not nx:
            await self.delete(name)
        return await super().set(name, value, nx=True, **options)

    async def flushall(self):
        await self.delete(LOCK)


@pytest_asyncio.fixture(params=[True, False], ids=["single", "pool"])
async def create_redis(request):
    url, protocol = request.config.getoption("--redis-url"), request.config.getoption("--protocol")
    clients = []

    async def create(**options):
        client = Client.from_url(url, protocol=protocol, single_connection_client=request.param, **options)
        clients.append(await client.initialize())
        return client

    yield create
    for client in clients:
        await client.delete(LOCK)
        await client.aclose()
        await client.connection_pool.disconnect()


@pytest_asyncio.fixture()
async def r(create_redis):
    return await create_redis()
