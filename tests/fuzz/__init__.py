"""Fuzzing: one module a target, each with valid inputs of its own making, mutated; `python -m tests.fuzz` runs them."""
