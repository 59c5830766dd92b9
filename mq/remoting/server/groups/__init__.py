"""Members of consumer groups that are at the other end of a connection.

member.py     one of them: its place in the group, the queues that are held for it
members.py    all of one server: heartbeats, lost connections, and which clients are told of changes
"""
