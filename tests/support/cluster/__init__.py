"""Real RocketMQ beside the tests: name servers, brokers of 5.3 and 4.9 with slaves, and Java clients.

    with Cluster([BrokerPlan("a"), BrokerPlan("b")]) as cluster:
        cluster.brokers["a"].kill()
        with cluster.clients() as java:
            java.send("orders", b"one")

Every server is a process of its own, on ports and in a directory of its own, and runs RocketMQ's own start-up
class from Maven Central's artifacts. `shared` keeps one cluster for all processes of a test run, for tests
that stop none of its servers; a test that does makes its own.
"""
