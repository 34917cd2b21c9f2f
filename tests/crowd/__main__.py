"""`PYTHONPATH=.:tests python -m crowd --sales 100000`, in virtual time; `--sockets 2000` over real ones."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time

from crowd import sockets, virtual


def main() -> int:
    """Run one crowd and say what differs from the truth; exit 1 if anything does."""
    parser = argparse.ArgumentParser(prog="crowd")
    parser.add_argument("--sales", type=int, default=100_000)
    parser.add_argument("--sockets", type=int, default=0, help="so many over real sockets instead")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    began = time.perf_counter()
    if options.sockets:
        result = asyncio.run(sockets.run(options.sockets, options.seed))
    else:
        result = virtual.run(options.sales, options.seed)
    print(f"{result} in {time.perf_counter() - began:.0f} s")
    return 1 if result.different else 0


if __name__ == "__main__":
    sys.exit(main())
