"""`python -m campaigns crashes|batches|hosts|power|forgets`: for as long as asked, and say what came of it."""

import argparse
import logging
import sys
import time
from collections.abc import Callable
from typing import Any

from campaigns import power, scenarios
from campaigns.harness import Report
from postgres_server import running_postgres


def _hosts(**options: Any) -> Report:
    with running_postgres() as server:
        return scenarios.hosts(server, **options)


#: Name -> what it runs, and its options with what they are unless given.
CAMPAIGNS: dict[str, tuple[Callable[..., Report], dict[str, int | float]]] = {
    "crashes": (scenarios.crashes, {"kills": 200, "stops": 100, "workers": 4}),
    "batches": (scenarios.batch, {"rows": 5000, "kills": 10, "faults": 0.05}),
    "hosts": (_hosts, {"kills": 200, "stops": 200, "rows": 300}),
    "power": (power.fail, {"images": 640, "weaker": 0}),
    "forgets": (scenarios.forgets, {}),
}


def main() -> int:
    """Exit code 1 where anything was charged twice, lost, said wrongly, or somebody was left asleep."""
    parser = argparse.ArgumentParser(prog="campaigns", description=__doc__)
    commands = parser.add_subparsers(dest="campaign", required=True)
    for name, (_, defaults) in CAMPAIGNS.items():
        command = commands.add_parser(name)
        for option, value in {**defaults, "seed": 0}.items():
            command.add_argument(f"--{option}", type=type(value), default=value)
    options = vars(parser.parse_args())
    carry_out, _ = CAMPAIGNS[options.pop("campaign")]
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    logging.getLogger("payclient").setLevel(logging.CRITICAL)
    began = time.monotonic()
    report = carry_out(**options)
    print(f"{time.monotonic() - began:.0f} s:", report, *report.violations[:20], sep="\n")
    return 1 if report.violations else 0


if __name__ == "__main__":
    sys.exit(main())
