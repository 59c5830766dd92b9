"""Connections to name servers and brokers.

options.py             the client's options: time limits, TLS, credentials
addresses.py           host:port, and lists of them
dial.py                connect a socket, with TLS if configured
connection.py          one connection: requests, answers, requests of the other end
remoting.py            requests to any address: connection pool, back-off, idle time, GO_AWAY
answers.py             frames of requests, and errors from answers
name_servers.py        a request to the first name server that answers
cluster.py             the routes of topics and the addresses of brokers, refreshed regularly
"""
