"""The plan of a run, shown before anything is sent: rows, money, customers, the ledger's rows, the time it takes."""

import asyncio
import re
import time
from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import aclosing, suppress
from pathlib import Path

import attrs
from rich.console import Group, RenderableType
from rich.text import Text

from payclient.batch import ChargeRow
from payclient.batch.lanes import CHUNK, may_send
from payclient.cli import terminal
from payclient.cli.report import ALREADY_PAID, LABELS, OTHER_CONTENT, Place, Report, ledger_line
from payclient.cli.settings import ChargeOptions, Limits, location_of
from payclient.cli.tables import defuse
from payclient.cli.texts import counted, label, reason, text
from payclient.errors import ConfigurationError, LedgerMissingError
from payclient.ledger import Ledger, open_ledger
from payclient.lifecycle import Record, State
from payclient.profile import ServiceProfile
from payclient.rows import ChargeFile
from payclient.rows.cells import RowError
from payclient.tracking.attempts import content_digest, lane_digest
from payclient.tracking.purchases import Purchase
from payclient.tracking.tracker import check_service
from payclient.wire import encode_sale

#: Client transaction ids shown of an error about many.
SHOWN = 3

#: Cents. Where every amount of a file is less, they may be units.
SMALL = 1000

#: Digits that a spreadsheet keeps of a number; of an id that is one it drops the zeros in front.
_DIGITS = 15

#: Seconds for which the same customer with the same amount is the same charge, where a report has it by another id.
RECENT = 3 * 86_400.0

#: A number, its plus, its thousands apart, and the zeros behind a mark, as a spreadsheet or a program may write it.
_NUMBER = re.compile(r"\+?([0-9]+|[0-9]{1,3}(?:[.,][0-9]{3})+)([.,]0{1,2})?")
_DECIMALS = (".0", ",0", ".00", ",00")

#: Styles of what to look at twice, and of faults.
_LOUD, _BAD = "bold yellow", "bold red"


#: The customer at the store, as the ledger has it, the cents and their currency.
Charged = tuple[bytes, int, str]


@attrs.define
class Known:
    """The rows that the ledger has, before anything is sent."""

    #: The label of each row that the ledger has, or whose purchase it knows to be paid, by its client transaction id.
    labels: dict[str, str] = attrs.field(factory=dict)
    #: Refused rows that would be tried again.
    again: int = 0
    #: Ids and purchases that the ledger lacks, each with the id that it has instead: the number, written otherwise.
    respelled: list[str] = attrs.field(factory=list)
    #: Rows each with the id under which the ledger has their customer and amount, and the file another row.
    moved: list[str] = attrs.field(factory=list)
    #: Rows that the ledger lacks, whose customer and amount it has under an id of the earlier report, and of no row.
    renamed: list[str] = attrs.field(factory=list)
    #: Rows that the ledger has, paid or open, each with the purchase it was charged for: the file gives another.
    repurposed: list[str] = attrs.field(factory=list)
    #: There is no ledger yet.
    new: bool = False


async def read_ledger(
    options: ChargeOptions, limits: Limits, rows: Sequence[ChargeRow], earlier: Mapping[str, Place | None]
) -> Known:
    """Look the rows up in the ledger, which another process may have open. `earlier`: of `Report`.

    Raises `ConfigurationError` for one that the run would refuse.
    """
    if not options.ledger or options.ledger.startswith("memory:"):
        return Known(new=True)
    try:
        book = await open_ledger(options.ledger, read_only=True)
    except LedgerMissingError:
        with suppress(LedgerMissingError):  # another error is about the place for a new one
            await (await open_ledger(options.ledger, create=False)).aclose()
        return Known(new=True)
    async with aclosing(book):
        # A ledger without attempts may have no service yet, and the check would write this one.
        if options.url and await anext(book.records(), None) is not None:
            await check_service(book, options.url)
        return await _look_up(book, options.loaded_profile, limits, rows, earlier)


async def _look_up(
    book: Ledger,
    profile: ServiceProfile,
    limits: Limits,
    rows: Sequence[ChargeRow],
    earlier: Mapping[str, Place | None],
) -> Known:
    """Return what an open ledger has of the rows, and which of them it has under other ids."""
    known = Known()
    #: Of rows that the ledger lacks, or has with another charge, by id.
    changed: dict[str, Charged] = {}
    #: The charges that the ledger has instead, each with its id.
    displaced: dict[Charged, str] = {}
    for begin in range(0, len(rows), CHUNK):
        chunk = {row.request.client_transaction_id: row for row in rows[begin : begin + CHUNK]}
        found = await book.get_many([*chunk])
        purchases = {key: row.purchase or key for key, row in chunk.items() if key not in found}
        # All at once, which the ledger reads by one query.
        asks = dict(zip(purchases, await asyncio.gather(*map(book.asks, purchases.values())), strict=True))
        for key, row in chunk.items():
            request, record = row.request, found.get(key)
            charge = lane_digest(request, book.digest_key), request.amount, request.currency
            if record is None:
                changed[key] = charge
                # Not sent either: another row or file, or the shop, collected what this one is for.
                if Purchase.of(purchases[key], asks[key]).paid:
                    known.labels[key] = ALREADY_PAID
                continue
            digest = content_digest(encode_sale(request, profile).body, book.digest_key)
            known.labels[key] = ledger_line(row, record, digest).label
            known.again += may_send(record, limits.retry)
            before = record.lane, record.amount, record.currency
            if before != charge:
                changed[key] = charge
                if record.state is not State.REFUSED:
                    displaced[before] = key
        known.repurposed += _repurposed(chunk, found)
        known.respelled += await _other_spellings(book, chunk, asks)
    known.moved = [f"{key}: {displaced[charge]}" for key, charge in changed.items() if charge in displaced]
    known.renamed = await _renamed(book, changed, known.labels, earlier)
    return known


async def _renamed(
    book: Ledger, changed: Mapping[str, Charged], known: Container[str], earlier: Mapping[str, Place | None]
) -> list[str]:
    """Return the rows that are new to both, and whose charge the ledger has had of late by another id of the report."""
    keys = [key for key, place in earlier.items() if place is not None and key not in known]
    recent, since = set[Charged](), time.time() - RECENT
    for begin in range(0, len(keys), CHUNK):
        for record in (await book.get_many(keys[begin : begin + CHUNK])).values():
            if record.created_at > since and record.state.paid is not False:
                recent.add((record.lane, record.amount, record.currency))
    new = (key for key in changed if key not in known and defuse(key) not in earlier)
    return [key for key in new if changed[key] in recent]


def _repurposed(rows: Mapping[str, ChargeRow], found: Mapping[str, Record]) -> list[str]:
    """Return "KEY: PURCHASE" of each row that is paid or open for another purchase than the file gives it."""
    return [
        f"{key}: {record.purchase}"
        for key, record in found.items()
        if record.purchase != (rows[key].purchase or key) and record.state.paid is not False
    ]


async def _other_spellings(
    book: Ledger, rows: Mapping[str, ChargeRow], asks: Mapping[str, Sequence[Record]]
) -> list[str]:
    """Return "KEY: ID" of each key or purchase that the ledger has in another spelling, as of the same number.

    `asks` are those of each row that the ledger lacks.
    """
    ids = {each: key for key in asks for each in _spellings(key)}
    found = (await book.get_many([*ids])).items()
    respelled = {each: ids[each] for each, record in found if record.state is not State.REFUSED}
    free = (rows[key].purchase for key, own in asks.items() if not own)
    purchases = {each: purchase for purchase in free if purchase for each in _spellings(purchase)}
    for records in await asyncio.gather(*map(book.asks, purchases)):
        respelled |= {
            each.purchase: purchases[each.purchase] for each in records if each.state is not State.REFUSED
        }
    return [f"{key}: {each}" for each, key in respelled.items()]


def _spellings(key: str) -> set[str]:
    """Return other ids that a spreadsheet or a program may have written so."""
    other = {key[1:]} if key[0] == "'" else set()  # as `defuse` writes it
    if number := _NUMBER.fullmatch(key):
        bare = re.sub("[.,]", "", number[1]).lstrip("0")
        other |= {bare.zfill(count) for count in range(len(bare) or 1, _DIGITS + 1)}
        other |= {f"{bare or 0}{decimals}" for decimals in _DECIMALS} | {f"+{bare}"}
        grouped = f"{int(bare or 0):,}"
        other |= {grouped, grouped.replace(",", ".")}
    return other - {key, ""}


@attrs.frozen(kw_only=True)
class Plan:
    """All that is known before the first charge."""

    file: ChargeFile
    known: Known
    options: ChargeOptions
    limits: Limits
    #: Where the bad rows go.
    skip_bad: Path | None
    #: The report that the run will write.
    report: Report | None = attrs.field(repr=False)

    @property
    def earlier(self) -> Mapping[str, Place | None]:
        """The rows of an earlier report; see `Report.earlier`."""
        return self.report.earlier if self.report else {}

    @property
    def to_send(self) -> int:
        """The number of rows that would be sent, by what the ledger has."""
        return len(self.file.requests) - len(self.known.labels) + self.known.again

    @property
    def renamed(self) -> list[str]:
        """Rows to be sent that an earlier report lacks, and calls paid or open under other ids.

        The ids are of another column, or were changed, where all rows of the report that the file lacks are in it on
        the same lines, with the same amounts; or where the ledger has had them of late.
        """
        key_at: dict[Place, str] = {
            (row.line, row.request.amount, row.request.currency): row.request.client_transaction_id
            for row in self.file.rows
            if row.request
        }
        keys = [key_at.get(place) for place in self.replaced if place is not None]
        known = self.known.labels
        new = [key for key in keys if key and key not in known and defuse(key) not in self.earlier]
        return new if new and None not in keys else self.known.renamed

    @property
    def replaced(self) -> Sequence[Place | None]:
        """The rows of an earlier report that the file lacks, so that the new report lacks them too."""
        mine = {defuse(each.client_transaction_id) for each in self.file.requests}
        return [place for key, place in self.earlier.items() if key not in mine]

    def check(self) -> None:
        """Raise `ConfigurationError` where nothing may be sent."""
        requests, known = self.file.requests, self.known
        if self.file.guessed_cents and max((each.amount for each in requests), default=SMALL) < SMALL:
            raise ConfigurationError(
                "every amount is less than 10.00: give --amounts decimal where 25 means 25.00, or --amounts cents "
                "where it means 0.25; nothing was sent"
            )
        name = self.report.path.name if self.report else ""
        keys = [each.client_transaction_id for each in requests if self.options.ledger]
        self._check_known()
        if lost := [key for key in keys if self.earlier.get(defuse(key)) and key not in known.labels]:
            raise ConfigurationError(
                f"--report {name} calls {len(lost):,} rows paid or open that the ledger does not know "
                f"({terminal.listed(lost, SHOWN)}): give the ledger that charged them, or another --report; "
                "nothing was sent"
            )
        if renamed := self.renamed:
            raise ConfigurationError(
                f"--report {name} calls {len(renamed):,} rows paid or open that are in the file under "
                f"other ids ({terminal.listed(renamed, SHOWN)}), on the same lines or of the same customers: give the "
                "--key or the file that charged them, or another --report where it is another charge; nothing was sent"
            )

    def _check_known(self) -> None:
        """Raise `ConfigurationError` where the ledger's word forbids it."""
        known = self.known
        if known.respelled:
            raise ConfigurationError(
                f"{len(known.respelled):,} ids are in the ledger with other zeros or marks "
                f"({terminal.listed(known.respelled, SHOWN)}): did a spreadsheet change them? Write them as they were "
                "charged; nothing was sent"
            )
        if self.to_send and known.moved:
            raise ConfigurationError(
                f"{len(known.moved):,} rows are in the ledger under ids that other rows of the file have now "
                f"({terminal.listed(known.moved, SHOWN)}), with the same customers and amounts: was a line inserted or "
                "deleted? Give each row the id that it was charged by; nothing was sent"
            )
        if self.to_send and known.repurposed:
            raise ConfigurationError(
                f"{len(known.repurposed):,} rows were charged for other purchases than the file gives them "
                f"({terminal.listed(known.repurposed, SHOWN)}), and other rows would be sent: was the column purchase "
                "changed? Give each row the purchase that it was charged for; nothing was sent"
            )

    def picture(self) -> RenderableType:
        """Return the plan for people: the money, then a line for each fact."""
        table = terminal.simple_table("currency", numbers=("charges", "total", "smallest", "largest"))
        amounts: dict[str, list[int]] = {}
        for request in self.file.requests:
            amounts.setdefault(request.currency, []).append(request.amount)
        for currency, cents in sorted(amounts.items()):
            sums = (terminal.money(each, currency) for each in (sum(cents), min(cents), max(cents)))
            table.add_row(currency, counted(len(cents)), *sums)
        return Group(table, terminal.facts(self._facts()), Text(""))

    def _facts(self) -> Iterator[tuple[str, ...]]:
        """Yield the name, words and style of each fact; a fact without words is not shown."""
        file, profile = self.file, self.options.loaded_profile
        yield "file", f"{file.path.name}: {', '.join(map(reason, file.description.split(', ')))}"
        yield "rows", self._describe_rows(), _BAD if file.bad else ""
        above = _many("above", range(1, file.records.line))
        left_out = (above, _many("empty", file.empty), _many("total_line", file.total_lines))
        yield "left out", "; ".join(filter(None, left_out))
        for fault in file.total_faults:
            yield "sum", in_words(fault), _BAD
        yield "phones", self._describe_phones()
        yield "not read", _many("columns", file.unread)
        doubles = [text("plan.and").join(map(str, lines)) for lines in file.doubles]
        yield "twice?", _many("doubles", doubles), _LOUD
        yield "report", _many("replaced", self.replaced), _LOUD
        longest = max(file.lanes.values(), default=0)
        customers = "longest" if longest > 1 else "customers_count"
        yield "customers", _many(customers, [*file.lanes], longest=longest)
        yield "ledger", self.describe_ledger(), _LOUD if self.options.ledger and self.known.new else ""
        changed = [key for key, word in self.known.labels.items() if word == OTHER_CONTENT]
        yield "changed", _many("other", changed), _LOUD
        yield "to send", self._describe_sends(longest)
        yield "token", "" if self.options.has_token else text("plan.no_token")
        url = self.options.url
        yield "to", text("plan.service", url=url, name=profile.name) if url else ""

    def _describe_phones(self) -> str:
        respelled = [row for row in self.file.rows if row.respelled and row.request]
        known = self.options.loaded_profile.phone_shapes
        codes = sorted({row.request.country_code for row in respelled if row.request})
        shapes = ", ".join(f"{known[code]} ({code})" for code in codes)
        return _many("respelled", [row.line for row in respelled], shapes=shapes)

    def _describe_rows(self) -> str:
        good, bad = counted(len(self.file.requests), "good"), counted(len(self.file.bad), "bad")
        if not self.file.bad:
            return good
        return f"{good}, {bad}" + (text("plan.skipped", path=self.skip_bad) if self.skip_bad else "")

    def describe_ledger(self) -> str:
        """Return what the ledger knows of the rows."""
        known, counts = self.known, Counter(self.known.labels.values())
        if self.options.ledger is None:
            return text("plan.no_ledger")
        place = location_of(self.options.ledger)
        if known.new or not counts:
            return place + text("plan.new" if known.new else "plan.knows_none")
        states = ", ".join(counted(counts[each], each) for each in LABELS if counts[each])
        words = text("plan.knows", count=counts.total(), counts=states)
        return place + words + (text("plan.again", count=known.again) if known.again else "")

    def _describe_sends(self, longest_lane: int) -> str:
        if not self.to_send:
            return label("nothing")
        if self.file.bad and self.skip_bad is None:
            return text("plan.nothing_bad", count=self.to_send)
        seconds = self.limits.longest(self.options.loaded_profile, self.to_send, longest_lane)
        end = terminal.at(time.time() + seconds)
        return text("plan.send", count=self.to_send, time=terminal.duration(seconds), at=end)


def _many(key: str, items: Sequence[object], **values: object) -> str:
    """Return the text of this key with the number of the items and the first ones; an empty text for no items."""
    return text(f"plan.{key}", count=len(items), items=terminal.listed(items), **values) if items else ""


def in_words(*errors: RowError) -> str:
    """Return where rows are wrong, and why. All errors have one column and one reason."""
    lines, column = [error.line for error in errors], errors[0].column
    where = text("file.line", line=str(lines[0]))
    if len(lines) > 1:
        where = text("file.lines", lines=terminal.listed(lines), count=len(lines))
    return f"{where}{f', {column}' if column else ''}: {reason(errors[0].reason)}"
