"""`--html`: one page for people that tells how a run went. The page needs nothing from outside, and runs nothing.

The page is written whole or not at all, while the run goes on and at its end. The same command on a finished file
writes it again from the ledger, and sends nothing.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined

from payclient.cli.files import atomic_write, check_output
from payclient.cli.report import LABELS, NOT_SENT_YET, OTHER_CONTENT, Line, Tally, paid_word
from payclient.cli.terminal import duration, money
from payclient.errors import ConfigurationError
from payclient.ledger.records import sanitize_text
from payclient.lifecycle import State
from payclient.web.pages import hash_of

__all__: list[str] = []

#: Rows listed of each outcome that needs a person (all are counted), and bars of the picture.
LISTED, BARS = 200, 20

#: Seconds after which the page of a run that goes on loads itself again.
RELOAD = 30

#: Outcomes of which a person has to look at the rows, in this order.
_NEEDS = (
    State.UNKNOWN, State.SENDING, State.EXPIRED, State.PENDING, OTHER_CONTENT, State.REFUSED, NOT_SENT_YET,
)  # fmt: skip

#: What every page of ours holds near its begin.
_MARK = b'content="payclient"'


class RunPage:
    """Writes the page of one run. `window`: seconds that people have to answer."""

    def __init__(self, path: Path, *, title: str, window: float) -> None:
        """Raises `ConfigurationError` where the path is not a place for a page."""
        check_output("--html", path, ".html", ".htm")
        self.path = path
        self._title, self._window = title, window
        if path.exists() and _MARK not in (path.read_bytes()[:400] or _MARK):
            raise ConfigurationError(f"--html {path.name}: is there already and is not a page of ours")
        jinja = Environment(autoescape=True, undefined=StrictUndefined)
        jinja.filters.update(plain=sanitize_text, hash=hash_of, money=_money)
        template = files("payclient.cli").joinpath("report.html.j2").read_text(encoding="utf-8")
        self._template = jinja.from_string(template)

    def write(self, lines: Collection[Line], tally: Tally, *, total: int, code: int | None) -> None:
        """Write the page: of a run that ended with an exit code, or (None) goes on. Raises `OSError`."""
        people = [
            (label, [line for line in lines if line.label == label][:LISTED], tally.counts[label])
            for label in _NEEDS
            if tally.counts[label]
        ]
        text = self._template.render(
            title=self._title, code=code, reload=RELOAD, tally=tally, total=total, people=people, labels=LABELS,
            need=sum(count for label, _, count in people if label != NOT_SENT_YET), paid_word=paid_word,
            when=_when(lines, tally, total),
            outcomes=[(label, tally.counts[label]) for label in LABELS if tally.counts[label]],
            **self._answers(lines, tally),
        )  # fmt: skip
        with atomic_write(self.path) as file:
            file.write(text.encode())

    def _answers(self, lines: Collection[Line], tally: Tally) -> Mapping[str, Any]:
        """Return how long people took to answer."""
        times: dict[str, list[float]] = {State.ACCEPTED: [], State.CANCELLED: []}
        for line in lines:
            answered = line.notified_at if line.notified_at is not None else line.decided_at
            if line.state in times and answered is not None and line.created_at is not None:
                times[line.state].append(max(answered - line.created_at, 0.0))
        heard = {state: [each for each in found if each < self._window] for state, found in times.items()}
        late = {state: len(times[state]) - len(heard[state]) for state in times}
        lower, upper = (
            Counter(int(each / self._window * BARS) for each in found) for found in heard.values()
        )
        bars = [(lower[bar], upper[bar]) for bar in range(BARS)]
        every = sorted(heard[State.ACCEPTED] + heard[State.CANCELLED])
        return {
            "bars": bars, "most": max(map(sum, bars)), "late": late[State.ACCEPTED],
            "answered": {str(state): len(found) for state, found in heard.items()},
            "silent": tally.counts[State.EXPIRED] + late[State.CANCELLED] + tally.counts[State.UNKNOWN],
            "within": [_span(every[int((len(every) - 1) * share)]) for share in (0.5, 0.9)] if every else None,
            "ticks": [_span(self._window * tick / 5).replace(".0 s", " s") for tick in range(6)],
        }  # fmt: skip


def _when(lines: Collection[Line], tally: Tally, total: int) -> list[tuple[str, str]]:
    first = min((line.created_at for line in lines if line.created_at is not None), default=None)
    last = max((line.decided_at for line in lines if line.decided_at is not None), default=None)
    facts = [("Rows in the file", f"{total:,}"), ("Rows with an outcome", f"{tally.done:,}")]
    named = (("First sent", first), ("Last decided", last), ("This page written", time.time()))
    # On this machine's clock, with its zone.
    form = "%d %B %Y, %H:%M:%S (UTC%z)"
    facts += [(name, time.strftime(form, time.localtime(when))) for name, when in named if when is not None]
    if first is not None and last is not None and last > first:
        facts.insert(4, ("Between them", duration(last - first)))
    return facts


def _money(sums: Mapping[str, int]) -> list[str]:
    return [sanitize_text(money(cents, currency)) for currency, cents in sums.items()]


def _span(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s" if 0 < seconds < 10 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if rest else f"{minutes} min"
