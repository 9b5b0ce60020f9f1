"""Routers to one another."""
