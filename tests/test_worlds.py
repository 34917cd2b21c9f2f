"""The simulation in short: worlds keep the promises, a seed repeats exactly, and broken code is seen.

Long: `PYTHONPATH=.:tests python -m worlds --worlds 100000 --seed 0 --jobs 4`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from worlds.variants import VARIANTS, broken
from worlds.world import Result, run

#: Faults that are switched off where a test wants its own ones only.
_QUIET = dict.fromkeys(
    (
        "no_connection", "dead_connection", "slow", "drop_request", "duplicate_request", "late",
        "drop_answer", "mangle_answer", "refuse", "query_fault", "odd_word", "hot", "jump", "disk_fault",
        "operator", "forge",
    ),
    0.0,
)  # fmt: skip


#: Worlds that are looked at more than once, each as its seed alone makes it.
world = cache(run)


def _failures(results: list[Result]) -> list[str]:
    return [f"seed {result.seed}: {result.violations[0]}" for result in results if result.violations]


@pytest.mark.parametrize("first", range(0, 1000, 250))
def test_worlds_keep_the_promises(first: int) -> None:
    """No second charge, no wrong word, nothing lost, every wait ended."""
    assert not _failures([world(seed) for seed in range(first, first + 250)])


def test_the_worlds_hold_what_they_should() -> None:
    """In a few hundred of them everything that may go wrong does."""
    story = "\n".join(line for seed in range(200) for line in world(seed).story)
    for happening in (
        "crashes at step", "stops for", "is suspended", "wall clock is off", "the disk fails before",
        "the disk fails after", "operator says DecidedAccepted", "operator says DecidedRefused",
        "unknown (recovery)", "unknown (no answer)", "refused (absent)", "refused (not sent)",
        "refused (answer)", "expired (clock)", ": early", ": duplicate", ": conflict", ": late", ": unmatched",
        "raised DifferentRequestError", "raised NotSentError", "raised LedgerUnavailableError", "/2 sending",
    ):  # fmt: skip
        assert happening in story, happening


@pytest.mark.parametrize("crash", [1.0, 0.0], ids=["crash", "pause"])
def test_a_crash_or_a_long_pause_at_every_await(crash: float) -> None:
    """One process and its sales, stopped before each of its steps in turn."""
    results = []
    for seed in (3, 11, 14):
        for step in range(1, 1000):
            changes = {"workers": 1, "incidents": 1, "crash": crash, "first_incident": step, "orders": 2}
            results.append(run(seed, **(_QUIET | changes)))
            if not any("crashes at" in line or "goes on" in line for line in _before_calm(results[-1])):
                break  # it has no more steps than that
        assert step > 100
    assert not _failures(results)


def _before_calm(result: Result) -> list[str]:
    calm = next(number for number, line in enumerate(result.story) if line.endswith(" calm"))
    return list(result.story[: calm + 3])


def test_a_seed_repeats_exactly() -> None:
    """Also in another process, with other hashes and after other worlds."""
    seeds = range(20, 32)
    stories = ["\n".join(run(seed).story) for seed in seeds]
    program = "import sys\nfrom worlds.world import run\nprint('\\n'.join(run(int(sys.argv[1])).story))"
    root = Path(__file__).parent.parent
    for seed, story in list(zip(seeds, stories, strict=True))[::4]:
        environment = os.environ | {"PYTHONHASHSEED": "7", "PYTHONPATH": f"{root}:{root / 'tests'}"}
        there = subprocess.run(
            [sys.executable, "-c", program, str(seed)],
            capture_output=True, text=True, check=True, env=environment, timeout=60,
        )  # fmt: skip
        assert there.stdout == story + "\n"
    assert ["\n".join(run(seed).story) for seed in seeds] == stories


@pytest.mark.parametrize("name", VARIANTS)
def test_broken_code_is_seen(name: str) -> None:
    """Within 1,000 seeds, by one in which the shipped code keeps its promises."""
    with broken(name):
        seed = next((seed for seed in range(1000) if run(seed).violations), None)
    assert seed is not None
    assert not run(seed).violations


def test_the_command_prints_a_failing_seed() -> None:
    """And how to see it again; without one it says how many worlds were well."""
    root = Path(__file__).parent.parent
    environment = os.environ | {"PYTHONPATH": f"{root}:{root / 'tests'}"}

    def command(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "worlds", *arguments],
            capture_output=True, text=True, check=False, env=environment, timeout=60,
        )  # fmt: skip

    good, bad = command("--worlds", "20"), command("--worlds", "1", "--seed", "5", "--variant", "no permit")
    assert (good.returncode, bad.returncode) == (0, 1)
    assert "20 worlds" in good.stdout
    assert "seed 5: " in bad.stdout
    assert "--seed 5 --story --variant 'no permit'" in bad.stdout
