"""Fences: resources that refuse a token which a newer one has superseded. The check is in the store.

- `palisade.fence.postgres`: tables in PostgreSQL, with psycopg 3.
- `palisade.fence.redis`: keys in Redis 7 or newer, with redis-py.
"""

from __future__ import annotations

from typing import Optional

from palisade._shared import Exclusive
from palisade._types import Contended, Error, Misuse

__all__ = ["NotSealed", "Stale"]


class Stale(Error):
    """A newer token has sealed the resource. Nothing has changed. `overtaken_by` is that token."""

    def __init__(self, message: str, *, overtaken_by: int) -> None:
        super().__init__(message)
        self.overtaken_by = overtaken_by


class NotSealed(Error):
    """This token has not sealed the resource, or the resource has forgotten it. Nothing has changed."""


def not_installed(module: str) -> Misuse:
    return Misuse(f"the fence is not installed there; call palisade.fence.{module}.install once, with the right to do so")


def resource_of(guard: Exclusive, resource: Optional[str]) -> str:
    """Returns the resource, which has the name of the lock unless another is given."""
    if isinstance(guard, Contended):
        raise Misuse("the lock was not acquired: another client holds it; check the guard first (`if guard:`)")
    if not isinstance(guard, Exclusive):
        raise Misuse(
            f"a {type(guard).__name__} cannot seal: other clients may hold the lock too; use a lock that one client holds, for "
            "correctness"
        )
    if resource is not None:
        return resource
    if len(guard.locks) != 1:
        raise Misuse("several locks are held; name the resource")
    return guard.locks[0]
