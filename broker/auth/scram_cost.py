"""How much work a SCRAM login is: numbers that the command line shows without loading what makes one."""

ITERATIONS = 15_000  # of new credentials: each login costs the client so many HMACs
ITERATIONS_MIN = 4096  # RFC 7677, section 4
ITERATIONS_MAX = 10_000_000  # a login costs the client so many
