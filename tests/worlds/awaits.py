"""One process, stopped before each of its steps in turn: by a crash, or for longer than any time-out."""

from __future__ import annotations

from typing import Any

from worlds.world import Result, run

__all__ = ["stopped_everywhere"]

#: Faults that are switched off, so that the stop is the only one.
_QUIET = dict.fromkeys(
    (
        "no_connection", "dead_connection", "slow", "drop_request", "duplicate_request", "late",
        "drop_answer", "mangle_answer", "refuse", "query_fault", "odd_word", "hot", "jump", "disk_fault",
        "operator", "forge", "repeat", "named", "lag", "shed", "hang", "outage",
    ),
    0.0,
)  # fmt: skip


def stopped_everywhere(seed: int, crash: float, *, every: int = 1) -> list[Result]:
    """The worlds of a seed with one stop before every such step; `crash` is the chance that it is a crash."""
    results = []
    for step in range(1, 10_000, every):
        changes: dict[str, Any] = {
            "workers": 1, "incidents": 1, "crash": crash, "first_incident": step, "orders": 2,
        }  # fmt: skip
        result = run(seed, {"lag"}, **(_QUIET | changes))  # of no kind that the seed would draw
        calm = next(number for number, line in enumerate(result.story) if line.endswith(" calm"))
        if not any("crashes at" in line or "goes on" in line for line in result.story[: calm + 3]):
            break  # it has no more steps than that
        results.append(result)
    return results
