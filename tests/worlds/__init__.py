"""Deterministic simulation: the shipped modules and the shipped SQL in a world made from a seed.

`python -m worlds --worlds N --seed S` runs N worlds. In each of them merchants charge, customers answer, and the
network, the service, the disk, the clocks and the processes fail; the oracle, who sees everything, watches.
"""
