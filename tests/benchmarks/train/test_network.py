"""The networks: what their names promise, measured over real sockets in real namespaces."""

import socket
import statistics
import threading
import time

import pytest

from benchmarks.train import network
from benchmarks.train.child import call
from benchmarks.train.meter import wire_bytes

PORT, PAYLOAD = 15001, 20_000_000
needs_namespaces = pytest.mark.skipif(not network.prefix(), reason="this user may make no network namespaces")


def _measure(kind: str) -> dict[str, float]:
    return call(f"{__name__}:measure_in_namespace", kind, prefix=network.prefix(), python_path="tests/benchmarks/train")


def measure_in_namespace(kind: str) -> dict[str, float]:
    """In a namespace of its own: round trip of a small message, speed and bytes of a large one to a server's place."""
    net = network.build(kind)
    address = (net.hosts["ps"], PORT)
    net.open({"ps": [f"{address[0]}:{PORT}"], "worker": [], "chief": []})
    ready = threading.Event()
    threading.Thread(target=_serve, args=(net, ready), daemon=True).start()
    assert ready.wait(10)
    with socket.create_connection(address) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        trips = [_trip(client, b"x") for _ in range(50)]
        assert net.interface is not None
        before = wire_bytes(net.interface)
        seconds = _trip(client, bytes(PAYLOAD))
        sent = wire_bytes(net.interface) - before
    return {"round_trip": statistics.median(trips), "rate": PAYLOAD / seconds, "sent": sent}


def _serve(net: network.Network, ready: threading.Event) -> None:
    """Answers each message with one byte: one-byte ones first, then the large one."""
    net.enter("ps")  # this thread alone
    server = socket.create_server(("", PORT))
    ready.set()
    connection, _ = server.accept()
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for _ in range(50):
        connection.sendall(connection.recv(1))
    left = PAYLOAD
    while left:
        left -= len(connection.recv(1 << 20))
    connection.sendall(b"x")


def _trip(client: socket.socket, message: bytes) -> float:
    start = time.perf_counter()
    client.sendall(message)
    client.recv(1)
    return time.perf_counter() - start


@needs_namespaces
def test_each_byte_on_loopback_counts_once() -> None:
    assert PAYLOAD < _measure(network.LOOPBACK)["sent"] < 1.05 * PAYLOAD


@needs_namespaces
def test_the_link_carries_1_gbit_per_second() -> None:
    seen = _measure(network.GIGABIT)
    assert seen["rate"] < 1.3 * 125e6  # a burst may pass at first
    assert PAYLOAD < seen["sent"] < 1.05 * PAYLOAD


@needs_namespaces
def test_the_proxies_add_half_a_millisecond_each_way() -> None:
    seen = _measure(network.DELAYED)
    assert 0.001 < seen["round_trip"] < 0.02
    assert seen["rate"] < 1.3 * 125e6
