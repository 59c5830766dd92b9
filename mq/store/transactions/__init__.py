"""mq/transactions: what became of each transaction."""
