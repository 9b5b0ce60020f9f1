"""Mixed load on one broker process for as long as asked, and a verdict: `make soak MINUTES=30`."""
