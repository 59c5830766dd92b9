"""Transactions of a store: half messages, their ends, and the checks of those without one."""
