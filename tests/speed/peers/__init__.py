"""The peers, one file each, behind the few calls that a case times.

A queue is opened on an empty directory for bodies of one size and is used by one thread. Each call does its
whole loop itself, so that what is timed is the peer and one `for` statement.
"""
