"""The other end of the wire: name server and broker endpoint over any Broker of mq.api.

server.py             what serve() returns
endpoint.py           listens, and closes
options.py            limits, addresses, credentials
connection.py         one connection: frames in and out, paused where the other end reads slowly
dispatch.py           the table of handlers by request code, and how they run
replies.py            what a handler returns, and which answer an error is
served.py             what all handlers share
holding.py            pulls that wait for a message
handlers/             what each request does
groups/               members of consumer groups that are at the other end of a connection

One thread runs the event loop. What may wait (for a disk, a lock, a cluster behind the broker) runs in a pool
of threads. Only the border, mq.api, knows what is stored.
"""
