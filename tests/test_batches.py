"""A batch through faults and kills; `python -m batches` does the long one."""

from batches.harness import carry_out


def test_every_row_ends_as_the_service_did_it() -> None:
    """Lost answers, 5xx, stalls and 429, killed twice, run again: nobody is charged twice, and each report is true."""
    report = carry_out(rows=150, kills=2, seed=1)
    assert report.violations == []
    assert report.kills >= 1
    assert report.faults
    assert report.outcomes.total() == 150
