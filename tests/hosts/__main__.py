"""`python -m hosts`: several hosts charge one file, are killed and stopped; say what came of it."""

import argparse
import asyncio
import sys
import time

from postgres_server import PostgresServer, _binaries

from .harness import HOSTS, batches


def main() -> int:
    """Exit code 1 where anything was charged twice, lost, said wrongly, or somebody was left asleep."""
    parser = argparse.ArgumentParser(prog="hosts", description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--stops", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    binaries = _binaries()
    if binaries is None:
        raise SystemExit("no PostgreSQL on this machine (the package is called postgresql)")
    server, began = PostgresServer(binaries), time.monotonic()
    try:
        server.start()
        report = asyncio.run(
            batches(
                server,
                kills=options.kills,
                stops=options.stops,
                seed=options.seed,
                say=lambda line: print(f"\r{line}", end="", file=sys.stderr, flush=True),
            )
        )
    finally:
        server.remove()
    print(file=sys.stderr)
    for name, counts in (("exit codes", report.codes), ("faults", report.faults), ("ends", report.states)):
        print(f"{name}: {', '.join(f'{count} {word}' for word, count in sorted(counts.items()))}")
    print(
        f"{report.rows} charges in {report.batches} batches on {HOSTS} hosts, {report.runs} runs, "
        f"{report.posted} created; {report.kills} kills, {report.stops} stops, {report.cuts} connections cut, "
        f"{report.restarts} restarts of the server, {time.monotonic() - began:.0f} s: "
        f"{len(report.violations)} violations"
    )
    for violation in report.violations[:20]:
        print(violation)
    return 1 if report.violations else 0


if __name__ == "__main__":
    sys.exit(main())
