"""The verbs that let others in, and follow others, by the network."""
