"""RocketMQ's HA protocol: replicas and their masters.

framing.py          encode and decode the protocol (pure)
listener.py         the master's end: accepts replicas of mq and slaves of RocketMQ
overlap.py          where a replica begins to compare its log, and where logs diverge (pure)
follower.py         the replica's end: one connection after the other
directory.py        the replica's store; reopened after its tail was truncated
master.py           requests to the master besides the log: settings, topics, offsets
tables.py           the answers, as files in the replica's directory
replica_threads.py  the threads of one replica, and their resources
replica.py          Replica, which replicate() returns
"""
