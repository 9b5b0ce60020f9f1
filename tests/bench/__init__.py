"""The yardstick's runs of this broker: `python -m tests.bench run|check`."""
