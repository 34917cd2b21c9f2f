"""Django's admin over a PostgreSQL ledger: it shows every charge, and changes none."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from pathlib import Path

import payclient
from payclient.simulator import PAYPHONE, Simulator
from postgres_server import PostgresServer
from required import module
from shops.serving import ROOT

PAGES = (
    "payclient/chargerecord/", "payclient/chargerecord/?q=order-17", "payclient/chargerecord/?q=cart-9",
    "payclient/chargerecord/1/change/",
)  # fmt: skip


async def test_the_admin_only_shows(postgres: PostgresServer, new_database: str, tmp_path: Path) -> None:
    """Lists and details answer 200 with no add, change or delete, and without what is personal."""
    module("psycopg")
    async with (
        Simulator(settings=PAYPHONE) as service,
        payclient.open_tracker(
            service.url, "any", ledger=postgres.url(new_database), profile="payphone", clock=service.clock
        ) as tracker,
    ):
        sent = await tracker.sale(
            payclient.SaleRequest(
                phone_number="0984111222", country_code="593", amount_without_tax=98765, currency="USD",
                client_transaction_id="order-17", store_id="S1", reference="For Ana",
            ),
            purchase="cart-9",
        )  # fmt: skip
        assert sent.transaction_id is not None
        await service.approve(sent.transaction_id)
        assert (await sent.check()).paid is True
    guide = (ROOT / "payclient" / "guide" / "django.md").read_text("utf-8")
    for statement in guide.partition("```sql")[2].partition("```")[0].strip().splitlines():
        await postgres.execute(new_database, statement)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "shops.admin_site", str(postgres.port), new_database, "shop_admin",
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}"},
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, _ = await process.communicate()
    assert process.returncode == 0
    answers: dict[str, tuple[int, str]] = json.loads(out.splitlines()[-1])
    for page in PAGES:
        for user in ("boss", "clerk"):
            status, html = answers[f"{user} {page}"]
            assert status == 200
            assert "order-17" in html
            assert "object (1)" not in html
            assert "accepted" in html
            assert not re.search(
                r"0984111222|\b(593|Ana)\b|digest", html
            )  # words: a random token has any letters
            assert 'type="submit"' not in html.replace('type="submit" value="Search"', "").replace(
                '<button type="submit">Log out</button>', ""
            )
    assert "98765" in answers[f"boss {PAGES[0]}"][1]
    assert (
        "order-17" not in answers["boss payclient/chargerecord/?state=pending"][1].partition("result_list")[2]
    )
    assert (
        answers["boss payclient/chargechange/"][0]
        == answers["boss payclient/chargechange/1/change/"][0]
        == 200
    )
    assert answers["clerk payclient/chargechange/"][0] == 403, "who may see charges sees no more"
    for user in ("boss", "clerk"):
        for refused in ("payclient/chargerecord/add/", "payclient/chargerecord/1/delete/", "POST"):
            assert answers[f"{user} {refused}"][0] == 403, (user, refused)
