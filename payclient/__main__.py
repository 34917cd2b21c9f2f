"""`python -m payclient` is the command `payclient`."""

import sys

from payclient.cli import main

sys.exit(main())
