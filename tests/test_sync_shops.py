"""The shops of the guide to blocking code, each in processes of its own, against the simulator."""

from __future__ import annotations

import http.client
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

import payclient
from cli_runs import wait_until
from payclient import sync
from payclient.simulator import Fault, Simulator, SimulatorThread
from ports import kept_port
from postgres_server import PostgresServer
from required import module
from shops.serving import ROOT, SECRET, serving, write_modules
from simulated import QUERIES

GUNICORN = ("-m", "gunicorn", "--threads", "8", "--bind", "fd://{fd}", "--graceful-timeout", "20")


@pytest.fixture
def service() -> Iterator[SimulatorThread]:
    with SimulatorThread(Simulator(token="secret", settings=QUERIES)) as thread:
        yield thread


def request(url: str, path: str, method: str = "GET") -> tuple[int, str, str]:
    """The status, the body, and where it redirects to."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode(), answer.getheader("Location") or ""
    finally:
        connection.close()


def hardening(service: SimulatorThread, url: str) -> None:
    """An id that an address escapes, one that is another's beginning, a stranger's, a refusal, and a crawler."""
    for identifier in ("a%20b%26", "a%3Fx=1", "a%25", "a%23"):
        status, _, location = request(url, f"/pay/{identifier}", "POST")
        waits = request(url, location)
        assert (status, waits[0]) == (303, 200), location
        (polled,) = re.findall('data-status="(.*?)"', waits[1])
        assert '"waiting":true' in request(url, unescape(polled))[1].replace(" ", ""), polled
        # The same customer is asked again.
        service.approve(max(service.sales))
        wait_until(lambda at=location: request(url, at)[:2] == (200, "Paid."))  # type: ignore[misc]  # mypy infers no default
    assert [request(url, f"/orders/nobodys{rest}")[0] for rest in ("", "/status")] == [404, 404]
    service.fail_next(Fault("refuse", error_code=21))
    assert request(url, "/pay/refused", "POST")[0] == 409
    assert request(url, "/pay/crawled")[0] == 405
    assert {"refused", "crawled"}.isdisjoint(service.created_per_client_id)


def shopping(service: SimulatorThread, url: str, count: int) -> None:
    """Pushes, the page that waits, and the outcome, over many connections."""
    for number in range(count):
        identifier = f"order-{number}"
        status, _, location = request(url, f"/pay/{identifier}", "POST")
        assert (status, location) == (303, f"/orders/{identifier}")
        assert "Apruebe el pago en su teléfono" in request(url, location)[1]
        (pushed,) = [each for each in service.sales.values() if each.client_transaction_id == identifier]
        assert request(url, f"/pay/{identifier}", "POST")[0] == 303, "a double click"
        service.approve(pushed.transaction_id)
        wait_until(lambda at=location: '"waiting":false' in request(url, f"{at}/status")[1].replace(" ", ""))  # type: ignore[misc]  # mypy infers no default
        # The worker that is asked next is told a moment later, perhaps.
        wait_until(lambda at=location: request(url, at)[:2] == (200, "Paid."))  # type: ignore[misc]  # mypy infers no default
    assert set(service.created_per_client_id.values()) == {1}


def test_two_preloaded_workers_over_one_postgresql(
    service: SimulatorThread, postgres: PostgresServer, database: str, tmp_path: Path
) -> None:
    """Pushes, notifications and forms: each worker opens the tracker that the parent imported, and knows every sale."""
    module("flask")
    command = (*GUNICORN, "--preload", "--workers", "2", "shop_flask:app")
    with serving(command, service.url, tmp_path, ledger=postgres.url(database)) as shop:
        shopping(service, shop.url, count=4)
        hardening(service, shop.url)
        assert request(shop.url, "/notify/forged?id=1")[:2] == (200, "OK")
        with closing(http.client.HTTPConnection(urlsplit(shop.url).netloc, timeout=60)) as endless:
            endless.putrequest("POST", "/notify/forged")
            endless.putheader("Content-Length", "1000000000")
            endless.endheaders(b"x" * 20_000)
            assert endless.getresponse().status == 200, (
                "no more of it is read, or kept, than a notification has"
            )
        service.fail_next(Fault("refuse", error_code=21))
        with closing(http.client.HTTPConnection(urlsplit(shop.url).netloc, timeout=60)) as connection:
            connection.request("POST", "/pay/refused")
            answer = connection.getresponse()
        # The service's message may have markup in it.
        assert (answer.status, answer.headers.get_content_type()) == (409, "text/plain")
        # A query may decide a sale before its notification is answered.
        wait_until(lambda: service.counts.notifications_sent == 8)
        # An order that is paid, by who goes back in the browser; orders and forms that nobody made.
        assert request(shop.url, "/form/order-0")[0] == 409
        for path in ("/orders/nobodys", "/orders/nobodys/status", "/back/nobodys?id=1"):
            assert request(shop.url, path)[0] == 404
        page = request(shop.url, "/form/cart-1")[1]
        assert request(shop.url, "/form/cart-1")[1] == page
        (form,) = service.forms.values()
        back = urlsplit(service.pay(form.payment_id, declined=True))
        status, _, location = request(shop.url, f"{back.path}?{back.query}")
        assert status == 302
        wait_until(lambda: request(shop.url, location)[:2] == (200, "Not paid."))


@contextmanager
def running(
    folder: Path, service: SimulatorThread, *command: str, **environ: str
) -> Iterator[subprocess.Popen[bytes]]:
    """A program beside the guide's modules, which is stopped by SIGTERM and must end."""
    with (folder / "err").open("wb") as err:
        process = subprocess.Popen(
            [sys.executable, *command], cwd=folder, stdout=err, stderr=err, start_new_session=True,
            env={
                **os.environ, "PYTHONPATH": str(ROOT), "PAYCLIENT_TOKEN": "secret", "SHOP_SECRET": SECRET,
                "PAYCLIENT_BASE_URL": service.url, "PAYCLIENT_PROFILE": "shop.toml",
                "PAYCLIENT_LEDGER": f"sqlite:{folder / 'charges.db'}", **environ,
            },
        )  # fmt: skip
        try:
            yield process
            process.send_signal(signal.SIGTERM)
            process.wait(60)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    assert b"Traceback" not in (folder / "err").read_bytes(), (folder / "err").read_text()


def test_django_by_runserver(service: SimulatorThread, tmp_path: Path) -> None:
    """Its reloader has a process beside the one that serves: only this one opens the ledger."""
    with kept_port() as port:
        url = f"http://127.0.0.1:{port}"

        def is_served() -> bool:
            with suppress(ConnectionRefusedError):
                return bool(request(url, "/"))
            return False

        write_modules(tmp_path, url)
        with running(tmp_path, service, "shop_wsgi.py", "runserver", f"127.0.0.1:{port}"):
            wait_until(is_served)
            shopping(service, url, count=1)
            hardening(service, url)


def test_a_celery_task(service: SimulatorThread, tmp_path: Path) -> None:
    """A task that is delivered twice charges once, in the forks of a real worker too."""
    module("celery")
    write_modules(tmp_path, "http://shop.example")
    (tmp_path / "queue").mkdir()
    (tmp_path / "celeryconfig.py").write_text(
        f'broker_url = "filesystem://"; result_backend = "file:///{tmp_path}/queue"\n'
        'broker_transport_options = dict(data_folder_in="queue", data_folder_out="queue", control_folder="queue",'
        " polling_interval=0.05)\n"
        "worker_hijack_root_logger = False\n",
        encoding="utf-8",
    )
    deliver = (
        'import tasks; tasks.app.config_from_object("celeryconfig"); '
        'both = [tasks.charge.delay("order-1") for _ in range(2)]; '
        "print([each.get(timeout=60, interval=0.05) for each in both])"
    )
    worker = ("-m", "celery", "-A", "tasks", "--config", "celeryconfig", "worker", "-P", "prefork", "-c", "1",
              "--without-gossip", "--without-mingle", "--without-heartbeat")  # fmt: skip
    environ = {"PYTHONPATH": str(ROOT), "PAYCLIENT_TOKEN": "secret", "SHOP_SECRET": SECRET}
    with running(tmp_path, service, *worker):
        out = subprocess.run(
            [sys.executable, "-c", deliver], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
            env=os.environ | environ | {"PAYCLIENT_LEDGER": "memory:"},
        )  # fmt: skip
        assert out.stdout == "[None, None]\n", out.stderr + (tmp_path / "err").read_text()
    assert service.created_per_client_id == {"order-1": 1}
    options: Any = {"ledger": f"sqlite:{tmp_path / 'charges.db'}", "profile": str(tmp_path / "shop.toml")}
    with sync.open_tracker(service.url, "secret", **options) as tracker:
        found = tracker.find("order-1")
        assert found is not None
        assert found.state is payclient.State.PENDING
