"""Fuzzing: one module a target, each mutates valid inputs of its own making; `python -m tests.tools.fuzz` runs them."""
