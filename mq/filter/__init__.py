"""Expressions over messages: which ones a reader wants."""
