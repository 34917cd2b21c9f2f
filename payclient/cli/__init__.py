"""The command `payclient`: `app` names the module of each command, which mostly is that of its own name.

Of a run over rows read `charge`, `plan`, `run`, `lines`, `report`, `progress`, `summary`, then the page for people:
`page`, with its template `report.html.j2`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

__all__: list[str] = []


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and give its exit code."""
    try:
        import cyclopts  # noqa: F401 - only whether they are there
        import jinja2  # noqa: F401 - likewise
        import python_calamine  # noqa: F401 - likewise
        import rich  # noqa: F401 - likewise
    except ModuleNotFoundError:
        print(
            "payclient: the command line needs more packages: pip install 'payclient[cli]'", file=sys.stderr
        )
        return 2
    from payclient.cli.app import run

    return run(sys.argv[1:] if arguments is None else arguments)
