"""`payclient` with time-outs as short as the campaign's sale window."""

import sys
from functools import partial
from unittest.mock import patch

import payclient
from payclient.cli import main

from .service import TOTAL

if __name__ == "__main__":
    hasty = partial(payclient.open_tracker, timeouts=payclient.Timeouts(connect=TOTAL, total=TOTAL))
    with patch("payclient.cli.settings.open_tracker", hasty):
        sys.exit(main(sys.argv[1:]))
