"""The part of a run's page that says how long people took to answer."""

from __future__ import annotations

from collections import Counter

from payclient.cli.html_pictures import histogram, swatch
from payclient.cli.report_lines import Line, Tally
from payclient.lifecycle import State

__all__: list[str] = []

#: Parts of the sale window in which answers are counted, and drawn.
FINE, BARS = 3000, 20


class AnswerTimes:
    """Counts answers by the time they took, in bounded memory. `window`: seconds that people have."""

    def __init__(self, window: float) -> None:
        self._window = window
        #: Answers in time, by outcome and part of the window.
        self._answers: dict[str, Counter[int]] = {State.ACCEPTED: Counter(), State.CANCELLED: Counter()}
        #: Decided, and heard of after the window.
        self._late: Counter[str] = Counter()

    def add(self, line: Line, created_at: float) -> None:
        """Take one row's line."""
        answered = line.notified_at if line.notified_at is not None else line.decided_at
        if answered is None or line.state not in self._answers:
            return
        part = (answered - created_at) / self._window
        if part < 1:
            self._answers[line.state][int(max(part, 0.0) * FINE)] += 1
        else:
            self._late[line.state] += 1

    def section(self, tally: Tally) -> str:
        """The part of the page."""
        accepted, cancelled = (self._answers[label] for label in (State.ACCEPTED, State.CANCELLED))
        together = accepted + cancelled
        heading = '<section class="times"><h2>How long people took to answer</h2>'
        if not together:
            return f'{heading}<p class="quiet">No answer was heard in time.</p></section>'
        width = FINE // BARS
        lower, upper = (
            [sum(counter[number * width + part] for part in range(width)) for number in range(BARS)]
            for counter in (accepted, cancelled)
        )
        pairs = list(zip(lower, upper, strict=True))
        silent = tally.counts[State.EXPIRED] + self._late[State.CANCELLED] + tally.counts[State.UNKNOWN]
        words = [
            f"Half of them answered within <strong>{self._within(together, 0.5)}</strong>, "
            f"nine of ten within <strong>{self._within(together, 0.9)}</strong>."
        ]
        if silent:
            words.append(f"{silent:,} did not answer in time, as far as we heard.")
        if late := self._late[State.ACCEPTED]:
            words.append(f"{late:,} accepted ones were heard of later only.")
        legend = "".join(
            f"<span>{swatch(label)}{label}</span>" for label in (State.ACCEPTED, State.CANCELLED)
        )
        return (
            f"{heading}<p>{' '.join(words)}</p>"
            '<p class="quiet">Number of people, by the time they took</p>'
            f"{histogram(pairs, self._ticks(5), 720, 'wide')}{histogram(pairs, self._ticks(2), 340, 'narrow')}"
            f'<p class="legend">{legend}</p>'
            '<p class="quiet">From sending to the answer: by the notification where one came, else by the status '
            "query that found it, a little later.</p></section>"
        )

    def _ticks(self, steps: int) -> list[tuple[float, str]]:
        spans = (_span(self._window * number / steps) for number in range(steps + 1))
        return [(number / steps, span.replace(".0 s", " s")) for number, span in enumerate(spans)]

    def _within(self, counter: Counter[int], share: float) -> str:
        wanted, seen = share * counter.total(), 0
        for part in sorted(counter):
            seen += counter[part]
            if seen >= wanted:
                return _span((part + 1) / FINE * self._window)
        return _span(self._window)


def _span(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s" if 0 < seconds < 10 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if rest else f"{minutes} min"
