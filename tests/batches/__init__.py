"""`payclient charge` over a service with faults, killed at random and run again, beside what the service did.

Read `service` (what it talks to), `charge` (what is killed), `harness` (who kills, and compares), in this order. The
long command is `PYTHONPATH=.:tests python -m batches --rows 5000 --kills 10`.
"""
