"""Hostile bytes for everything that reads what others wrote, and a second, slower reading to hold it against.

The long command is `PYTHONPATH=.:tests python -m fuzz --runs N`, by atheris; `test_fuzz` does less of it by hypothesis.
"""
