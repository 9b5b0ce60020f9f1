"""Reading the log after the fact."""
