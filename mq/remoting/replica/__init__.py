"""RocketMQ's HA wire: copies of a store, and the stores that copies are made of.

framing.py      what travels, as bytes and back (pure)
listener.py     the master's end: accepts followers, mq's and RocketMQ's slaves
overlap.py      where a follower begins to compare, and where logs part (pure)
follower.py     the replica's end: one connection after the other
directory.py    the replica's store, open, and opened anew after a cut
master.py       what a replica asks its master beside the log: settings, topics, offsets
tables.py       those, as files of the replica's directory
following.py    the threads of one replica, and what is open for them
replica.py      what replicate() returns
"""
