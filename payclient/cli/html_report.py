"""`--html`: one page that says how a run went, for people. It needs nothing from outside, and runs nothing.

It is written whole or not at all, while the run goes and at its end. The same command on a finished file writes it
again from the ledger, and sends nothing.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from payclient.cli.html_pictures import patterns, share_bar, swatch
from payclient.cli.html_style import STYLE
from payclient.cli.html_times import AnswerTimes
from payclient.cli.report_lines import LABELS, NEVER_SENT, Line, Tally, paid_word
from payclient.cli.terminal import duration, money
from payclient.errors import ConfigurationError
from payclient.ledger.details import bounded
from payclient.lifecycle import State
from payclient.rows.replacing import replacing
from payclient.web.pages import hash_of

__all__: list[str] = []

#: Rows listed of each outcome that needs a person; all are counted.
LISTED = 200

#: Seconds after which the page of a run that goes on loads itself again.
RELOAD = 30

#: Who has to look, in what order, and what to do.
_NEEDS: dict[str, tuple[str, str]] = {
    State.UNKNOWN: (
        "Unknown",
        "These may have been charged. Do not charge them again in another way. Running the command again asks the "
        "service again; a person who has found out decides with <code>payclient ledger resolve</code>.",
    ),
    State.SENDING: ("Unknown, interrupted while sending", "Run the command again: it finds out."),
    State.EXPIRED: (
        "Expired",
        "Nobody answered in time, as far as we heard. They are presumed unpaid, but the service has not said so: "
        "run the command again, or look them up, before you ask in another way.",
    ),
    State.PENDING: ("Still waiting", "The customer can still answer. Run the command again to follow them."),
    State.REFUSED: (
        "Refused",
        "Nothing was charged. The service&rsquo;s own words say why; mend the row, or try again with "
        "<code>--retry refused</code>.",
    ),
    NEVER_SENT: (
        "Never sent",
        "This run sent nothing for these. Where no reason is given, run the command again.",
    ),
}

#: Columns that not every row fills: head, attributes of a cell, and which member of a line.
_COLUMNS = (
    ("Transaction id", 'data-name="transaction "', "transaction_id"),
    ("Code", 'data-name="code "', "error_code"),
    ("What was said", 'class="said"', "message"),
)

_ENDINGS = {
    None: ("running", "Still running"),
    0: ("good", "Finished: everybody paid"),
    3: ("done", "Finished"),
    4: ("look", "Finished, with open questions"),
    130: ("look", "Interrupted: the same command goes on"),
}


class Page:
    """Collects what the page shows of each line, in bounded memory; `write` replaces the file in one step."""

    def __init__(self, path: str | os.PathLike[str], *, title: str, window: float) -> None:
        """`window`: seconds that people have to answer. Raises `ConfigurationError` where no page can be."""
        self.path = Path(path)
        self._title = title
        self._times = AnswerTimes(window)
        self._listed: dict[str, list[Line]] = {label: [] for label in _NEEDS}
        self._first: float | None = None
        self._last: float | None = None
        if self.path.suffix.lower() not in (".html", ".htm"):
            raise ConfigurationError(f"--html {self.path.name}: ends in .html")
        if not self.path.parent.is_dir():
            raise ConfigurationError(f"--html {self.path.name}: its directory does not exist")
        try:
            head = self.path.read_bytes()[:200] if self.path.exists() else b""
        except OSError as error:
            raise ConfigurationError(
                f"--html {self.path.name}: cannot be written: {error.strerror}"
            ) from None
        if head and b"payclient" not in head:
            raise ConfigurationError(f"--html {self.path.name}: is there already and is no page of ours")

    def add(self, line: Line) -> None:
        """Take one row's line."""
        rows = self._listed.get(line.label)
        if rows is not None and len(rows) < LISTED:
            rows.append(line)
        if line.created_at is None:
            return
        self._first = line.created_at if self._first is None else min(self._first, line.created_at)
        if line.decided_at is not None:
            self._last = line.decided_at if self._last is None else max(self._last, line.decided_at)
        self._times.add(line, line.created_at)

    def write(self, tally: Tally, *, total: int, code: int | None = None) -> None:
        """Write the page: of a run that ended with an exit code, or (None) goes on. Raises `OSError`."""
        with replacing(self.path) as file:
            file.write(self.render(tally, total=total, code=code, now=time.time()).encode())

    def render(self, tally: Tally, *, total: int, code: int | None, now: float) -> str:
        """The page's text; `now` is UTC seconds since the epoch."""
        kind, ending = _ENDINGS.get(code, ("look", "Ended early"))
        reload = f'<meta http-equiv="refresh" content="{RELOAD}">' if code is None else ""
        title = _text(self._title)
        return (
            '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
            '<meta name="generator" content="payclient">'
            "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; base-uri 'none'; "
            f"form-action 'none'; style-src '{hash_of(STYLE)}'\">"
            f'<meta name="viewport" content="width=device-width, initial-scale=1">'
            f'<meta name="referrer" content="no-referrer"><meta name="robots" content="noindex">{reload}'
            f"<title>Charges: {title}</title><style>{STYLE}</style></head>\n<body>{patterns()}\n<main>\n"
            f'<header><p class="badge {kind}">{ending}</p><h1>Charges of {title}</h1>'
            f"{self._lead(tally, total)}</header>\n"
            f"{self._outcomes(tally)}\n{self._times.section(tally)}\n{self._people(tally)}\n"
            f"{self._when(tally, total, now)}\n"
            "</main></body></html>\n"
        )

    # --- The parts

    def _lead(self, tally: Tally, total: int) -> str:
        paid = tally.counts[State.ACCEPTED]
        sums = _sums(tally.totals(State.ACCEPTED), " and ")
        need = sum(tally.counts[label] for label in _NEEDS)
        rest = total - tally.done
        words = [
            f'<p class="lead"><strong>{paid:,}</strong> of {total:,} charges were paid'
            + (f": <strong>{sums}</strong>." if paid else ".")
        ]
        if need:
            words.append(
                f' <a href="#people">{need:,} {"row needs" if need == 1 else "rows need"} a person.</a>'
            )
        if rest:
            words.append(f" {rest:,} have no outcome yet.")
        return "".join(words) + "</p>"

    def _outcomes(self, tally: Tally) -> str:
        rows = [
            f'<tr><th scope="row">{swatch(label)}{label}</th><td>{paid_word(label)}</td>'
            f'<td class="number">{count:,}</td><td class="number share">{_percent(count, tally.done)}</td>'
            f'<td class="number">{_sums(tally.totals(label))}</td></tr>'
            for label in LABELS
            if (count := tally.counts[label])
        ]
        foot = (
            f'<tfoot><tr><th scope="row">all</th><td></td><td class="number">{tally.done:,}</td>'
            f'<td class="share"></td><td class="number">{_sums(tally.sums())}</td></tr></tfoot>'
        )
        return (
            "<section><h2>What became of them</h2>"
            f"{share_bar(tally.counts, 720, 'bar')}"
            '<table><thead><tr><th scope="col">Outcome</th><th scope="col">Paid</th>'
            '<th scope="col" class="number">Rows</th><th scope="col" class="number share">Share</th>'
            f'<th scope="col" class="number">Money</th></tr></thead><tbody>{"".join(rows)}</tbody>'
            f"{foot if rows else ''}</table></section>"
        )

    def _people(self, tally: Tally) -> str:
        parts = ['<section id="people"><h2>Rows that need a person</h2>']
        for label, (heading, words) in _NEEDS.items():
            if not (count := tally.counts[label]):
                continue
            rows = self._listed[label]
            more = (
                f'<p class="quiet">The first {len(rows):,} of {count:,}; the report file has them all.</p>'
                if count > len(rows)
                else ""
            )
            parts.append(f"<h3>{swatch(label)}{heading}: {count:,}</h3><p>{words}</p>{_table(rows)}{more}")
        if len(parts) == 1:
            parts.append("<p>None. Every row is accepted or cancelled, by the service&rsquo;s own word.</p>")
        return "".join(parts) + "</section>"

    def _when(self, tally: Tally, total: int, now: float) -> str:
        facts = [("Rows in the file", f"{total:,}"), ("Rows with an outcome", f"{tally.done:,}")]
        if self._first is not None:
            facts.append(("First sent", _moment(self._first)))
        if self._last is not None:
            facts.append(("Last decided", _moment(self._last)))
        if self._first is not None and self._last is not None and self._last > self._first:
            facts.append(("Between them", duration(self._last - self._first)))
        facts.append(("This page written", _moment(now)))
        rows = "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in facts)
        return (
            f'<section class="when"><h2>When it ran</h2><dl>{rows}</dl>'
            '<p class="quiet">&ldquo;Paid&rdquo; is yes or no on the service&rsquo;s word, on proof, or on that of a '
            "named operator; a clock alone leaves it unknown. Amounts are as they were asked for.</p></section>"
        )


def _table(rows: Sequence[Line]) -> str:
    """The rows, with the columns that some of them fill."""
    columns = [
        (head, attributes, values)
        for head, attributes, name in _COLUMNS
        if any(values := ["" if (value := getattr(row, name)) is None else str(value) for row in rows])
    ]
    heads = "".join(f'<th scope="col">{head}</th>' for head, _, _ in columns)
    lines = "".join(
        f'<tr><th scope="row">{_text(row.client_transaction_id)}</th>'
        f'<td class="number">{_text(money(row.amount, row.currency))}</td>'
        + "".join(f"<td {attributes}>{_text(values[number])}</td>" for _, attributes, values in columns)
        + "</tr>"
        for number, row in enumerate(rows)
    )
    return (
        '<table class="rows"><thead><tr><th scope="col">Client transaction id</th>'
        f'<th scope="col" class="number">Amount</th>{heads}</tr></thead><tbody>{lines}</tbody></table>'
    )


def _text(text: str) -> str:
    """Text that others wrote: no markup, nothing that turns the line around, and room to break."""
    return escape(bounded(text)).replace("&#x27;", "&#39;")


def _sums(totals: Mapping[str, int], between: str = "<br>") -> str:
    return between.join(_text(money(cents, currency)) for currency, cents in totals.items())


def _percent(count: int, total: int) -> str:
    share = 100 * count / max(total, 1)
    return "&lt; 0.1 %" if 0 < share < 0.1 else f"{share:.1f} %"


def _moment(when: float) -> str:
    """On this machine's clock, with its zone."""
    local = time.localtime(when)
    return f"{time.strftime('%d %B %Y, %H:%M:%S', local)} (UTC{_text(time.strftime('%z', local))})"
