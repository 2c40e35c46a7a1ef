"""The documented use of redlock-py: PORT [tokens]. With `tokens` the server gives each holder its fencing token."""

import sys

import redis
from redlock import Redlock

port, has_tokens = int(sys.argv[1]), sys.argv[2:] == ["tokens"]
server = redis.Redis(port=port)


def token(lock):
    return server.execute_command("LOCK", "TOKEN", lock.resource, lock.key)


locks = Redlock([{"host": "127.0.0.1", "port": port, "db": 0}], retry_count=1, retry_delay=0.01)

first = locks.lock("redlock-py", 60_000)
assert first and first.validity <= 60_000, first
first_token = token(first) if has_tokens else 0
assert locks.lock("redlock-py", 60_000) is False, "a held lock was granted"
locks.unlock(first)

second = locks.lock("redlock-py", 60_000)
assert second and second.key != first.key, second
# The value of an earlier holder releases nothing.
locks.unlock(first)
assert server.get("redlock-py") == second.key
if has_tokens:
    assert token(second) > first_token, (first_token, token(second))
locks.unlock(second)
assert server.get("redlock-py") is None

# Redis frees a lock at the end of its time. The client repeats a request whose grant came later than that.
patient = Redlock([f"redis://127.0.0.1:{port}/0"], retry_count=3_000, retry_delay=0.02)
assert patient.lock("redlock-py-short", 500)
patient.unlock(patient.lock("redlock-py-short", 60_000))
