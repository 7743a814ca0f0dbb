"""Asking a model server's REST interface directly, past the proxy."""

from collections.abc import Mapping, Sequence
from typing import Any

import requests

from paraserve.components.exported import PROBABILITY


class Refused(RuntimeError):
    """The server answered with an error."""


def probability_of(prediction: Any) -> float:
    """A model with one output answers the number, one with more an object."""
    return float(prediction[PROBABILITY] if isinstance(prediction, Mapping) else prediction)


def ask(port: int, model_name: str, rows: Sequence[Mapping[str, str]], timeout: float = 10.0) -> list[float]:
    """The probabilities of raw rows. Raises Refused for an answer that is none, requests.RequestException without any."""
    response = _send("POST", port, f"/v1/models/{model_name}:predict", timeout, json={"instances": list(rows)})
    if not response.ok:
        raise Refused(f"HTTP {response.status_code}: {response.text[:300]}")
    try:
        return [probability_of(prediction) for prediction in response.json()["predictions"]]
    except (ValueError, TypeError, KeyError) as error:
        raise Refused(f"its answer has no number `{PROBABILITY}` for each row: {response.text[:300]}") from error


def is_available(port: int, model_name: str) -> bool:
    """Whether a server answers there and serves the model."""
    try:
        return _send("GET", port, f"/v1/models/{model_name}", timeout=2.0).ok
    except requests.RequestException:
        return False


def _send(method: str, port: int, path: str, timeout: float, **body: Any) -> requests.Response:
    with requests.Session() as session:
        session.trust_env = False  # a proxy of the environment is not for this machine
        return session.request(method, f"http://127.0.0.1:{port}{path}", timeout=timeout, **body)
