"""Run many worlds: `python -m worlds --worlds 100000 --seed 0`. Exits 1, with the seed, at a broken promise."""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial

from worlds.awaits import stopped_everywhere
from worlds.settings import KINDS
from worlds.variants import VARIANTS, broken
from worlds.world import Result, run


def _one(variant: str | None, kinds: Sequence[str], seed: int) -> Result:
    with broken(variant) if variant else nullcontext():
        result = run(seed, kinds)
    # Only what failed is worth carrying to another process.
    return result if result.violations else Result(seed=seed, violations=(), story=(), posts=result.posts)


def _first_seen(seeds: range, name: str) -> int | None:
    kinds = VARIANTS[name].kinds
    with broken(name):
        return next((seed for seed in seeds if run(seed, kinds).violations), None)


def _try_variants(seeds: range, jobs: int, say: Callable[[str], None]) -> int:
    """Say for each variant which seed sees it first; exit 1 if any is not seen."""
    with multiprocessing.Pool(jobs) as pool:
        found = pool.map(partial(_first_seen, seeds), VARIANTS, chunksize=1)
    for name, seed in zip(VARIANTS, found, strict=True):
        say(f"{name}: {'NOT SEEN' if seed is None else f'seed {seed}'}")
    return None in found


def main() -> int:
    """Run the worlds of the seeds S to S + N - 1."""
    parser = argparse.ArgumentParser(prog="python -m worlds", description=__doc__)
    parser.add_argument("--worlds", type=int, default=1000, metavar="N", help="how many (1000)")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="the first one's seed (0)")
    parser.add_argument("--jobs", type=int, default=1, metavar="J", help="processes (1)")
    parser.add_argument("--variant", choices=sorted(VARIANTS), help="break the shipped code in this way")
    parser.add_argument("--kind", choices=KINDS, action="append", default=[], help="worlds of this kind only")
    parser.add_argument("--story", action="store_true", help="print what happens in the world of --seed")
    parser.add_argument(
        "--variants", action="store_true", help="which seed sees each variant, among --worlds of them"
    )
    parser.add_argument(
        "--awaits", action="store_true", help="stop the world of --seed before each of its steps"
    )
    arguments = parser.parse_args()
    say = partial(print, flush=True)
    if arguments.variants:
        return _try_variants(range(arguments.seed, arguments.seed + arguments.worlds), arguments.jobs, say)
    if arguments.awaits:
        stopped = [each for crash in (1.0, 0.0) for each in stopped_everywhere(arguments.seed, crash)]
        wrong = [each.violations[0] for each in stopped if each.violations]
        say("\n".join([f"{len(stopped)} stops, {len(wrong)} broken", *wrong[:5]]))
        return bool(wrong)
    if arguments.story:
        with broken(arguments.variant) if arguments.variant else nullcontext():
            result = run(arguments.seed, arguments.kind)
        say("\n".join(result.story))
        return bool(result.violations)
    began, failed, posts, count = time.perf_counter(), 0, 0, 0
    seeds = range(arguments.seed, arguments.seed + arguments.worlds)
    with multiprocessing.Pool(arguments.jobs) as pool:
        for result in pool.imap(partial(_one, arguments.variant, arguments.kind), seeds, chunksize=20):
            count += 1
            posts += result.posts
            if result.violations:
                failed += 1
                say(f"seed {result.seed}: {result.violations[0]}")
                if failed == 1:
                    extra = f" --variant '{arguments.variant}'" if arguments.variant else ""
                    extra += "".join(f" --kind '{kind}'" for kind in arguments.kind)
                    say(f"again: PYTHONPATH=.:tests python -m worlds --seed {result.seed} --story{extra}")
            elif count % 10_000 == 0:
                say(f"{count} worlds")
    minutes = (time.perf_counter() - began) / 60
    say(f"{count} worlds, {posts} POSTs, {failed} broken; {count / minutes:,.0f} worlds a minute")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
