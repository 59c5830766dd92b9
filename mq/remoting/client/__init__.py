"""The client's end of the wire: the border of mq.api over connections to a cluster.

connections/           sockets, requests and answers, routes
broker.py              RemoteBroker, and what it is made of
brokers.py             requests to brokers by their name
namespace.py           names on the wire, and as users know them
refusals.py            what a broker refuses, by the border's names
routing.py             the queues of a topic, out of its route
topics.py              the queues of topics as they are now; make, change and delete
sending.py             messages, batches and half messages to a broker
transactions.py        ends, and the checks that brokers ask for
pulling.py             what a pull asks for, and what its answer says
queue_puller.py        pulls for a reader that is no consumer
columns/               queues as columns, from masters and slaves
arrivals.py            what wakes a consumer
heartbeats.py          what tells brokers which groups a client belongs to
groups/                members, the queues they have, their offsets
finding.py             messages by id and key; recall
"""
