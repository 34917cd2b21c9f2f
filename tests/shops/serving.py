"""Runs a shop as a real process of its own, and looks at what it leaves on stderr."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import attrs

__all__ = [
    "COMMANDS",
    "PRESET",
    "PROFILE",
    "ROOT",
    "SECRET",
    "UVICORN",
    "WINDOW",
    "Shop",
    "gunicorn",
    "serving",
]

ROOT = Path(__file__).parents[2]
SECRET = "a secret of the test's own"  # 16 bytes and more

#: Seconds: short, so that it is asked for every 0.2 s, and long enough that the shop's clock decides nothing.
WINDOW = 30.0

PROFILE = f"""
sale_window = {WINDOW}
form_window = 600
not_found_codes = [20]
[status]
by_transaction_id = "/api/Sale/{{transaction_id}}"
by_client_transaction_id = "/api/Sale/client/{{client_transaction_id}}"
state_field = "transactionStatus"
"""

#: The preset, without its 2 s between two queries.
PRESET = (
    (ROOT / "payclient" / "profiles" / "payphone.toml")
    .read_text(encoding="utf-8")
    .replace("queries_per_minute = 30\n", "queries_per_minute = 60000\n")
)

UVICORN = ("-m", "uvicorn", "--fd", "{fd}", "--lifespan", "on", "--no-access-log", "--log-level", "warning")


def gunicorn(app: str, workers: int) -> tuple[str, ...]:
    """Served by gunicorn; with more workers than one the ledger must be one that processes share."""
    return (
        "-m", "gunicorn", "-k", "uvicorn_worker.UvicornWorker", "-w", str(workers), "--bind", "fd://{fd}",
        app,
    )  # fmt: skip


#: How each shop is served, on an inherited socket.
COMMANDS: dict[str, tuple[str, ...]] = {
    "aiohttp": ("-m", "shops.aiohttp_shop", "{fd}"),
    "starlette": (*UVICORN, "shops.starlette_shop:app"),
    "django": (*UVICORN, "shops.django_shop:app"),
    "gunicorn": gunicorn("shops.django_shop:app", 1),
}

#: Leaks are errors; that a framework uses something old is not ours to mend.
_PYTHON = (sys.executable, "-X", "dev", "-W", "error", "-W", "ignore::DeprecationWarning",
           "-W", "ignore::PendingDeprecationWarning")  # fmt: skip

#: What a leaked session, task, socket or thread says as it dies.
_LEAK = re.compile(
    r"Traceback|Warning|Unclosed|unclosed|never (retrieved|awaited)|was destroyed|still running|Exception ignored|"
    r"Fatal|ERROR"
)


#: gunicorn's own copy of an inherited socket, which it never closes.
_GUNICORNS = re.compile(
    r"Exception ignored in: <socket\.socket .*family=1,.*\n"
    r"Traceback .*\n(?: .*gunicorn/arbiter.*\n)(?: .*\n)*"
    r"ResourceWarning: unclosed <socket\.socket .*family=1,.*\n"
)


@attrs.define
class Shop:
    """A running shop. After the end, `out` and `err` hold what it wrote."""

    url: str
    process: subprocess.Popen[bytes]
    out: str = ""
    err: str = ""

    @property
    def heard(self) -> list[tuple[str, str]]:
        """Each notification that the tracker was told of: client transaction id, receipt."""
        return [
            (line.split()[1], line.split()[2]) for line in self.out.splitlines() if line.startswith("heard ")
        ]


@contextmanager
def serving(
    kind: str | tuple[str, ...],
    service_url: str,
    folder: Path,
    *,
    ledger: str | None = None,
    host: str = "127.0.0.1",
    profile: str = PROFILE,
    environ: dict[str, str] | None = None,
    write: Callable[[str], object] = str,
    expected: str = r"\Z",
) -> Iterator[Shop]:
    """A shop in a process of its own until the end of the block, where it is stopped as an operator would.

    `write` is told its address before it starts. What matches `expected` on its stderr is no leak.

    It is awaited by nobody: its socket listens already, and the first request waits for it. Fails if it does not end
    well, or if a warning of a leak is on its stderr.
    """
    (folder / "profile.toml").write_text(profile, encoding="utf-8")
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listener:
        url = f"http://{host}:{listener.getsockname()[1]}"
        listener.set_inheritable(True)
        write(url)
        command = COMMANDS[kind] if isinstance(kind, str) else kind
        with (folder / "out").open("wb") as out, (folder / "err").open("wb") as err:
            process = subprocess.Popen(
                [*_PYTHON,
                 *(word.format(fd=listener.fileno()) for word in command)],
                cwd=folder, stdout=out, stderr=err, pass_fds=[listener.fileno()],
                env={
                    **os.environ,
                    "HOME": str(folder),  # where gunicorn puts a socket to control it by
                    "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")]),
                    "PAYCLIENT_BASE_URL": service_url,
                    "PAYCLIENT_TOKEN": "secret",
                    "PAYCLIENT_PROFILE": str(folder / "profile.toml"),
                    "PAYCLIENT_LEDGER": ledger or f"sqlite:{folder / 'charges.db'}",
                    "SHOP_SECRET": SECRET,
                    "SHOP_URL": url,
                    **(environ or {}),
                },
            )  # fmt: skip
    shop = Shop(url, process)
    try:
        yield shop
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=60)
    finally:
        process.kill()
        process.wait()
        shop.out = (folder / "out").read_text(errors="replace")
        shop.err = (folder / "err").read_text(errors="replace")
        if process.returncode not in (0, -signal.SIGTERM):
            print(shop.err, file=sys.stderr)
    # uvicorn ends by the signal that it was sent, once it has shut down.
    assert process.returncode in (0, -signal.SIGTERM), process.returncode
    assert not _LEAK.search(re.sub(expected, "", _GUNICORNS.sub("", shop.err))), shop.err
