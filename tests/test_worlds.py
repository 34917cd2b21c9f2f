"""The simulation in short: worlds keep the promises, a seed repeats exactly, and broken code is seen.

Long: `PYTHONPATH=.:tests python -m worlds --worlds 100000 --seed 0 --jobs 4`, then with `--variants`, `--awaits`.
"""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from worlds.settings import KINDS
from worlds.variants import VARIANTS, broken
from worlds.world import Result, run, stopped_everywhere

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


def test_purchases_are_collected_once() -> None:
    """By push and by form, several at a time, paid late, given back and reversed; in forty worlds all of it happens."""
    results = [run(seed, {"purchases"}) for seed in range(40)]
    assert not _failures(results)
    story = "\n".join(line for result in results for line in result.story)
    for happening in (
        "a customer has the form", "is Aceptado as", "is Cancelado as", "raised AlreadyPaidError",
        "raised PurchaseOpenError", "service confirmed", "gave back", ": by the portal", ": asked for",
        "reversing (permit)", "reversed (answer)", "reversed (query)", "cancelled (unpaid)",
    ):  # fmt: skip
        assert happening in story, happening


@pytest.mark.parametrize("crash", [1.0, 0.0], ids=["crash", "pause"])
def test_a_crash_or_a_long_pause_at_an_await(crash: float) -> None:
    """One process and its sale, stopped before some of its steps in turn; `--awaits` stops it before each."""
    results = stopped_everywhere(3, crash, every=3)
    assert len(results) > 50
    assert not _failures(results)


def test_a_seed_repeats_exactly() -> None:
    """Also in another process, with other hashes and after other worlds."""
    environment = os.environ | {"PYTHONHASHSEED": "7", "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"}
    there = subprocess.run(
        [sys.executable, "-m", "worlds", "--seed", "21", "--story"],
        capture_output=True, text=True, check=True, env=environment, timeout=60,
    )  # fmt: skip
    assert there.stdout.splitlines() == list(run(21).story) == list(world(21).story)


@pytest.mark.parametrize("name", VARIANTS)
def test_a_variant_takes_what_the_shipped_function_takes(name: str) -> None:
    """Or it breaks the call instead of the promise, and is seen for that."""
    for owner, attribute, broken_one in VARIANTS[name].patches():
        if inspect.isfunction(broken_one):
            shipped, parameters = inspect.signature(getattr(owner, attribute)), inspect.signature(broken_one)
            takes = [it.name for it in parameters.parameters.values() if it.kind is it.POSITIONAL_OR_KEYWORD]
            assert takes == list(shipped.parameters)[: len(takes)]
            if not any(one.kind is one.VAR_POSITIONAL for one in parameters.parameters.values()):
                needed = [one.name for one in shipped.parameters.values() if one.default is one.empty]
                assert {*needed} <= {*parameters.parameters}


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("no permit", 0), ("resend after crash", 45), ("expiry says unpaid", 0), ("guard outside the permit", 0),
        ("forms are forgotten", 461), ("an earlier attempt decides", 343),
    ],
)  # fmt: skip
def test_broken_code_is_seen(name: str, first: int) -> None:
    """By a seed in which the shipped code keeps its promises; `--variants` tries every one of `VARIANTS`.

    `first`: of those seeds, to save the time of many that see nothing.
    """
    kinds = VARIANTS[name].kinds
    with broken(name):
        seed = next((seed for seed in range(first, first + 400) if run(seed, kinds).violations), None)
    assert seed is not None
    assert not run(seed, kinds).violations
