"""Engines for the tests. `cargo test -p palisade-testbench --test python` starts the servers and runs pytest."""

from __future__ import annotations

import faulthandler
import itertools
import os
import time
from pathlib import Path
from typing import Callable, Iterator, TypeVar

import pytest

import palisade

T = TypeVar("T")

BOUND = 120.0
"""Nothing that works takes this long."""

_names = itertools.count()


def variable(name: str) -> str:
    try:
        return os.environ[name]
    except KeyError:
        pytest.fail(
            f"{name} is not set: run `cargo test -p palisade-testbench --test python`, which starts the servers"
        )


@pytest.fixture(autouse=True)
def bound() -> Iterator[None]:
    """Ends pytest with the stacks of all threads if a test hangs."""
    faulthandler.dump_traceback_later(BOUND, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


ENGINES = ["embedded", "service", "postgres", "redis"]


def engine_url(engine: str, folder: Path) -> str:
    if engine == "embedded":
        return f"embedded://{folder}/locks.db"
    return variable(f"PALISADE_TEST_{engine.upper()}")


@pytest.fixture(params=ENGINES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of each engine."""
    return engine_url(request.param, tmp_path)


@pytest.fixture
def client(url: str) -> Iterator[palisade.Client]:
    with palisade.connect(url, label="first") as client:
        yield client


@pytest.fixture
def other(url: str) -> Iterator[palisade.Client]:
    with palisade.connect(url, label="second") as client:
        yield client


@pytest.fixture
def name() -> str:
    """A lock that no other test uses."""
    return f"python/{os.getpid()}/{next(_names)}"


def until(condition: Callable[[], T]) -> T:
    """Waits until a condition is true."""
    deadline = time.monotonic() + BOUND / 2
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, "it did not become true in time"
        time.sleep(0.01)


def waiting(client: palisade.Client, name: str) -> int:
    """How many requests wait for a lock."""
    lock = client.inspect(name)
    return 0 if lock is None else len(lock.waiters)


def held(client: palisade.Client, name: str) -> int:
    """How many grants a lock has."""
    lock = client.inspect(name)
    return 0 if lock is None else len(lock.holders)
