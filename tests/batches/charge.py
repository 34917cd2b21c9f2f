"""`payclient` with time-outs as short as the campaign's sale window."""

import sys
from functools import partial

import payclient
from payclient.cli import main, settings

from .service import TOTAL

settings.open_tracker = partial(  # type: ignore[assignment]  # the same with one argument given
    payclient.open_tracker, timeouts=payclient.Timeouts(connect=TOTAL, total=TOTAL)
)

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
