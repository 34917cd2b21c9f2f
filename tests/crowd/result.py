"""What a run of a crowd found."""

from __future__ import annotations

import attrs

__all__ = ["Result"]


@attrs.frozen(kw_only=True)
class Result:
    """Counts of one run."""

    sales: int
    accepted: int
    queries: int
    #: Client transaction ids whose outcome is not what the service decided.
    different: tuple[str, ...]

    def __str__(self) -> str:
        return (
            f"{self.sales:,} sales, {self.accepted:,} accepted, {self.queries / self.sales:.1f} queries each, "
            f"{len(self.different)} outcomes differ from the service's truth {self.different[:5] or ''}"
        )
