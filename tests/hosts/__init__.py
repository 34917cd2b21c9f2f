"""One batch on several hosts: `payclient charge` over one PostgreSQL, its processes killed and stopped at any moment.

Read `child` (the command, with short leases), then `harness` (who kills, and what is compared). The long command is
`PYTHONPATH=.:tests python -m hosts --kills 200 --stops 200`.
"""
