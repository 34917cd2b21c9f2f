"""What a ledger of millions of attempts costs beside a small one: permit, find, feed, list, recovery, and its size.

python benchmarks/bench_growth.py [--dir DIRECTORY_ON_A_REAL_DISK] [--sizes SIZE ...]

The ledgers are filled by SQL, past their guards. Each time is the median in milliseconds, then its ratio to the first
size's; what stays flat has a ratio near 1. Of each size 1,000 attempts are open, which is what recovery reads.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import shutil
import sqlite3
import tempfile
from contextlib import closing
from itertools import count

import asyncpg

from _measure import NOW, p50, record_of
from payclient.ledger import Ledger, open_ledger
from postgres_server import running_postgres

OPEN = 1000

#: How each kind of database says what stands in braces below; PostgreSQL's rows have an owner and a holder.
_WORDS = {
    "sqlite": {
        "numbers": "(WITH RECURSIVE n(i) AS (SELECT {a} UNION ALL SELECT i + 1 FROM n WHERE i + 1 < {b}) "
        "SELECT i FROM n)",
        "bytes": "randomblob(16)", "false": "0", "own": "", "values": "", "held": "", "when": "",
    },
    "postgres": {
        "numbers": "generate_series({a}, {b} - 1) AS n(i)", "bytes": "decode(md5(random()::text), 'hex')",
        "false": "false", "own": ", owner, ask", "values": ", 1, 1", "held": ", holder, due",
        "when": ", 1, clock_timestamp() + interval '1 day'",
    },
}  # fmt: skip

_FILL = (
    """INSERT INTO attempts (id, client_transaction_id, attempt, kind, digest, lane, credentials, amount, currency,
        created_at, purchase, beside_open_form{own})
    SELECT 3 * i + 1, 'order-' || i, 1, 'sale', {bytes}, {bytes}, {bytes}, 1150, 'USD', {now} + i, 'order-' || i,
        {false}{values} FROM {numbers}""",
    """INSERT INTO changes (cursor, attempt_id, version, at, event, evidence, detail, before, after, state_evidence,
        transaction_id, expires_at)
    SELECT 3 * i + 2, 3 * i + 1, 1, {now} + i, 'Created', 'answer',
        '{{"transaction_id": ' || (i + 1) || ', "expires_at": 1700000300.0}}', 'sending', 'pending', 'answer', i + 1,
        {now} + i + 300 FROM {numbers}""",
    """INSERT INTO changes (cursor, attempt_id, version, at, event, evidence, before, after, state_evidence,
        transaction_id, expires_at, decided_at)
    SELECT 3 * i + 3, 3 * i + 1, 2, {now} + i + 25, 'FoundAccepted', 'query', 'pending', 'accepted', 'query', i + 1,
        {now} + i + 300, {now} + i + 25 FROM {numbers} WHERE i >= {open}""",
    "INSERT INTO open_attempts (attempt_id{held}) SELECT 3 * i + 1{when} FROM {numbers} WHERE i < {open}",
)


def statements(kind: str, first: int, last: int) -> list[str]:
    words = _WORDS[kind] | {"numbers": _WORDS[kind]["numbers"].format(a=first, b=last)}
    return [sql.format(open=OPEN, now=NOW, **words) for sql in _FILL]


def fill_sqlite(path: str, size: int) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as file:
        guards = file.execute("SELECT name, sql FROM sqlite_schema WHERE type = 'trigger'").fetchall()
        file.execute("PRAGMA synchronous = OFF")
        for name, _ in guards:
            file.execute(f"DROP TRIGGER {name}")
        for first in range(0, size, 500_000):
            file.execute("BEGIN")
            for sql in statements("sqlite", first, min(first + 500_000, size)):
                file.execute(sql)
            file.execute("COMMIT")
        for _, sql in guards:
            file.execute(sql)
        file.execute("PRAGMA wal_checkpoint(TRUNCATE)")


async def fill_postgres(url: str, size: int) -> None:
    connection = await asyncpg.connect(url, server_settings={"search_path": "payclient"})
    await connection.execute("SET session_replication_role = replica; SET synchronous_commit = off")
    for first in range(0, size, 200_000):
        for sql in statements("postgres", first, min(first + 200_000, size)):
            await connection.execute(sql)
    await connection.execute(f"SELECT setval('cursors', {3 * size + 1})")
    await connection.execute("VACUUM ANALYZE")
    await connection.close()


async def measure(url: str, size: int) -> dict[str, float]:
    chance, numbers = random.Random(size), count()  # noqa: S311 - no secret
    found: dict[str, float] = {}

    async def recover(_: int) -> None:
        ledger = await open_ledger(url)
        records = [record async for record in ledger.unfinished()]
        if len(records) < OPEN:
            raise SystemExit(f"{len(records)} of {OPEN} were found")
        await ledger.aclose()

    found["recovery of 1,000 open"] = await p50(recover, 5)
    ledger: Ledger = await open_ledger(url)

    async def permit(_: int) -> None:
        if not await ledger.permit(record_of(f"new-{next(numbers)}")):
            raise SystemExit("no permit")

    async def find(_: int) -> None:
        if await ledger.get(f"order-{chance.randrange(size)}") is None:
            raise SystemExit("not found")

    async def feed(_: int) -> None:
        changes = await ledger.changes(chance.randrange(3 * OPEN, size * 3 // 2))
        if len(changes) != 500:
            raise SystemExit(f"a page of {len(changes)}")

    async def listed(_: int) -> None:
        number = 0
        async for _record in ledger.records():
            number += 1
            if number == 1000:
                break

    await p50(permit, 50)
    found["permit, one at a time"] = await p50(permit, 400)
    found["find"] = await p50(find, 400)
    found["feed, 500 from an old cursor"] = await p50(feed, 50)
    found["list, 1,000 records"] = await p50(listed, 10)
    await ledger.aclose()
    return found


def show(kind: str, size: int, found: dict[str, float], first: dict[str, float], space: float) -> None:
    print(f"{kind}, {size:,} attempts, {space / size:,.0f} bytes each:", flush=True)
    for name, figure in found.items():
        print(f"  {figure * 1000:9.3f} ms  {figure / first[name]:6.2f}x  {name}", flush=True)


async def sqlite(directory: str, sizes: list[int]) -> None:
    first: dict[str, float] = {}
    for size in sizes:
        path = os.path.join(directory, f"{size}.db")
        if shutil.disk_usage(directory).free < size * 2500:
            print(f"sqlite, {size:,} attempts: the disk is short of room, not measured")
            continue
        await (await open_ledger(f"sqlite:{path}")).aclose()
        await asyncio.to_thread(fill_sqlite, path, size)
        found = await measure(f"sqlite:{path}", size)
        first = first or found
        space = os.path.getsize(path)  # noqa: ASYNC240 - a benchmark
        show("SQLite", size, found, first, space)
        os.unlink(path)


async def postgres(sizes: list[int]) -> None:
    first: dict[str, float] = {}
    with running_postgres() as server:
        for size in sizes:
            database = await server.database()
            url = server.url(database)
            await (await open_ledger(url)).aclose()
            await fill_postgres(url, size)
            found = await measure(url, size)
            first = first or found
            space = await server.execute(database, "SELECT pg_database_size(current_database())")
            show("PostgreSQL", size, found, first, space[0][0])
            await server.execute("postgres", f"DROP DATABASE {database}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--dir", default=".", help="a directory on the disk to measure")
    parser.add_argument("--sizes", type=int, nargs="+", default=[10_000, 1_000_000, 5_000_000])
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.dir) as directory:
        asyncio.run(sqlite(directory, given.sizes))
        asyncio.run(postgres(given.sizes))


if __name__ == "__main__":
    main()
