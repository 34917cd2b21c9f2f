"""`python -m crashes`: kill and stop for as long as asked, and say what came of it."""

import argparse
import sys
import time

from .harness import crash


def main() -> int:
    """Exit code 1 where anything was charged twice, lost, or said wrongly."""
    parser = argparse.ArgumentParser(prog="crashes", description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--stops", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=4)
    options = parser.parse_args()
    began = time.monotonic()
    report = crash(
        kills=options.kills,
        stops=options.stops,
        seed=options.seed,
        workers=options.workers,
        say=lambda line: print(f"\r{line}", end="", file=sys.stderr, flush=True),
    )
    print(file=sys.stderr)
    for place, times in sorted(report.places.items()):
        print(f"{times:5} {place}")
    said = ", ".join(f"{times} {word}" for word, times in sorted(report.said.items()))
    print(f"attempts that created nothing: {said or 'none'}")
    print(
        f"{report.charges} charges in {report.campaigns} campaigns and {report.runs} runs, {report.kills} kills, "
        f"{report.stops} stops, {time.monotonic() - began:.0f} s: {len(report.violations)} violations"
    )
    for violation in report.violations[:20]:
        print(violation)
    return 1 if report.violations else 0


if __name__ == "__main__":
    sys.exit(main())
