"""The client of a cluster: it implements the interfaces of mq.api over connections to brokers.

connections/           sockets, requests and answers, routes
broker.py              RemoteBroker, and what it is made of
brokers.py             requests to brokers by their name
namespace.py           names on the wire and names for users
broker_errors.py       errors of brokers as the exceptions of mq.errors
routing.py             the queues of a topic, out of its route
topics.py              the current queues of topics; create, change and delete topics
sending.py             messages, batches and half messages to a broker
transactions.py        end transactions; answer the checks of brokers
pulling.py             pull requests and their answers
queue_puller.py        pulls for a reader that is not a consumer
columns/               queues as columns, from masters and slaves
arrivals.py            wake-ups of consumers
heartbeats.py          tells brokers the groups of a client
groups/                members, the queues they own, their offsets
message_query.py       messages by id and key; recall
"""
