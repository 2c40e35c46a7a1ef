"""Fences in PostgreSQL and Redis: an overtaken holder is refused by the store."""

from __future__ import annotations

import signal
import subprocess
import sys
import uuid
from typing import Any, Iterator

import psycopg
import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

import palisade
import palisade.fence
from conftest import BOUND, Proxy, variable
from palisade.fence import postgres
from palisade.fence import redis as redis_fence


@pytest.fixture
def locks() -> Iterator[palisade.Client]:
    with palisade.connect("memory:fences") as client:
        yield client


@pytest.fixture(params=[False, True], ids=["transactions", "autocommit"])
def connection(request: pytest.FixtureRequest) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(variable("PALISADE_TEST_POSTGRES"), autocommit=request.param) as connection:
        yield connection


@pytest.fixture
def table(connection: psycopg.Connection[Any]) -> str:
    table = f"orders_{uuid.uuid4().hex}"
    postgres.install(connection)
    with connection.transaction():
        connection.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, total int NOT NULL)")
    postgres.protect(connection, table)
    return table


def total(connection: psycopg.Connection[Any], table: str) -> object:
    with connection.transaction():
        row = connection.execute(f"SELECT total FROM {table}").fetchone()
        assert row is not None
        return row[0]


def test_postgres_refuses_an_overtaken_holder(
    locks: palisade.Client, connection: psycopg.Connection[Any], table: str
) -> None:
    guard = locks.lock(table).acquire()
    with postgres.under(connection, guard):
        connection.execute(f"INSERT INTO {table} VALUES (42, 5)")
    assert total(connection, table) == 5
    # A client with a newer token, of an engine that counts higher, has sealed it: nothing tells the first one.
    with palisade.connect("memory:newer") as elsewhere, psycopg.connect(variable("PALISADE_TEST_POSTGRES")) as second:
        elsewhere.raise_tokens(guard.token + 1000)
        newer = elsewhere.lock(table).acquire()
        with postgres.under(second, newer):
            second.execute(f"UPDATE {table} SET total = total + 1")
        with pytest.raises(palisade.fence.Stale, match="has sealed") as raised:
            with postgres.transaction(connection, guard):
                connection.execute(f"UPDATE {table} SET total = 0")
        assert raised.value.overtaken_by == newer.token
        with pytest.raises(palisade.fence.Stale):
            postgres.seal(connection, guard)
    guard.release()
    with pytest.raises(palisade.Lost):
        with postgres.under(connection, guard):
            pass
    assert total(connection, table) == 6


WORKER = """
import sys, palisade, palisade.fence, psycopg
from palisade.fence import postgres
locks, database, table = sys.argv[1:]
client = palisade.connect(locks, ttl=1)
connection = psycopg.connect(database, autocommit=True)
while True:
    # A standstill of the machine may end so short a session at any moment.
    try:
        guard = client.lock(table).acquire()
        token = guard.token
        postgres.seal(connection, guard)
        break
    except palisade.Error as error:
        if not error.is_retryable:
            raise
print("sealed", flush=True)
sys.stdin.readline()
try:
    with postgres.transaction(connection, guard):
        connection.execute(f"UPDATE {table} SET total = 0")
    print("written")
except palisade.Lost:
    print("lost")
# A program that does not ask its guard presents the token that it had.
try:
    with connection.transaction():
        connection.execute("SELECT palisade_fence.admit(%s, %s)", (table, token))
        connection.execute(f"UPDATE {table} SET total = 0")
    print("written")
except psycopg.Error as error:
    print(error.sqlstate)
"""


def test_a_worker_that_was_paused_cannot_write(connection: psycopg.Connection[Any], table: str, url: str) -> None:
    database = variable("PALISADE_TEST_POSTGRES")
    command = [
        sys.executable,
        "-c",
        WORKER.replace("client.lock(table)", "client.lock(table).dangerous_accept_failover()"),
    ]
    worker = subprocess.Popen(
        [*command, url, database, table], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert worker.stdin is not None and worker.stdout is not None
        assert worker.stdout.readline() == "sealed\n"
        worker.send_signal(signal.SIGSTOP)
        with palisade.connect(url) as client, client.lock(table).dangerous_accept_failover() as guard:
            with postgres.under(connection, guard):
                connection.execute(f"INSERT INTO {table} VALUES (42, 5)")
        worker.send_signal(signal.SIGCONT)
        assert worker.communicate("go on\n", timeout=BOUND / 2)[0].split() == ["lost", "PF001"]
    finally:
        worker.kill()
        worker.wait()
    assert total(connection, table) == 5


def test_postgres_refuses_a_write_without_a_seal(
    locks: palisade.Client, connection: psycopg.Connection[Any], table: str
) -> None:
    with locks.lock(table) as guard:
        with pytest.raises(palisade.fence.NotSealed):
            with postgres.transaction(connection, guard):
                connection.execute(f"INSERT INTO {table} VALUES (1, 1)")
    with pytest.raises(psycopg.Error), connection.transaction():
        connection.execute(f"INSERT INTO {table} VALUES (1, 1)")


def test_postgres_rolls_back_a_failed_body(
    locks: palisade.Client, connection: psycopg.Connection[Any], table: str
) -> None:
    with locks.lock(table) as guard:
        with postgres.under(connection, guard):
            connection.execute(f"INSERT INTO {table} VALUES (1, 1)")
        with pytest.raises(ZeroDivisionError):
            with postgres.transaction(connection, guard):
                connection.execute(f"UPDATE {table} SET total = 2")
                1 / 0
        with connection.transaction():
            connection.execute("SELECT 1")
            with pytest.raises(palisade.Misuse, match="in a transaction"):
                postgres.seal(connection, guard)
    assert total(connection, table) == 1


def test_only_an_exclusive_guard_seals(
    locks: palisade.Client, connection: psycopg.Connection[Any], table: str
) -> None:
    with locks.rw_lock(table).read() as reader:
        with pytest.raises(palisade.Misuse, match="a ReadGuard cannot seal"):
            postgres.seal(connection, reader)  # type: ignore[arg-type]
    with locks.lock_all(["a", "b"]) as both:
        with pytest.raises(palisade.Misuse, match="name the resource"):
            postgres.seal(connection, both)
        postgres.seal(connection, both, table)


@pytest.fixture
def server() -> Iterator[Any]:
    server = redis.Redis.from_url(variable("PALISADE_TEST_REDIS"), decode_responses=True)
    redis_fence.install(server)
    yield server
    server.close()


def test_redis_refuses_an_overtaken_holder(locks: palisade.Client, server: Any, name: str) -> None:
    guard = locks.lock(name).acquire()
    order = redis_fence.under(server, guard)
    assert order.read("GET") is None
    assert order.write("SET", 100) == "OK"
    assert order.write("INCR") == 101
    assert order.write("HSET", "paper", 3, keys=[f"{{{name}}}:lines"]) == 1
    assert order.settle() is None
    guard.release()
    with locks.lock(name) as newer:
        with pytest.raises(palisade.Lost):
            redis_fence.under(server, guard)
        again = redis_fence.under(server, newer)
        with pytest.raises(palisade.fence.Stale) as raised:
            order.write("SET", 0)
        assert raised.value.overtaken_by == newer.token
        with pytest.raises(palisade.fence.Stale):
            order.read("GET")
        assert again.read("GET") == "101"


def test_redis_settles_a_rejected_write(locks: palisade.Client, server: Any, name: str) -> None:
    with locks.lock(name) as guard:
        order = redis_fence.under(server, guard)
        order.write("SET", 1)
        with pytest.raises(redis.ResponseError, match="REJECTED"):
            order.write("HSET", "paper", 3)
        assert order.write("INCR") == 2


def test_redis_settles_a_write_whose_answer_was_lost(locks: palisade.Client, server: Any, name: str) -> None:
    proxy = Proxy(variable("PALISADE_TEST_REDIS"))
    # Without retries of its own, which would bring the answer.
    through = redis.Redis.from_url(proxy.url, decode_responses=True, retry=Retry(NoBackoff(), 0))
    with locks.lock(name) as guard:
        order = redis_fence.under(through, guard)
        proxy.is_deaf = True
        with pytest.raises(palisade.Unavailable) as raised:
            order.write("INCR")
        assert raised.value.may_have_taken_effect
        proxy.is_deaf = False
        with pytest.raises(palisade.Misuse, match="settle"):
            order.write("INCR")
        settled = order.settle()
        assert settled is not None and settled.is_applied and settled.outcome == 1
        assert order.write("INCR") == 2
    through.close()


def test_a_missing_postgres_fence_is_named(locks: palisade.Client) -> None:
    name = f"bare_{uuid.uuid4().hex}"
    with psycopg.connect(variable("PALISADE_TEST_POSTGRES"), autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {name}")
    bare = psycopg.connect(variable("PALISADE_TEST_POSTGRES"), dbname=name)
    with bare, locks.lock("orders") as guard:
        with pytest.raises(palisade.Misuse, match="fence.postgres.install"):
            postgres.seal(bare, guard)
        with pytest.raises(palisade.Misuse, match="fence.postgres.install"):
            postgres.protect(bare, "orders")


def test_a_missing_redis_fence_is_named(locks: palisade.Client, server: Any) -> None:
    server.function_delete("palisade")
    with locks.lock("orders") as guard:
        with pytest.raises(palisade.Misuse, match="fence.redis.install"):
            redis_fence.under(server, guard)
    redis_fence.install(server)


def test_a_lock_that_was_not_acquired_seals_nothing(locks: palisade.Client, server: Any) -> None:
    with locks.lock("orders"):
        contended: Any = locks.lock("orders").try_acquire()
        with pytest.raises(palisade.Misuse, match="was not acquired"):
            redis_fence.under(server, contended)
