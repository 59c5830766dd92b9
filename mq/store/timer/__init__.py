"""timerwheel and timerlog/: messages that are due at a time of their own."""
