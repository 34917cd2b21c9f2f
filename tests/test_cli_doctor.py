"""`payclient doctor`: what it says, what it does not do, and its exit codes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import attrs
import pytest

from cli_runs import PYTHON, ROOT, Said
from payclient import DOCUMENT, ServiceProfile, open_ledger
from payclient.cli import main
from payclient.cli.doctor import check_profile
from payclient.profile import find_profile
from raw_server import CERTIFICATE, server_context
from test_ledger import fresh

TOKEN = "a-token-nobody-may-see"

WHOLE = """
not_found_codes = [20]
[status]
by_transaction_id = "/api/Sale/{transaction_id}"
by_client_transaction_id = "/api/Sale/client/{client_transaction_id}"
state_field = "transactionStatus"
"""


class Server(ThreadingHTTPServer):
    """Answers every request alike, and remembers them."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.seen: list[tuple[str, str, dict[str, str]]] = []
        self.status, self.page, self.headers = 200, "", dict[str, str]()
        self.url = f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, *_: object) -> None:
        """A handshake that the other side breaks off is meant."""


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self.server.seen.append((self.command, self.path, dict(self.headers)))
        self.send_response(self.server.status)
        for name, value in self.server.headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(self.server.page.encode())

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server, ThreadPoolExecutor() as pool:
        pool.submit(server.serve_forever, 0.01)
        try:
            yield server
        finally:
            server.shutdown()


@pytest.fixture(autouse=True)
def _place(clean_environment: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PAYCLIENT_TOKEN", TOKEN)
    Path("shop.toml").write_text(WHOLE, encoding="utf-8")


def doctor(server: Server, *more: str) -> int:
    """Run the command with all that it needs, and with other options."""
    needed = {"--base-url": server.url, "--profile": "shop.toml", "--ledger": "sqlite:charges.db"}
    return main(["doctor", *more, *(one for pair in needed.items() if pair[0] not in more for one in pair)])


def said(capfd: Said) -> dict[str, list[str]]:
    """The printed lines by their level."""
    out, err = capfd.readouterr()
    assert TOKEN not in out + err
    lines: dict[str, list[str]] = {}
    for line in out.splitlines():
        if line.startswith("  "):
            level, _, text = line.strip().partition(" ")
            lines.setdefault(level, []).append(text.strip())
    return lines


def test_all_well(server: Server, capfd: Said) -> None:
    """Exit 0: one GET without a token, no POST; the place of a new ledger is tried and left as it was."""
    assert doctor(server) == 0
    lines = said(capfd)
    assert not {"wrong", "gap"} & lines.keys()
    assert any("reachable: HTTP 200" in text for text in lines["ok"])
    assert any("its place is safe" in text for text in lines["ok"])
    assert [(method, path) for method, path, _ in server.seen] == [("GET", "/")]
    assert "Authorization" not in server.seen[0][2]
    assert [path.name for path in Path().iterdir()] == ["shop.toml"]


def test_nothing_is_set(monkeypatch: pytest.MonkeyPatch, capfd: Said) -> None:
    """Everything that is missing, at once; exit 4."""
    monkeypatch.delenv("PAYCLIENT_TOKEN")
    assert main(["doctor"]) == 4
    lines = said(capfd)
    assert [text.partition(":")[0] for text in lines["wrong"]] == ["base_url", "token"]
    assert "no ledger is named" in lines["gap"][0]
    assert "`paid` can never become True" in lines["gap"][1]


def test_what_charges_take_from_elsewhere_is_not_missed(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Said
) -> None:
    """The address of the profile, and the token of a file."""
    Path("shop.toml").write_text(f"base_url = {server.url!r}\n{WHOLE}", encoding="utf-8")
    (tmp_path / "token").write_text(TOKEN, encoding="utf-8")
    monkeypatch.delenv("PAYCLIENT_TOKEN")
    monkeypatch.setenv("PAYCLIENT_TOKEN_FILE", "token")
    assert main(["doctor", "--profile", "shop.toml", "--ledger", "sqlite:charges.db"]) == 0
    assert f"base_url: {server.url}, from the profile" in said(capfd)["ok"]
    (tmp_path / "token").write_text("", encoding="utf-8")
    assert main(["doctor", "--profile", "shop.toml", "--ledger", "sqlite:charges.db"]) == 4
    assert said(capfd)["wrong"] == ["the token file token: token must be a text that is not empty"]


@pytest.mark.parametrize(
    ("options", "token", "words"),
    [
        (["--base-url", "http://pay.example"], TOKEN, "must be https"),
        (["--base-url", "https://user:geheim@pay.example"], TOKEN, "user information"),
        (["--base-url", "http://127.0.0.1:1"], "Bearer geheim", "without the word Bearer"),
        (["--base-url", "http://127.0.0.1:1"], "<ACCESS_TOKEN>", "placeholder"),
        (["--base-url", "http://127.0.0.1:1"], "with a blank", "blanks"),
        (["--base-url", "http://127.0.0.1:1"], TOKEN, "not reachable: ClientConnectorError (ECONNREFUSED)"),
        (["--base-url", "https://127.0.0.1:{port}"], TOKEN, "ClientConnectorSSLError"),  # it has no TLS
        (["--base-url", "https://pay.invalid", "--ledger", "memory:"], TOKEN, "forgets what was charged"),
        (["--ledger", "sqlite:no/such/place.db"], TOKEN, "directory does not exist"),
        (["--ledger", "sqlite:shop.toml"], TOKEN, "not a SQLite database"),
        (["--ledger", "mysql:x"], TOKEN, "ledger must be"),
        (["--profile", "bad.toml"], TOKEN, "unknown profile setting colour"),
    ],
)
def test_what_is_wrong_is_named(
    server: Server, options: list[str], token: str, words: str,
    monkeypatch: pytest.MonkeyPatch, capfd: Said,
) -> None:  # fmt: skip
    """In words, without repeating what may be a secret, and the rest is looked at all the same; exit 4."""
    monkeypatch.setenv("PAYCLIENT_TOKEN", token)
    Path("bad.toml").write_text("colour = 'red'", encoding="utf-8")
    port = str(server.server_address[1])
    assert doctor(server, *(each.replace("{port}", port) for each in options)) == 4
    lines = said(capfd)
    assert any(words in text for text in lines["wrong"]), lines
    assert "geheim" not in json.dumps(lines)


@pytest.mark.parametrize(
    ("misspelt", "shown"),
    [
        ("postgresql:shop:s3cr@et@127.0.0.1/shop", "***@127.0.0.1/shop"),
        ("shop:s3cret@127.0.0.1/shop", "***@127.0.0.1/shop"),
        ("host=127.0.0.1 user=shop password=s3cret", "host=127.0.0.1 user=shop password=***"),
    ],
)
def test_the_password_of_a_misspelt_ledger_is_not_shown(misspelt: str, shown: str, capfd: Said) -> None:
    """An address that is not one, or that stands in the place of a word, is shown without what opens it."""
    assert main(["doctor", "--ledger", misspelt]) == 4
    assert main(["ledger", "list", f"postgresql://shop:s3cret@{misspelt}"]) == 2
    said = "".join(capfd.readouterr())
    assert f"ledger: {shown}, from --ledger" in said
    assert "postgresql://shop:***@" in said
    assert "cret" not in said


def test_a_gap_is_no_failure(server: Server, capfd: Said) -> None:
    """Without a status query everything works but knowing: exit 3."""
    assert doctor(server, "--profile", "document") == 3
    assert any("session.status raises ConfigurationError" in text for text in said(capfd)["gap"])


def test_the_certificate_is_looked_at(server: Server, monkeypatch: pytest.MonkeyPatch, capfd: Said) -> None:
    """Trusted by this machine, and for the host's name; else nothing is asked over it."""
    server.socket = server_context().wrap_socket(server.socket, server_side=True)
    server.url = server.url.replace("http:", "https:")
    assert doctor(server) == 4
    assert any("certificate is not trusted: self" in text for text in said(capfd)["wrong"])
    assert server.seen == []
    # In a process of its own: what a machine trusts is read once.
    Path("trusted.pem").write_text(CERTIFICATE, encoding="utf-8")
    environ = os.environ | {"PYTHONPATH": str(ROOT), "SSL_CERT_FILE": "trusted.pem"}
    options = ["--base-url", server.url, "--profile", "shop.toml", "--ledger", "sqlite:charges.db"]
    assert subprocess.call([*PYTHON, "doctor", *options], env=environ) == 0
    assert any(text.startswith("TLS: the certificate is trusted") for text in said(capfd)["ok"])
    assert len(server.seen) == 1


def test_a_full_disk(server: Server, capfd: Said) -> None:
    """A ledger that opens takes no permit where what is written finds no room: exit 4."""

    async def killed() -> None:
        async with contextlib.aclosing(await open_ledger("sqlite:first.db")) as ledger:
            for number in range(20):
                await ledger.permit(fresh(f"order-{number}"))
            for each in ("", "-wal"):
                shutil.copyfile(f"first.db{each}", f"charges.db{each}")

    asyncio.run(killed())
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (os.path.getsize("charges.db-wal"), hard))
    try:
        code = doctor(server)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert code == 4
    assert "the ledger could not be" in said(capfd)["wrong"][0]


def test_a_ledger_in_use_is_its_owners(server: Server, capfd: Said) -> None:
    """It is not looked at, and nothing is wrong; a free one is opened and closed again."""

    async def while_open() -> int:
        async with contextlib.aclosing(await open_ledger("sqlite:charges.db")):
            return await asyncio.to_thread(doctor, server)

    assert asyncio.run(while_open()) == 0
    assert any("open in another process" in text for text in said(capfd)["note"])
    assert doctor(server) == 0
    assert any("opens, and every setting" in text for text in said(capfd)["ok"])


def test_the_gaps_of_a_profile() -> None:
    """Each name that is missing, with the call that will raise; a whole profile has none."""
    texts = [line.text for line in check_profile(DOCUMENT)]
    raising = "confirm, returned, cancel, reverse, nick_name_flag, language_field"
    for name in ("[status]", raising):
        assert any(text.startswith(f"no {name}") for text in texts)
    whole = attrs.evolve(
        find_profile("payphone"), wallet_link_field="payWithX", queries_per_minute=30,
    )  # fmt: skip
    assert [line.text for line in check_profile(whole) if line.level != "ok"] == []
    status = {"by_transaction_id": "/s/{transaction_id}", "state_field": "s", "states": {"A": "Aceptado"}}
    half = ServiceProfile.parse({"status": status})
    gaps = [line.text for line in check_profile(half) if line.level == "gap"]
    assert "stays unknown until an operator" in gaps[0]
    assert "no word to Cancelado, Pendiente" in gaps[1]


def test_a_page_of_the_merchants(server: Server, capfd: Said) -> None:
    """Its exit code tells, and words what to change; a site-wide policy lets style and scripts be files."""
    site = ("--site", f"{server.url}/checkout")
    for headers, page in (
        ({"Referrer-Policy": "same-origin"}, ""),
        ({}, '<meta name="referrer" content="no-referrer">'),
    ):
        server.headers, server.page = headers, page
        assert doctor(server, *site) == 4
        assert server.seen[-1][1] == "/checkout"
        assert "access denied" in said(capfd)["wrong"][0]
    server.headers = {"Referrer-Policy": "origin", "Content-Security-Policy": "default-src 'self'"}
    server.page = ""
    assert doctor(server, *site) != 4
    assert any("assets=" in each for each in said(capfd)["note"])


def test_a_page_that_comes_compressed(server: Server, capfd: Said) -> None:
    """Some hosts store pages compressed, whatever is asked for: the policy in such a page cannot be read."""
    server.headers = {"Content-Encoding": "gzip"}
    server.page = "\x1f not HTML"
    assert doctor(server, "--site", server.url) == 4
    results = said(capfd)
    assert any("cannot be read: it comes compressed (gzip)" in text for text in results["wrong"])
    assert not any("referrer" in text for text in results["ok"])


def test_a_page_that_moves_on_or_fails(server: Server, capfd: Said) -> None:
    """A redirect is named, so that the page itself is given; none at all is said, and so is what no page can be."""
    server.status, server.headers = 302, {"Location": "/new"}
    doctor(server, "--site", server.url)
    assert any("HTTP 302; give the page that customers leave from" in text for text in said(capfd)["note"])
    assert all(path != "/new" for _, path, _ in server.seen)
    for site, words in (
        ("shop.example", "--site: must be an address"),
        ("file:///etc/passwd", "--site: must be an address"),
        ("https://[shop.example", "--site: must be an address"),
        ("https://u:p@shop.example/", "--site: must be an address"),
        ("http://127.0.0.1:1/", "cannot be read"),
    ):
        assert doctor(server, "--site", site) == 4
        assert any(words in text for text in said(capfd)["wrong"])
