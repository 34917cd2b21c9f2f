"""Campaigns of real processes: they charge, are killed and stopped; what they say is held against what was done.

Read `child` (what is hit, and where), `harness` (what it talks to, who hits and compares), `scenarios`, in this order.
The long commands: `PYTHONPATH=.:tests python -m campaigns crashes | batches | hosts | power`.
"""
