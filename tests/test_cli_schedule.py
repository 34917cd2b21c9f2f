"""`payclient schedule`."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from payclient.cli.app import run
from payclient.cli.schedule import observed
from payclient.events import Created, Event, Expired, FoundAccepted, FoundCancelled, Notified
from payclient.ledger import Ledger, open_ledger
from payclient.lifecycle import Record


def printed(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    assert run(["schedule", *arguments]) == code
    captured = capsys.readouterr()
    return captured.out + captured.err


def fill(url: str, count: int) -> None:
    """Sales whose customers need 12 s or so; a tenth is silent, and half of the answers are notified."""

    async def one(ledger: Ledger, number: int, dice: random.Random) -> None:
        record = Record(client_transaction_id=f"order-{number}", created_at=1e9, currency="USD", amount=100)
        await ledger.permit(record)
        events: list[Event] = [Created(at=1e9, transaction_id=number + 1, expires_at=1e9 + 300)]
        if number % 10 == 0:
            events += [Expired(at=1e9 + 300), FoundCancelled(at=1e9 + 302)]
        else:
            age = 12 * 2.718 ** (0.5 * dice.gauss(0, 1))
            if number % 2:
                events.append(Notified(at=1e9 + age, transaction_id=number + 1))
                age += 5.0
            events.append(FoundAccepted(at=1e9 + age))
        for event in events:
            record = await ledger.apply(record, event)

    async def all_of_them() -> None:
        book, dice = await open_ledger(url), random.Random(1)  # noqa: S311 - it must repeat
        await asyncio.gather(*(one(book, number, dice) for number in range(count)))
        await book.aclose()

    asyncio.run(all_of_them())


def test_it_prints_the_schedule_and_its_forecast(capsys: pytest.CaptureFixture[str]) -> None:
    """Within 80 columns, but for nothing."""
    text = printed(capsys)
    assert "queries a sale find an answer after 1 s on average" in text
    assert "302, 305, 310, 320, 340, 380, 440 s" in text
    assert "█" in text
    assert max(map(len, text.splitlines())) <= 80


def test_fewer_queries_take_longer(capsys: pytest.CaptureFixture[str]) -> None:
    """The knob is one of the two, and not both; the eighth would come with the expiry."""
    assert "7 times: at " in printed(capsys, "--max-queries", "8")
    assert "after 3 s on average" in printed(capsys, "--target-delay", "3")
    assert "not both" in printed(capsys, "--target-delay", "3", "--max-queries", "8", code=2)
    assert "positive" in printed(capsys, "--max-queries", "0", code=2)


def test_a_ledger_shows_how_people_really_answered(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the notification where one came, else by the query that found it; the silent are counted."""
    url = f"sqlite:{tmp_path / 'charges.db'}"
    fill(url, 200)
    text = printed(capsys, "--ledger", url)
    assert "as 180 really answered (10% never do)" in text
    assert "answers, in the ledger" in text
    assert max(map(len, text.splitlines())) <= 80


def test_a_few_answers_are_no_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It says so; a ledger without any is shown without them."""
    url = f"sqlite:{tmp_path / 'charges.db'}"
    fill(url, 3)
    assert "the ledger has 2 answers: too few to judge by" in printed(capsys, "--ledger", url)
    empty = f"sqlite:{tmp_path / 'empty.db'}"
    fill(empty, 0)
    assert "the ledger has 0 answers" in printed(capsys, "--ledger", empty)
    assert "there is no ledger" in printed(capsys, "--ledger", f"sqlite:{tmp_path / 'none.db'}", code=2)


def test_the_profiles_rate_is_what_it_can_follow(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In new sales a minute."""
    profile = tmp_path / "shop.toml"
    profile.write_text('name = "shop"\nqueries_per_minute = 30\n', encoding="utf-8")
    text = printed(capsys, "--profile", str(profile))
    assert "30 queries a minute: 0.9 new sales a minute" in text


def test_the_observed_crowd_is_that_of_its_answers() -> None:
    """Half have answered by their median, and the share of the silent is theirs."""
    crowd = observed([5.0, 9.0, 10.0, 11.0, 20.0], 5, 300.0)
    assert crowd.share == pytest.approx(0.5, abs=0.01)
    assert crowd.unanswered(10.0) == pytest.approx(0.75, abs=0.03)
    assert observed([7.0], 0, 300.0).share == pytest.approx(1.0, abs=0.01)
