"""Run many worlds: `python -m worlds --worlds 100000 --seed 0`. Exits 1, with the seed, at a broken promise."""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial

from worlds.settings import KINDS
from worlds.variants import VARIANTS, broken
from worlds.world import Result, run, stopped_everywhere


def _one(variant: str | None, kinds: Sequence[str], seed: int) -> Result:
    with broken(variant) if variant else nullcontext():
        return run(seed, kinds)


def _violation(variant: str | None, kinds: Sequence[str], seed: int) -> tuple[int, int, str | None]:
    """The seed, its POSTs and its first violation: more is not worth carrying to another process."""
    result = _one(variant, kinds, seed)
    return seed, result.posts, result.violations[0] if result.violations else None


def _first_seen(seeds: range, name: str) -> int | None:
    kinds = [*VARIANTS[name].kinds]
    with broken(name):
        return next((seed for seed in seeds if run(seed, kinds).violations), None)


def main() -> int:
    """Run the worlds of the seeds S to S + N - 1."""
    parser = argparse.ArgumentParser(prog="python -m worlds", description=__doc__)
    option = parser.add_argument
    option("--worlds", type=int, default=1000, metavar="N", help="how many (1000)")
    option("--seed", type=int, default=0, metavar="S", help="the first one's seed (0)")
    option("--jobs", type=int, default=1, metavar="J", help="processes (1)")
    option("--variant", choices=sorted(VARIANTS), help="break the shipped code in this way")
    option("--kind", choices=KINDS, action="append", default=[], help="worlds of this kind only")
    option("--story", action="store_true", help="print what happens in the world of --seed")
    option("--variants", action="store_true", help="which seed sees each variant, among --worlds of them")
    option("--awaits", action="store_true", help="stop the world of --seed before each of its steps")
    given = parser.parse_args()
    seeds, say = range(given.seed, given.seed + given.worlds), partial(print, flush=True)
    if given.story:
        result = _one(given.variant, given.kind, given.seed)
        say("\n".join(result.story))
        return bool(result.violations)
    if given.awaits:
        stopped = [each for crash in (1.0, 0.0) for each in stopped_everywhere(given.seed, crash)]
        wrong = [each.violations[0] for each in stopped if each.violations]
        say("\n".join([f"{len(stopped)} stops, {len(wrong)} broken", *wrong[:5]]))
        return bool(wrong)
    with multiprocessing.Pool(given.jobs) as pool:
        if given.variants:
            found = pool.map(partial(_first_seen, seeds), VARIANTS, chunksize=1)
            for name, first in zip(VARIANTS, found, strict=True):
                say(f"{name}: {'NOT SEEN' if first is None else f'seed {first}'}")
            return None in found
        began, failed, posts, count = time.perf_counter(), 0, 0, 0
        for seed, sent, wrong_at in pool.imap(
            partial(_violation, given.variant, given.kind), seeds, chunksize=20
        ):
            count, posts = count + 1, posts + sent
            if wrong_at is not None:
                failed += 1
                say(f"seed {seed}: {wrong_at}")
                if failed == 1:
                    extra = f" --variant '{given.variant}'" if given.variant else ""
                    extra += "".join(f" --kind '{kind}'" for kind in given.kind)
                    say(f"again: PYTHONPATH=.:tests python -m worlds --seed {seed} --story{extra}")
            elif count % 10_000 == 0:
                say(f"{count} worlds")
    minutes = (time.perf_counter() - began) / 60
    say(f"{count} worlds, {posts} POSTs, {failed} broken; {count / minutes:,.0f} worlds a minute")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
