"""`--html`: one page for people that shows how a run went. The page loads nothing else, and runs no script.

The page is written whole or not at all, while the run goes on and at its end. After the run the same command writes
the page again from the ledger, and sends nothing.
"""

import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from math import ceil, inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

from payclient.cli.files import atomic_write, check_output
from payclient.cli.report import LABELS, Carried, Line, Tally, paid_word
from payclient.cli.terminal import duration, sums
from payclient.cli.texts import counted, label, language, reason, sentence, text
from payclient.lifecycle import State
from payclient.validation import sanitize_text
from payclient.web.pages import hash_of

if TYPE_CHECKING:
    from jinja2 import Environment

#: Rows of one label that are listed (all are counted), and bars of the picture.
LISTED, BARS = 200, 20

#: Seconds after which the page of an unfinished run loads itself again.
RELOAD = 30

#: Text near the beginning of each page that payclient writes.
_MARK = b'content="payclient"'


def check_page(path: Path) -> None:
    """Raise `ConfigurationError` where the path is not a place for a page."""
    check_output("--html", path, ".html", ".htm", mark=_MARK)


@cache
def _templates() -> "Environment":
    # Most runs write no page, and need not wait for this import.
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    jinja = Environment(
        autoescape=True, undefined=StrictUndefined, loader=FileSystemLoader(Path(__file__).parent)
    )
    jinja.globals.update(text=text, name=sentence, word=label, counted=counted, reason=reason)
    jinja.globals.update(listed=LISTED, reload=RELOAD, labels=LABELS, paid_word=paid_word, language=language)
    jinja.filters.update(plain=sanitize_text, hash=hash_of, money=_money)
    return jinja


def render(template: str, **values: object) -> bytes:
    """Return a page by one of the templates beside this module."""
    return _templates().get_template(template).render(values).encode()


class RunPage:
    """The page of one run. `window`: seconds that people have to answer.

    The only personal data on the page are the cells that the user asked to keep.
    """

    def __init__(self, path: Path, *, title: str, window: float, carried: Carried = Carried()) -> None:
        """Raises `ConfigurationError` where the path is not a place for a page."""
        check_page(path)
        self.path = path
        self._title, self._window, self._carried = title, window, carried

    def write(self, lines: Collection[Line], tally: Tally, *, total: int, code: int | None) -> None:
        """Write the page. `code`: the exit code of a run that ended; None: the run goes on. Raises `OSError`."""
        of = dict[str, list[Line]]()
        for line in sorted(lines, key=lambda line: self._carried.of(line.client_transaction_id)[0] or 0):
            of.setdefault(line.label, []).append(line)
        content = render(
            "report.html.j2", title=self._title, code=code, tally=tally, total=total, of=of, carried=self._carried,
            written=time.strftime(text("page.clock"), time.localtime()), **self._answers(of),
        )  # fmt: skip
        with atomic_write(self.path) as file:
            file.write(content)

    def _answers(self, of: Mapping[str, Sequence[Line]]) -> Mapping[str, Any]:
        """Return how long people took to answer, for the template. `of`: the lines by their labels."""
        accepted, cancelled = (
            [each for each in map(_seconds_to_answer, of.get(label, ())) if each < self._window]
            for label in (State.ACCEPTED, State.CANCELLED)
        )
        lower, upper = (
            Counter(int(each / self._window * BARS) for each in seconds) for seconds in (accepted, cancelled)
        )
        both = sorted(accepted + cancelled)
        return {
            "bars": [(lower[bar], upper[bar]) for bar in range(BARS)],
            # How long half of them took at most, and nine of ten.
            "within": [_span(both[ceil(len(both) * share) - 1]) for share in (0.5, 0.9) if both],
            "ticks": [_span(self._window * tick / 5) for tick in range(6)],
        }


def _seconds_to_answer(line: Line) -> float:
    """Return the seconds from a row's permit to its answer; infinity where they are not known."""
    end = line.decided_at if line.notified_at is None else line.notified_at
    return inf if line.created_at is None or end is None else max(end - line.created_at, 0.0)


def _money(totals: Mapping[str, int]) -> list[str]:
    return [sanitize_text(each) for each in sums(totals)]


def _span(seconds: float) -> str:
    if seconds < 10:
        tenths = f"{seconds:.1f}".removesuffix(".0")
        return f"{tenths if language() == 'en' else tenths.replace('.', ',')} s"
    return duration(round(seconds)).replace(" min 0 s", " min")
