"""Stands in for tests/conftest.py of redis-py, whose tests of Lock run unchanged beside it. The conftest of redis-py reads
INFO of Redis and empties the database after each test. A lock service has no database, so this one deletes the lock that all
these tests use."""

import pytest
import redis

LOCK = "foo"


class Client(redis.Redis):
    def set(self, name, value, nx=False, **options):
        # Some tests change the token of a held lock by force, with a SET that a lock service refuses.
        if not nx:
            self.delete(name)
        return super().set(name, value, nx=True, **options)


def pytest_addoption(parser):
    parser.addoption("--redis-url")
    parser.addoption("--protocol", type=int)


def pytest_configure(config):
    config.addinivalue_line("markers", "onlynoncluster: redis-py's mark of a test for a single server")


def _get_client(cls, request, **options):
    assert cls is redis.Redis
    url, protocol = request.config.getoption("--redis-url"), request.config.getoption("--protocol")
    client = Client.from_url(url, protocol=protocol, single_connection_client=True, **options)

    def close():
        client.delete(LOCK)
        client.close()
        client.connection_pool.disconnect()

    request.addfinalizer(close)
    return client


@pytest.fixture()
def r(request):
    return _get_client(redis.Redis, request)
