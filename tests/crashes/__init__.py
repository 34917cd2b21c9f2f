"""Real crashes: processes that charge are killed and stopped, and what they say is held against what was done.

Read `child` (what is killed, and where), `service` (what it talks to), `harness` (who kills), in this order. The long
command is `PYTHONPATH=.:tests python -m crashes --kills 200 --stops 100`.
"""
