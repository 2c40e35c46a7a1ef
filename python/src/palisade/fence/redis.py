"""Keys in Redis 7 or newer, with redis-py. Functions in the server check the token and write in one step.

    from palisade.fence import redis as fence

    fence.install(server)                                     # once, a redis.Redis

    with client.lock("orders/42") as guard:
        order = fence.under(server, guard)                    # seals the key orders/42
        total = int(order.read("GET") or 0)
        order.write("SET", total + 5)

docs/fencing/redis.md has what it promises.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Any, List, Optional, Sequence, Union

import redis

from palisade import _native
from palisade._shared import Exclusive
from palisade._types import Misuse, Unavailable
from palisade.fence import NotSealed, Stale, not_installed, resource_of

__all__ = ["Sealed", "Settled", "install", "under"]

Key = Union[str, bytes]
Argument = Union[str, bytes, int, float]


def install(server: redis.Redis) -> None:
    """Installs the functions, or replaces them; in a cluster do it on every primary. Raises `Misuse` if the server evicts keys that have
    no expiry: it could evict a mark.
    """
    memory: Any = server.info("memory")
    policy = str(memory.get("maxmemory_policy", ""))
    if policy.startswith("allkeys"):
        raise Misuse(
            f"it evicts keys that have no expiry (maxmemory-policy {policy}), and with them a mark; set noeviction, or one of the "
            "volatile policies"
        )
    server.function_load(_native.REDIS_FENCE, replace=True)


def under(server: redis.Redis, guard: Exclusive, name: Optional[str] = None) -> Sealed:
    """Seals the key of this name with the guard's token, and returns the handle to read and write it, and keys with `{name}` in theirs.
    The key has the name of the lock unless another is given. Raises `palisade.fence.Stale` if a newer token has sealed it.
    """
    return Sealed(server, resource_of(guard, name), guard.token)


@dataclass(frozen=True)
class Settled:
    """The outcome of a write whose answer was lost."""

    is_applied: bool
    """Whether it was applied. If not, it never will be, however late it arrives."""
    outcome: Any = None
    """The answer that was lost."""


class Sealed:
    """Keys that were sealed with a token: they refuse older ones."""

    def __init__(self, server: redis.Redis, name: str, token: int) -> None:
        self._server = server
        self._name = name
        self._token = token
        # It tells a repeat from a write of another handle under the same token.
        self._author = secrets.randbelow(2**53)
        self._is_settled = True
        self._last = int(self._call("palisade_seal", [name], token))

    def read(self, command: str, *arguments: Argument, keys: Sequence[Key] = ()) -> Any:
        """Runs a command that changes nothing, on the key of this name unless others are given."""
        self._check()
        return self._call("palisade_read", keys or [self._name], self._token, command, *arguments)

    def write(self, command: str, *arguments: Argument, keys: Sequence[Key] = ()) -> Any:
        """Runs a command whose keys come first, on the key of this name unless others are given. It is applied once, however often it is
        delivered. If the answer is lost, it raises `Unavailable`, and every further access is refused until `settle` was called.
        """
        self._check()
        self._is_settled = False
        seq = self._last + 1
        try:
            answer = self._call(
                "palisade_write", keys or [self._name], self._token, seq, self._author, command, *arguments
            )
        except (Stale, NotSealed):
            self._is_settled = True
            raise
        except redis.ResponseError as error:
            if str(error).startswith("REJECTED "):
                # A copy of it that is still on its way could be accepted later: its number must not be used again.
                settled = self.settle()
                if settled is not None and settled.is_applied:
                    return settled.outcome
            elif str(error).startswith(("GAP ", "MISUSE ")):
                self._is_settled = True
            raise
        self._last, self._is_settled = seq, True
        return answer

    def settle(self) -> Optional[Settled]:
        """Finds out the outcome of a write whose answer was lost; None if there is no such write. Can be repeated."""
        if self._is_settled:
            return None
        seq = self._last + 1
        outcome: List[Any] = self._call("palisade_settle", [], self._token, seq, self._author)
        self._last, self._is_settled = seq, True
        return Settled(True, outcome[0]) if outcome else Settled(False)

    def _check(self) -> None:
        if not self._is_settled:
            raise Misuse("it is not yet known whether an earlier write was applied; call settle(), then read again")

    def _call(self, function: str, keys: Sequence[Key], *arguments: Argument) -> Any:
        mark = f"palisade:{{{self._name}}}"
        try:
            return self._server.fcall(function, len(keys) + 1, mark, *keys, *arguments)
        except (redis.ConnectionError, redis.TimeoutError) as error:
            raise Unavailable(
                f"the connection to redis broke: {error} (it may have taken effect)",
                operation=function,
                lock=self._name,
                is_retryable=True,
                may_have_taken_effect=True,
            ) from error
        except redis.ResponseError as error:
            code, _, detail = str(error).partition(" ")
            if code in ("STALE", "SUPERSEDED"):
                raise Stale(str(error), overtaken_by=int(detail.split(" ", 1)[0])) from error
            if code == "NOTSEALED":
                raise NotSealed(str(error)) from error
            if "unction not found" in str(error):
                raise not_installed("redis") from error
            raise
