"""Connections, and the threads that run their requests. Nothing here knows what a request asks.

listener.py   listening sockets, TLS             connection.py   one connection: frames in and out, limits
certificate.py   a certificate signed by itself  workers.py      threads, in which connections take turns
"""
