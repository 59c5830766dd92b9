"""What clients and brokers share: the protocols of the border, and the values that cross it."""
