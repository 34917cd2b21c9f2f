"""`payclient`, for a world in which everything is a hundred times as quick: time-outs, leases, polls."""

import asyncio
import signal
import sys
from functools import partial

import payclient
from payclient.cli import main, settings
from payclient.following import sharing
from payclient.ledger import postgres
from payclient.ledger import postgres_listening as listening
from payclient.schedule import Fixed

TOTAL = 1.0
WINDOW = 3.0
LEASE = 1.5

sharing.LEASE, sharing.RENEW, sharing.SENDING_GRACE = LEASE, 0.3, 0.5
listening.POLL = 1.0
postgres.PostgresLedger.open.__func__.__kwdefaults__["poll"] = 1.0  # type: ignore[attr-defined]  # bound when it was defined
settings.open_tracker = partial(  # type: ignore[attr-defined]  # what `charge` opens
    payclient.open_tracker,
    timeouts=payclient.Timeouts(connect=TOTAL, total=TOTAL),
    schedule=Fixed(0.2),
)


def say_where(*_: object) -> None:
    """Asked by whoever finds it asleep."""
    for task in asyncio.all_tasks():
        task.print_stack(file=sys.stderr)


if __name__ == "__main__":
    signal.signal(signal.SIGUSR1, say_where)
    sys.exit(main(sys.argv[1:]))
