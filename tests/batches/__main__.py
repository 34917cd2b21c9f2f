"""`python -m batches`: charge a file through faults and kills, and say what came of it."""

import argparse
import sys
import time

from .harness import carry_out


def main() -> int:
    """Exit code 1 where a row was charged twice, is not decided, or is said to be what it is not."""
    parser = argparse.ArgumentParser(prog="batches", description=__doc__)
    parser.add_argument("--rows", type=int, default=5000)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--faults", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    began = time.monotonic()
    report = carry_out(
        rows=options.rows,
        kills=options.kills,
        faults=options.faults,
        seed=options.seed,
        say=lambda line: print(line, file=sys.stderr, flush=True),
    )
    for name, counts in (("faults", report.faults), ("outcomes", report.outcomes)):
        print(f"{name}: " + ", ".join(f"{times} {word}" for word, times in sorted(counts.items())))
    print(
        f"{options.rows} rows in {report.runs} runs, {report.kills} kills, {time.monotonic() - began:.0f} s: "
        f"{len(report.violations)} violations"
    )
    for violation in report.violations[:20]:
        print(violation)
    return 1 if report.violations else 0


if __name__ == "__main__":
    sys.exit(main())
