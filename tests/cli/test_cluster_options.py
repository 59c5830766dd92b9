"""The command line on a cluster with access keys, TLS and a namespace, and what only a directory can do.

The cluster is a directory that is served; `tests/cluster/test_command.py` has a real one.
"""

from __future__ import annotations

import socket
import ssl
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

import mq
from mq.remoting import serve
from mq.remoting.server.server import Server
from tests.cli.conftest import ENVIRONMENT, Answer, Run, command
from tests.support.cluster.certificates import Certificates

KEY, SECRET = "operator", "the-secret-of-the-operator"
LIMIT = 120.0


@pytest.fixture
def store(directory: Path) -> Iterator[mq.LocalBroker]:
    with mq.open(directory) as opened:
        yield opened


@pytest.fixture
def authority(tmp_path: Path) -> Path:
    """A file with the authority of the secured server's certificate."""
    return Certificates(tmp_path / "tls").authority


@pytest.fixture
def secured(store: mq.LocalBroker, authority: Path) -> Iterator[Server]:
    """A server that wants a signature and TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.parent / "server.pem", authority.parent / "server.key")
    with serve(store, port=0, namesrv_port=0, access_keys={KEY: SECRET}, tls=context) as server:
        yield server


@pytest.fixture
def secret_file(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.write_text(SECRET + "\n")
    return path


def run_with(environment: Mapping[str, str], *arguments: str | Path) -> Answer:
    """Run the command with environment variables of its own."""
    return Answer(
        subprocess.run(
            command(*map(str, arguments)),
            env={**ENVIRONMENT, **environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=LIMIT,
            check=False,
        )
    )


def bodies(topic: mq.Topic) -> list[bytes]:
    return [message.body for queue in topic.queues for message in queue.read(0).messages]


def test_a_signed_and_encrypted_cluster_takes_every_verb(
    store: mq.LocalBroker, bare: Run, secured: Server, authority: Path, secret_file: Path
) -> None:
    def done(*arguments: str) -> Answer:
        answer = bare(
            *("--access-key", KEY, "--secret-key-file", str(secret_file), "--json"),
            *(f"rocketmq://{secured.name_server}", f"--tls-ca={authority}", "--timeout", "60"),
            *arguments,
        )
        assert (answer.status, answer.err) == (0, "")
        return answer

    done("create", "orders", "--queues", "1")
    assert [each["topic"] for each in done("topics").objects] == ["orders"]
    [sent] = done("send", "orders", "hello", "--keys", "k1").objects
    assert bodies(store.topic("orders")) == [b"hello"]
    assert [each["body"] for each in done("show", sent["msg_id"]).objects] == ["hello"]
    assert len(done("query", "orders", "k1").objects) == 1
    assert [each["body"] for each in done("tail", "orders", "--no-follow").objects] == ["hello"]
    assert len(done("consume", "orders", "--group", "billing", "--count", "1").objects) == 1
    assert [each["group"] for each in done("groups").objects] == ["billing"]
    [look] = done("top", "--count", "1").objects
    assert [each["topic"] for each in look["topics"]] == ["orders"]
    done("reset", "billing", "orders", "--to", "earliest")
    [late] = done("send", "orders", "late", "--delay-ms", "3600000").objects
    done("recall", late["recall_handle"])
    done("delete", "orders")
    assert "orders" not in store.topics()


def test_the_environment_has_the_secret_too(
    store: mq.LocalBroker, secured: Server, authority: Path, secret_file: Path
) -> None:
    store.create_topic("orders", 1)
    target = f"rocketmq://{secured.name_server}"
    given = {"MQ_ACCESS_KEY": KEY, "MQ_TLS_CA": str(authority), "MQ_TIMEOUT": "60"}
    for secret in ({"MQ_SECRET_KEY": SECRET}, {"MQ_SECRET_KEY_FILE": str(secret_file)}):
        answer = run_with({**given, **secret}, target, "topics", "--json")
        assert (answer.status, answer.err) == (0, "")
        assert [each["topic"] for each in answer.objects] == ["orders"]
    # A directory is opened as ever.
    assert run_with({**given, "MQ_SECRET_KEY": SECRET}, store.path, "topics", "--json").status == 0


def test_a_wrong_secret_and_an_unknown_authority_are_one_line(
    bare: Run, secured: Server, authority: Path, tmp_path: Path
) -> None:
    target, wrong = f"rocketmq://{secured.name_server}", tmp_path / "wrong"
    wrong.write_text("not-the-secret")
    refused = bare(
        *("--access-key", KEY, "--secret-key-file", str(wrong)),
        *("--tls-ca", str(authority), "--timeout", "60", target, "topics"),
    )
    assert (refused.status, len(refused.err.splitlines())) == (1, 1)
    assert "no valid signature" in refused.err
    assert "not-the-secret" not in refused.err
    unknown = bare("--tls", "--timeout", "60", target, "topics")
    assert (unknown.status, len(unknown.err.splitlines())) == (1, 1)
    assert "certificate" in unknown.err


def test_a_namespace_is_put_before_names(store: mq.LocalBroker, bare: Run) -> None:
    with serve(store, port=0, namesrv_port=0) as server:
        target = f"rocketmq://{server.name_server}"
        given = (target, "--namespace", "shop", "--timeout", "60")
        assert bare(*given, "create", "orders").status == 0
        assert store.topics() == ["shop%orders"]
        answer = bare(*given, "topics", "--json")
        assert [each["topic"] for each in answer.objects] == ["orders"]


def test_the_time_limit_is_that_of_the_option(bare: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        answer = bare(f"rocketmq://{address}", "--timeout", "0.25", "topics")
    assert answer.status == 1
    assert "0.25" in answer.err


def test_copy_reaches_a_secured_target(
    store: mq.LocalBroker, bare: Run, secured: Server, authority: Path, secret_file: Path, tmp_path: Path
) -> None:
    with mq.open(tmp_path / "source") as source:
        source.create_topic("orders", 1).send(b"one")
    target = f"rocketmq://{secured.name_server}"
    own = ["--access-key", KEY, "--secret-key-file", str(secret_file), "--tls-ca", str(authority)]
    own += ["--timeout", "60"]
    answer = bare(str(tmp_path / "source"), *own, "copy", target)
    assert (answer.status, answer.err) == (0, "")
    assert bodies(store.topic("orders")) == [b"one"]


def test_copy_between_clusters_has_options_for_each(
    store: mq.LocalBroker, bare: Run, secured: Server, authority: Path, secret_file: Path, tmp_path: Path
) -> None:
    target = f"rocketmq://{secured.name_server}"
    own = ["--target-access-key", KEY, "--target-secret-key-file", str(secret_file)]
    own += ["--target-tls-ca", str(authority), "--target-namespace", "there", "--target-timeout", "60"]
    with mq.open(tmp_path / "source") as source, serve(source, port=0, namesrv_port=0) as server:
        source.create_topic("here%orders", 1).send(b"one")
        begun = [f"rocketmq://{server.name_server}", "--namespace", "here", "--timeout", "60", "copy", target]
        assert bare(*begun).status == 1  # Nothing that is for DIR goes to TARGET.
        answer = bare(*begun, *own)
        assert (answer.status, answer.err) == (0, "")
    assert bodies(store.topic("there%orders")) == [b"one"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--access-key", "k", "rocketmq://h", "topics"), "MQ_SECRET_KEY"),
        (("--secret-key-file", "FILE", "rocketmq://h", "topics"), "--access-key"),
        (("--tls-ca", "FILE", "rocketmq://h", "topics"), "no such PEM file"),
        (("--tls-certificate", "FILE", "rocketmq://h", "topics"), "no such PEM file"),
        (("--tls-ca", "absent.pem", "rocketmq://h", "topics"), "does not exist"),
        (("--timeout", "-1", "rocketmq://h", "topics"), "timeout"),
        (("rocketmq://h", "topics", "--tls"), "stands before the verb"),
        (("DIR", "--namespace", "shop", "topics"), "is a directory"),
        (("DIR", "copy", "rocketmq://h", "--target-access-key", "k"), "MQ_TARGET_SECRET_KEY"),
    ],
)
def test_wrong_options_are_refused(
    bare: Run, directory: Path, secret_file: Path, arguments: tuple[str, ...], said: str
) -> None:
    places = {"FILE": str(secret_file), "DIR": str(directory)}
    answer = bare(*(places.get(argument, argument) for argument in arguments))
    assert answer.status == 2
    assert said in " ".join(answer.err.split())
    assert SECRET not in answer.err
    assert not directory.exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ("bench",),
        ("expire", "--dry-run"),
        ("redrive", "billing"),
        ("replicate", "127.0.0.1:1"),
        ("retention",),
        ("serve", "--port", "0", "--name-server-port", "0"),
        ("settings",),
        ("sinks",),
        ("timers",),
        ("verify",),
    ],
    ids=" ".join,
)
def test_what_needs_a_directory_says_so(bare: Run, arguments: tuple[str, ...]) -> None:
    answer = bare("rocketmq://127.0.0.1:1", *arguments)
    assert (answer.status, len(answer.err.splitlines())) == (1, 1)
    assert "directory" in answer.err
    assert "cluster" in answer.err
