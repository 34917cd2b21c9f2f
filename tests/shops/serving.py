"""Runs a shop of the guides as a real process of its own, and looks at what it leaves on stderr."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import attrs

__all__ = [
    "BLOCKS", "COMMANDS", "PRESET", "PROFILE", "ROOT", "SECRET", "UVICORN", "WINDOW", "Shop", "blocks_of", "gunicorn",
    "serving",     "write_modules",
]  # fmt: skip

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


def blocks_of(*topics: str) -> dict[str, str]:
    """The modules of these guides, by name."""
    guides = [(ROOT / "payclient" / "guide" / f"{topic}.md").read_text("utf-8") for topic in topics]
    found = re.findall(r"^```python\n# (\w+)\.py.*?\n(.*?)^```$", "\n".join(guides), re.MULTILINE | re.DOTALL)
    return dict(found)


#: The modules that are a shop together.
BLOCKS = blocks_of("shop", "web", "aiohttp", "django", "sync")


def write_modules(folder: Path, shop_url: str, profile: str = PROFILE, drain: float = 10) -> None:
    """Write the guides' modules as they stand, but for the shop's address and `drain`, and a profile beside them."""
    (folder / "shop.toml").write_text(profile, encoding="utf-8")
    changed = {"https://shop.example": shop_url, "drain=10": f"drain={drain:g}"}
    for name, text in BLOCKS.items():
        for old, new in changed.items():
            text = text.replace(old, new)
        (folder / f"{name}.py").write_text(text, encoding="utf-8")


UVICORN = ("-m", "uvicorn", "--fd", "{fd}", "--lifespan", "on", "--no-access-log", "--log-level", "warning")


def gunicorn(app: str, workers: int) -> tuple[str, ...]:
    """Served by gunicorn; with more workers than one the ledger must be one that processes share."""
    return (
        "-m", "gunicorn", "-k", "uvicorn_worker.UvicornWorker", "-w", str(workers), "--bind", "fd://{fd}",
        app,
    )  # fmt: skip


AIOHTTP = """
import socket, shop_aiohttp
from aiohttp import web
web.run_app(shop_aiohttp.make_app(), sock=socket.socket(fileno={fd}), access_log=None, print=None)
"""

#: How each shop is served, on an inherited socket.
COMMANDS: dict[str, tuple[str, ...]] = {
    "aiohttp": ("-c", AIOHTTP),
    "fastapi": (*UVICORN, "shop_fastapi:app"),
    "django": (*UVICORN, "shop_django:app"),
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
    """A running shop. After the end, `err` holds what it wrote there."""

    url: str
    process: subprocess.Popen[bytes]
    err: str = ""


@contextmanager
def serving(
    kind: str | tuple[str, ...],
    service_url: str,
    folder: Path,
    *,
    ledger: str | None = None,
    host: str = "127.0.0.1",
    profile: str = PROFILE,
    drain: float = 10,
    expected: str = r"\Z",
) -> Iterator[Shop]:
    """A shop in a process of its own until the end of the block, where it is stopped as an operator would.

    What matches `expected` on its stderr is no leak.

    It is awaited by nobody: its socket listens already, and the first request waits for it. Fails if it does not end
    well, or if a warning of a leak is on its stderr.
    """
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listener:
        url = f"http://{host}:{listener.getsockname()[1]}"
        listener.set_inheritable(True)
        write_modules(folder, url, profile, drain)
        command = COMMANDS[kind] if isinstance(kind, str) else kind
        with (folder / "err").open("wb") as err:
            process = subprocess.Popen(
                [*_PYTHON,
                 *(word.format(fd=listener.fileno()) for word in command)],
                cwd=folder, stderr=err, pass_fds=[listener.fileno()],
                env={
                    **os.environ,
                    "HOME": str(folder),  # where gunicorn puts a socket to control it by
                    "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")]),
                    "PAYCLIENT_BASE_URL": service_url,
                    "PAYCLIENT_TOKEN": "secret",
                    "PAYCLIENT_PROFILE": str(folder / "shop.toml"),
                    "PAYCLIENT_LEDGER": ledger or f"sqlite:{folder / 'charges.db'}",
                    "SHOP_SECRET": SECRET,
                    "SHOP_URL": url,
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
        shop.err = (folder / "err").read_text(errors="replace")
        if process.returncode not in (0, -signal.SIGTERM):
            print(shop.err, file=sys.stderr)
    # uvicorn ends by the signal that it was sent, once it has shut down.
    assert process.returncode in (0, -signal.SIGTERM), process.returncode
    assert not _LEAK.search(re.sub(expected, "", _GUNICORNS.sub("", shop.err))), shop.err
