"""A lake of Parquet or Delta files that has each message once.

It may import source.
"""
