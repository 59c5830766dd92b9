"""The screen of `mq DIR top`."""
