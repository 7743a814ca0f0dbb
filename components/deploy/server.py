"""A TensorFlow Serving-compatible server for one machine: gRPC and REST on two ports of the loopback interface.

    python -m paraserve.components.deploy.server --model-name N --model-base DIR --grpc-port P --rest-port P

It serves the highest numeric version folder below DIR and takes a new one while it runs; one that does not load is refused and
the old one serves on. SIGTERM lets requests under way end. Exit codes: 0 after SIGTERM, 1 when no version loads, 2 for a port
in use. In a cluster TensorFlow Serving itself takes this place.
"""

import argparse
import logging
import os
import random
import signal
import socket
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import uvicorn

if TYPE_CHECKING:
    from paraserve.components.deploy.versions import Versions

HOST = "127.0.0.1"
THREADS = 8
DRAIN_SECONDS = 10
KEEP_ALIVE_SECONDS = 3600
"""The client closes first: a proxy that sends on a connection just when the server closes it sees a reset."""
EXIT_NO_MODEL, EXIT_PORT = 1, 2
log = logging.getLogger(__name__)


def main() -> int:
    arguments = _arguments()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    try:
        rest_socket, grpc_server = _bind_rest(arguments.rest_port), _bind_grpc(arguments.grpc_port)
    except (OSError, RuntimeError) as error:
        log.error("cannot listen on ports %d and %d: %s; choose free ones", arguments.rest_port, arguments.grpc_port, error)
        return EXIT_PORT
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    # Only now: the import takes seconds, in which nobody else shall take the ports.
    from paraserve.components.deploy.versions import Versions

    try:
        versions = Versions(arguments.model_name, arguments.model_base)
    except ValueError as error:
        log.error("%s", error)
        return EXIT_NO_MODEL
    _serve(versions, grpc_server, rest_socket, arguments.fail_fraction)
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model-name", required=True)
    parser.add_argument("--model-base", required=True, type=Path, help="the folder of the numeric version folders")
    parser.add_argument("--grpc-port", required=True, type=int)
    parser.add_argument("--rest-port", required=True, type=int)
    parser.add_argument("--fail-fraction", type=float, default=0.0, help="share of predictions to fail: rehearses a rollback")
    return parser.parse_args()


def _bind_rest(port: int) -> socket.socket:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((HOST, port))
    listener.listen(128)
    return listener


def _bind_grpc(port: int) -> grpc.Server:
    options = [("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", 64 << 20)]
    server = grpc.server(ThreadPoolExecutor(THREADS, "grpc"), options=options)
    server.add_insecure_port(f"{HOST}:{port}")  # RuntimeError when it is in use
    return server


def _serve(versions: "Versions", grpc_server: grpc.Server, rest_socket: socket.socket, fail_fraction: float) -> None:
    from tensorflow_serving.apis import model_service_pb2_grpc, prediction_service_pb2_grpc

    from paraserve.components.deploy.grpc_services import ModelService, PredictionService
    from paraserve.components.deploy.rest import rest_app

    def fails() -> bool:
        return random.random() < fail_fraction

    prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(PredictionService(versions, fails), grpc_server)
    model_service_pb2_grpc.add_ModelServiceServicer_to_server(ModelService(versions), grpc_server)
    grpc_server.start()
    config = uvicorn.Config(
        rest_app(versions, fails),
        log_level="warning",
        access_log=False,
        lifespan="off",
        timeout_graceful_shutdown=DRAIN_SECONDS,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
    )
    rest_server = uvicorn.Server(config)
    rest_thread = threading.Thread(target=rest_server.run, args=([rest_socket],), name="rest")
    rest_thread.start()
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    log.info("ready: REST on %s:%d", *rest_socket.getsockname())
    versions.watch(stop)
    rest_server.should_exit = True
    grpc_server.stop(DRAIN_SECONDS).wait()
    rest_thread.join()


if __name__ == "__main__":
    sys.exit(main())
