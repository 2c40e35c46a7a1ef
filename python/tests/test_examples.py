"""The examples, the page and the types."""

from __future__ import annotations

import doctest
import importlib
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict

import psycopg
import pytest
import redis

from conftest import BOUND, variable

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"


def test_one_of_many_workers_writes_the_report(tmp_path: Path) -> None:
    database = variable("PALISADE_TEST_POSTGRES")
    sys.path.insert(0, str(EXAMPLES))
    try:
        example = importlib.import_module("nightly_report")
    finally:
        sys.path.remove(str(EXAMPLES))
    example.set_up(database)
    arguments = [f"embedded://{tmp_path}/locks.db", database, "2026-11-18"]
    command = [sys.executable, str(EXAMPLES / "nightly_report.py"), *arguments]
    workers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(6)]
    results = [worker.communicate(timeout=BOUND / 2)[0].strip() for worker in workers]
    assert all(worker.returncode == 0 for worker in workers)
    assert results.count("written") == 1 and all(result == "written" or "skipped" in result for result in results)
    assert example.write_report(*arguments) == "skipped: it is there already"
    with psycopg.connect(database) as connection:
        assert connection.execute("SELECT count(*) FROM reports WHERE day = '2026-11-18'").fetchone() == (1,)


def test_a_leader_leads() -> None:
    command = [sys.executable, str(EXAMPLES / "leader.py"), "memory:", "10.0.0.1:8000"]
    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout == "leads with token 1\n"


def test_the_examples_in_docstrings_are_true() -> None:
    names = ["palisade", "palisade.aio", "palisade._client", "palisade._shared", "palisade._types"]
    results = [doctest.testmod(importlib.import_module(name)) for name in names]
    assert all(result.failed == 0 and result.attempted > 0 for result in results)


def test_the_examples_on_the_page_are_true(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "README.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(blocks) > 5
    # The page shows the default file of the host, which tests leave alone.
    url = f"embedded://{tmp_path}/locks.db"
    monkeypatch.setenv("PALISADE_URL", url)
    names: Dict[str, Any] = {"__name__": "page", "DATABASE": variable("PALISADE_TEST_POSTGRES")}
    names["SERVICE"] = variable("PALISADE_TEST_SERVICE")
    with psycopg.connect(variable("PALISADE_TEST_POSTGRES"), autocommit=True) as connection:
        connection.execute("DROP TABLE IF EXISTS orders")
        connection.execute("CREATE TABLE orders (id int PRIMARY KEY, total int NOT NULL)")
    names["server"] = redis.Redis.from_url(variable("PALISADE_TEST_REDIS"), decode_responses=True)
    for block in blocks:
        exec(compile(block.replace('"embedded:"', repr(url)), "README.md", "exec"), names)


def test_everything_is_typed() -> None:
    environment = {**os.environ, "MYPYPATH": str(ROOT / "tests")}
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", os.devnull]
    for what in (["-p", "palisade"], ["examples", "tests"]):
        checked = subprocess.run([*command, *what], capture_output=True, text=True, env=environment, cwd=ROOT)
        assert checked.returncode == 0, checked.stdout


def test_the_stub_matches_the_extension() -> None:
    command = [sys.executable, "-m", "mypy.stubtest", "--ignore-disjoint-bases", "palisade._native"]
    checked = subprocess.run(command, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout
