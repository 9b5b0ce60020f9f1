"""The user properties of 5.0, both ways: the one property that a packet may have by the hundred thousand."""

# No state: see user_properties.pyx.
