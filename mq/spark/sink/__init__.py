"""The sink: tasks stage rows, the driver appends them once."""
