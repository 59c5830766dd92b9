"""Connections to name servers and brokers.

options.py             what a client is told: time limits, TLS, credentials
addresses.py           host:port, and lists of them
dial.py                a socket, connected, with TLS where that is asked for
connection.py          one connection: requests, answers, requests of the other end
remoting.py            requests to any address: connections by address, back-off, idle, GO_AWAY
answers.py             requests by their class in the table, and errors out of answers
name_servers.py        a request to whichever name server answers
cluster.py             the routes of topics and the addresses of brokers, kept fresh
"""
