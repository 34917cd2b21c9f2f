"""The simulation in short: worlds keep the promises, a seed repeats exactly, and broken code is seen.

Long: `PYTHONPATH=.:tests python -m worlds --worlds 100000 --seed 0 --jobs 4`, then with `--variants`, `--awaits`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from worlds.awaits import stopped_everywhere
from worlds.settings import KINDS
from worlds.variants import VARIANTS, broken
from worlds.world import Result, run

ROOT = Path(__file__).parent.parent

#: Worlds that are looked at more than once, each as its seed alone makes it.
world = cache(run)


def _failures(results: list[Result]) -> list[str]:
    return [f"seed {result.seed}: {result.violations[0]}" for result in results if result.violations]


def test_worlds_keep_the_promises() -> None:
    """No second charge, no wrong word, nothing lost, every wait ended; in worlds of all kinds."""
    assert not _failures([world(seed) for seed in range(100)])
    for kind in KINDS:
        assert not _failures([run(seed, {kind}) for seed in range(1)]), kind


def test_the_worlds_hold_what_they_should() -> None:
    """In a hundred of them everything that may go wrong does."""
    story = "\n".join(line for seed in range(100) for line in world(seed).story)
    for happening in (
        "crashes at step", "stops for", "is suspended", "wall clock is off", "the disk fails before",
        "the disk fails after", "operator says DecidedAccepted", "operator says DecidedRefused",
        "unknown (recovery)", "unknown (no answer)", "refused (absent)", "refused (not sent)",
        "refused (answer)", "expired (clock)", ": early", ": duplicate", ": conflict", ": late", ": unmatched",
        "raised DifferentRequestError", "raised NotSentError", "raised LedgerUnavailableError", "/2 sending",
    ):  # fmt: skip
        assert happening in story, happening


@pytest.mark.parametrize("crash", [1.0, 0.0], ids=["crash", "pause"])
def test_a_crash_or_a_long_pause_at_an_await(crash: float) -> None:
    """One process and its sale, stopped before some of its steps in turn; `--awaits` stops it before each."""
    results = stopped_everywhere(3, crash, every=30)
    assert len(results) > 5
    assert not _failures(results)


def test_a_seed_repeats_exactly() -> None:
    """Also in another process, with other hashes and after other worlds."""
    environment = os.environ | {"PYTHONHASHSEED": "7", "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"}
    there = subprocess.run(
        [sys.executable, "-m", "worlds", "--seed", "21", "--story"],
        capture_output=True, text=True, check=True, env=environment, timeout=60,
    )  # fmt: skip
    assert there.stdout.splitlines() == list(run(21).story) == list(world(21).story)


@pytest.mark.parametrize("name", ["no permit", "resend after crash", "expiry says unpaid"])
def test_broken_code_is_seen(name: str) -> None:
    """By a seed in which the shipped code keeps its promises; `--variants` tries every one of `VARIANTS`."""
    kinds = VARIANTS[name].kinds
    with broken(name):
        seed = next((seed for seed in range(300) if run(seed, kinds).violations), None)
    assert seed is not None
    assert not run(seed, kinds).violations
