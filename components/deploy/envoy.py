"""Envoy's configuration for one endpoint.

Two slots, `a` and `b`, each for one server; which of them is stable and which the canary is said by the routes alone.
Everything that changes lives in files that Envoy watches, replaced atomically:

    bootstrap.json             one listener for REST and gRPC, the slots' clusters; read once
    SLOT-rest.json, SLOT-grpc.json   where the slot's server listens (EDS)
    routes.json                who gets which share (RDS)

While a canary has traffic its requests go to an aggregate cluster over [canary, stable], and are tried once more at the next
priority: so a canary that fails or is gone costs no client request.
"""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paraserve.components import storage

SLOTS = ("a", "b")
PROTOCOLS = ("rest", "grpc")
UPSTREAM_HEADER = "x-paraserve-upstream"
"""Response header with the address of the server that answered."""
HOST = "127.0.0.1"
_TYPE = "type.googleapis.com/envoy."
_RETRY_ON = "5xx,reset,connect-failure,refused-stream,unavailable,internal,cancelled,resource-exhausted"


def other(slot: str) -> str:
    return SLOTS[1 - SLOTS.index(slot)]


@dataclass(frozen=True, kw_only=True, slots=True)
class Split:
    """Who gets the traffic."""

    stable: str | None
    """A slot; None while a first model is not serving yet or takes all."""
    canary: str | None = None
    percent: int = 0
    """The canary's share."""


def bootstrap(folder: Path, port: int) -> dict[str, Any]:
    """The configuration that Envoy starts with; `port` is the listener's."""
    names = [f"{slot}-{protocol}" for slot in SLOTS for protocol in PROTOCOLS]
    return {
        "node": {"id": "paraserve", "cluster": "paraserve"},
        "admin": {"address": _address(0)},  # a free port, which Envoy writes to a file
        "static_resources": {
            "listeners": [_listener(folder, port)],
            "clusters": [*(_leaf(folder, n) for n in names), *(_with_fallback(n) for n in names)],
        },
    }


def _address(port: int) -> dict[str, Any]:
    return {"socket_address": {"address": HOST, "port_value": port}}


def _watched(path: Path) -> dict[str, Any]:
    return {"path_config_source": {"path": str(path)}, "resource_api_version": "V3"}


def _listener(folder: Path, port: int) -> dict[str, Any]:
    manager = {
        "@type": f"{_TYPE}extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "ingress",
        "rds": {"route_config_name": "routes", "config_source": _watched(folder / "routes.json")},
        "http_filters": [
            {
                "name": "grpc_stats",
                "typed_config": {
                    "@type": f"{_TYPE}extensions.filters.http.grpc_stats.v3.FilterConfig",
                    "stats_for_all_methods": True,
                },
            },
            {"name": "router", "typed_config": {"@type": f"{_TYPE}extensions.filters.http.router.v3.Router"}},
        ],
    }
    filters = [{"name": "http", "typed_config": manager}]
    return {"name": "ingress", "address": _address(port), "filter_chains": [{"filters": filters}]}


def _leaf(folder: Path, name: str) -> dict[str, Any]:
    protocol: dict[str, Any] = {"http2_protocol_options": {}} if name.endswith("grpc") else {"http_protocol_options": {}}
    return {
        "name": name,
        "type": "EDS",
        "eds_cluster_config": {"eds_config": _watched(folder / f"{name}.json")},
        "connect_timeout": "1s",
        "circuit_breakers": _BREAKERS,
        "typed_extension_protocol_options": {
            f"{_TYPE[20:]}extensions.upstreams.http.v3.HttpProtocolOptions": {
                "@type": f"{_TYPE}extensions.upstreams.http.v3.HttpProtocolOptions",
                "common_http_protocol_options": {"idle_timeout": "60s"},
                "explicit_http_config": protocol,
            }
        },
    }


# The default of three concurrent retries would let requests fail while a canary does.
_BREAKERS = {"thresholds": [{"max_retries": 4096}]}


def _with_fallback(name: str) -> dict[str, Any]:
    slot, protocol = name.split("-")
    config = {
        "@type": f"{_TYPE}extensions.clusters.aggregate.v3.ClusterConfig",
        "clusters": [name, f"{other(slot)}-{protocol}"],
    }
    return {
        "name": f"{name}-fallback",
        "lb_policy": "CLUSTER_PROVIDED",
        "connect_timeout": "1s",
        "circuit_breakers": _BREAKERS,
        "cluster_type": {"name": "envoy.clusters.aggregate", "typed_config": config},
    }


def routes(split: Split) -> dict[str, Any]:
    """The route configuration for a split; without any slot it answers 503."""
    return {
        "@type": f"{_TYPE}config.route.v3.RouteConfiguration",
        "name": "routes",
        "virtual_hosts": [
            {
                "name": "all",
                "domains": ["*"],
                "routes": [
                    {"match": {"prefix": "/", "grpc": {}}, **_action(split, "grpc")},
                    {"match": {"prefix": "/"}, **_action(split, "rest")},
                ],
                "response_headers_to_add": [{"header": {"key": UPSTREAM_HEADER, "value": "%UPSTREAM_REMOTE_ADDRESS%"}}],
            }
        ],
    }


def _action(split: Split, protocol: str) -> dict[str, Any]:
    weights = []
    if split.stable and split.percent < 100:
        weights.append({"name": f"{split.stable}-{protocol}", "weight": 100 - split.percent})
    if split.canary and split.percent:
        fallback = "-fallback" if split.stable else ""
        weights.append({"name": f"{split.canary}-{protocol}{fallback}", "weight": split.percent})
    if not weights:
        return {"direct_response": {"status": 503, "body": {"inline_string": "no model is being served yet"}}}
    return {
        "route": {
            "weighted_clusters": {"clusters": weights},
            "timeout": "15s",
            "retry_policy": {
                "retry_on": _RETRY_ON,
                "num_retries": 1,
                "per_try_timeout": "5s",
                "retry_priority": {
                    "name": "envoy.retry_priorities.previous_priorities",
                    "typed_config": {
                        "@type": f"{_TYPE}extensions.retry.priority.previous_priorities.v3.PreviousPrioritiesConfig",
                        "update_frequency": 1,
                    },
                },
            },
        }
    }


def endpoints(name: str, port: int | None) -> dict[str, Any]:
    """Where the cluster `name` finds its server; None for nowhere."""
    hosts = [] if port is None else [{"endpoint": {"address": _address(port)}}]
    return {
        "@type": f"{_TYPE}config.endpoint.v3.ClusterLoadAssignment",
        "cluster_name": name,
        "endpoints": [{"lb_endpoints": hosts}] if hosts else [],
    }


def write_resource(path: Path, resource: Mapping[str, Any]) -> str:
    """Replaces a watched file and returns its version."""
    version = str(time.time_ns())
    storage.write_bytes(str(path), json.dumps({"version_info": version, "resources": [resource]}).encode())
    return version
