"""A TCP proxy that hands all data on after a fixed time, for kernels without tc's netem.

    python -m benchmarks.train.delay SECONDS LISTEN=TARGET ...      (each host:port)

Prints a line when it listens, and ends when its input does. Data stays in the kernel (splice), which costs little CPU time.
"""

import contextlib
import ctypes
import fcntl
import os
import queue
import select
import socket
import sys
import threading
import time

CHUNK = 1 << 20
_PR_SET_TIMERSLACK = 29


def main() -> None:
    delay = float(sys.argv[1])
    # The kernel may otherwise wake a sleeper 0.05 ms late. Threads inherit it.
    ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1)
    for route in sys.argv[2:]:
        listen, _, target = route.partition("=")
        server = socket.create_server(_address(listen))
        threading.Thread(target=_accept, args=(server, _address(target), delay), daemon=True).start()
    print("listens", flush=True)
    sys.stdin.read()


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host, int(port)


def _accept(server: socket.socket, target: tuple[str, int], delay: float) -> None:
    while True:
        client, _ = server.accept()
        try:
            upstream = socket.create_connection(target)
        except OSError:
            client.close()  # as a port that nobody listens on would
            continue
        for one in (client, upstream):
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        _Pump(client, upstream, delay).start()
        _Pump(upstream, client, delay).start()


class _Pump:
    """One direction of a connection: one thread takes what arrives, another hands it on when it is due."""

    def __init__(self, source: socket.socket, target: socket.socket, delay: float):
        self._source, self._target, self._delay = source, target, delay
        self._out, self._in = os.pipe()
        fcntl.fcntl(self._in, fcntl.F_SETPIPE_SZ, CHUNK)
        self._due: queue.SimpleQueue[tuple[float, int]] = queue.SimpleQueue()

    def start(self) -> None:
        for run in (self._take, self._hand_on):
            threading.Thread(target=run, daemon=True).start()

    def _take(self) -> None:
        readable = select.poll()
        readable.register(self._source, select.POLLIN)
        taken = 1
        while taken:
            readable.poll()  # a splice that waits would hold the pipe's lock
            try:
                taken = os.splice(self._source.fileno(), self._in, CHUNK)
            except OSError:
                taken = 0  # reset by its peer
            self._due.put((time.monotonic() + self._delay, taken))
        os.close(self._in)

    def _hand_on(self) -> None:
        while True:
            due, left = self._due.get()
            time.sleep(max(due - time.monotonic(), 0))
            if not left:
                break
            try:
                while left:
                    left -= os.splice(self._out, self._target.fileno(), left)
            except OSError:
                break
        with contextlib.suppress(OSError):  # closed by its peer
            self._target.shutdown(socket.SHUT_WR)
        os.close(self._out)


if __name__ == "__main__":
    main()
