"""The verbs that use the network: serve and replicate."""
