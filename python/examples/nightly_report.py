"""A periodic task that runs once, however many workers start it, and writes one fenced row in PostgreSQL.

Every worker of a deployment (Celery beat, Django's management command in cron, a Kubernetes CronJob) starts this program. One of them gets the
lock and writes the report. The others see that it is taken and skip it, or find the report of this period. If the worker is paused so long
that another takes over, PostgreSQL refuses its late write.

    python nightly_report.py set-up postgres://owner@db/shop
    python nightly_report.py embedded:///var/lib/app/locks.db postgres://app@db/shop 2026-11-18

The first command is needed once: a migration, as a user who may create schemas.

`LOCKS` and `DATABASE` below are the settings of a Django or Celery application:

    @shared_task
    def nightly_report(day: str) -> str:
        return write_report(settings.LOCKS, settings.DATABASE, day)
"""

from __future__ import annotations

import sys

import psycopg

import palisade
from palisade.fence import postgres


def set_up(database: str) -> None:
    """What a migration does once: the table, the fence, and the trigger on the table."""
    with psycopg.connect(database) as connection:
        postgres.install(connection)
        connection.execute("CREATE TABLE IF NOT EXISTS reports (day date PRIMARY KEY, token bigint NOT NULL)")
        connection.commit()
        postgres.protect(connection, "reports")


def write_report(locks: str, database: str, day: str) -> str:
    """The task. A worker connects in its own process: after gunicorn or Celery has forked it."""
    with palisade.connect(locks, label=f"report of {day}") as client:
        guard = client.lock("reports").try_acquire()
        if not guard:
            return "skipped: another worker writes it"
        with guard, psycopg.connect(database) as connection:
            # Seals the table's mark with the token first. From then on an older holder is refused.
            with postgres.under(connection, guard):
                if connection.execute("SELECT FROM reports WHERE day = %s", (day,)).fetchone() is not None:
                    return "skipped: it is there already"
                connection.execute("INSERT INTO reports VALUES (%s, %s)", (day, guard.token))
            return "written"


if __name__ == "__main__":
    if sys.argv[1:2] == ["set-up"] and len(sys.argv) == 3:
        set_up(sys.argv[2])
    elif len(sys.argv) == 4:
        print(write_report(*sys.argv[1:4]))
    else:
        sys.exit("usage: python nightly_report.py set-up DATABASE | LOCKS DATABASE DAY")
