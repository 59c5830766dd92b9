"""Remote members of consumer groups, each at the other end of a connection.

member.py     one member: its membership in the group, and the queues that are held for it
members.py    all members of one server: heartbeats, lost connections, notifications of changes
"""
