"""RocketMQ's clients in Go, JavaScript and C++ (through Python), as programs that tests run."""
