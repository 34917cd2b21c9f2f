"""Campaigns of real processes: they charge, are killed and stopped; what they say is held against what was done.

Read `service` (what they talk to), `child` (what is hit, and where), `harness` (who hits and compares), `scenarios`,
in this order. The long commands: `PYTHONPATH=.:tests python -m campaigns crashes | batches | hosts | crowd | power`.
"""
