"""The yardstick's runs of this broker: `python -m tests.tools.bench run|check`."""
