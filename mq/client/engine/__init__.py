"""The engine of consumers: which queues are mine, one owned queue, dispatch, send-back, commit."""
