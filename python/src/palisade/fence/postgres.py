"""Tables in PostgreSQL, with psycopg 3. A trigger refuses writes under a token that a newer one has superseded.

    from palisade.fence import postgres

    postgres.install(admin)                                   # once
    postgres.protect(admin, "orders")                         # once: writes need the token that has sealed 'orders'

    with client.lock("orders") as guard:
        with postgres.under(connection, guard):               # seals, then begins a transaction
            connection.execute("UPDATE orders SET total = total + 5 WHERE id = 42")

docs/fencing/postgres.md has what it promises.
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import Any, Iterator, Optional

import psycopg
from psycopg.pq import TransactionStatus

from palisade import _native
from palisade._shared import Exclusive
from palisade._types import Misuse
from palisade.fence import NotSealed, Stale, not_installed, resource_of

__all__ = ["install", "protect", "seal", "transaction", "under"]

Connection = psycopg.Connection[Any]


def install(connection: Connection) -> None:
    """Installs the schema `palisade_fence`, or upgrades it. Needs CREATE on the database."""
    _need_idle(connection, "install the fence")
    autocommit, connection.autocommit = connection.autocommit, True
    try:
        # The script is one transaction.
        connection.execute(_native.POSTGRES_FENCE)
    finally:
        if connection.info.transaction_status == TransactionStatus.INERROR:
            connection.rollback()
        connection.autocommit = autocommit


def protect(connection: Connection, table: str, resource: Optional[str] = None) -> None:
    """Puts the trigger on a table: from then on writes need the token that has sealed the resource, which has the table's name unless
    another is given.
    """
    with _refusals(), connection.transaction():
        connection.execute("SELECT palisade_fence.protect(%s, %s)", (table, table if resource is None else resource))


def seal(connection: Connection, guard: Exclusive, resource: Optional[str] = None) -> None:
    """Raises the resource's mark to the guard's token. The resource then refuses older tokens. Seal before the first read."""
    _need_idle(connection, "seal")
    resource = resource_of(guard, resource)
    with _refusals(), connection.transaction():
        # The snapshot of a stricter level could be older than the seal.
        connection.execute("SET TRANSACTION ISOLATION LEVEL READ COMMITTED")
        connection.execute("SELECT palisade_fence.seal(%s, %s)", (resource, guard.token))


@contextmanager
def transaction(connection: Connection, guard: Exclusive, resource: Optional[str] = None) -> Iterator[Connection]:
    """Runs the body of a with statement as one transaction under the guard's token, which has sealed the resource before. Reads and
    writes in it are refused once a newer token has sealed the resource.
    """
    _need_idle(connection, "begin a transaction")
    resource = resource_of(guard, resource)
    with _refusals(), connection.transaction():
        connection.execute("SELECT palisade_fence.admit(%s, %s)", (resource, guard.token))
        yield connection


@contextmanager
def under(connection: Connection, guard: Exclusive, resource: Optional[str] = None) -> Iterator[Connection]:
    """Seals the resource with the guard's token, then runs the body of a with statement as one transaction under it. The resource has
    the name of the lock unless another is given. Raises `palisade.fence.Stale` if a newer token has sealed it.
    """
    seal(connection, guard, resource)
    with transaction(connection, guard, resource):
        yield connection


def _need_idle(connection: Connection, operation: str) -> None:
    if connection.info.transaction_status != TransactionStatus.IDLE:
        raise Misuse(f"cannot {operation}: the connection is in a transaction; commit it first", operation=operation)


@contextmanager
def _refusals() -> Iterator[None]:
    """Turns the refusals of the fence into their exceptions."""
    try:
        yield
    except psycopg.Error as error:
        message = ". ".join(filter(None, [error.diag.message_primary, error.diag.message_hint]))
        # PF001: stale. PF007: superseded before the seal.
        if error.sqlstate in ("PF001", "PF007"):
            raise Stale(message, overtaken_by=json.loads(error.diag.message_detail or "{}")["seen"]) from error
        if error.sqlstate == "PF002":
            raise NotSealed(message) from error
        # There is no schema, or not this function in it.
        if error.sqlstate in ("3F000", "42883") and "palisade_fence" in message:
            raise not_installed("postgres") from error
        raise
