"""Topics: which there are, their settings, and what their groups have not read."""
