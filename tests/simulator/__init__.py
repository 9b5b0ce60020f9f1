"""One seed, one run: the real router, protocol and sessions under simulated clients, network and clock."""
