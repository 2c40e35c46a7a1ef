"""Fences in PostgreSQL and Redis: an overtaken holder is refused by the store."""

from __future__ import annotations

import uuid
from typing import Any, Iterator

import psycopg
import pytest
import redis

import palisade
import palisade.fence
from conftest import variable
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
    # The same lock of a second client, after the first was paused, say.
    locks.force_release(table, "for a test")
    with locks.lock(table) as newer, psycopg.connect(variable("PALISADE_TEST_POSTGRES")) as second:
        with pytest.raises(palisade.Lost):
            with postgres.under(connection, guard):
                pass
        with postgres.under(second, newer):
            second.execute(f"UPDATE {table} SET total = total + 1")
        token = newer.token

        class Paused(palisade.LockGuard):
            """A guard that has not noticed yet that it is lost."""

            @property
            def token(self) -> int:
                return token - 1

        paused = Paused(guard._native, guard.locks)
        with pytest.raises(palisade.fence.Stale, match="has sealed") as raised:
            with postgres.transaction(connection, paused):
                connection.execute(f"UPDATE {table} SET total = 0")
        assert raised.value.overtaken_by == token
        with pytest.raises(palisade.fence.Stale):
            postgres.seal(connection, paused)
    assert total(connection, table) == 6


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


def test_only_an_exclusive_guard_seals(locks: palisade.Client, connection: psycopg.Connection[Any], table: str) -> None:
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


def test_redis_settles_a_write_whose_answer_was_lost(
    locks: palisade.Client, server: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with locks.lock(name) as guard:
        order = redis_fence.under(server, guard)
        call = server.fcall

        def answer_is_lost(*arguments: Any) -> Any:
            call(*arguments)
            raise redis.ConnectionError("the answer is lost")

        with monkeypatch.context() as broken:
            broken.setattr(server, "fcall", answer_is_lost)
            with pytest.raises(palisade.Unavailable) as raised:
                order.write("INCR")
            assert raised.value.may_have_taken_effect
        with pytest.raises(palisade.Misuse, match="settle"):
            order.write("INCR")
        settled = order.settle()
        assert settled is not None and settled.is_applied and settled.outcome == 1
        assert order.write("INCR") == 2
