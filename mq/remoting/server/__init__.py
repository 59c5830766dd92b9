"""The server: a name server and a broker for RocketMQ's clients, over any Broker of mq.api.

server.py             Server, which serve() returns
endpoint.py           the listening sockets, and their shutdown
options.py            limits
transport/            connections, and the threads that run their requests
dispatch.py           the table of handlers by request code, and their threads
replies.py            the reply of a handler, and the response code of an error
served.py             the state that all handlers share
holding.py            held pulls, which wait for a message
reply_relay.py        replies that reach another server of the same directory
handlers/             the handlers of all requests
groups/               remote members of consumer groups

One thread runs the event loop. Work that may block (on a disk, a lock, or a cluster behind the broker) runs
in a thread pool. The server uses only the interfaces of mq.api.
"""
