"""The settings' checks."""

import pytest

from paraserve.components.deploy.config import DeployConfig, RolloutConfig, parse_steps

GOOD = {"version": "v1", "model_uri": "m", "shards": "s", "registry": "r", "model_name": "m", "serving": "f", "run_id": "r"}


@pytest.mark.parametrize("steps", [(), (10, 50), (50, 10, 100), (0, 100), (10, 10, 100), (10, 100, 150)])
def test_steps_must_rise_to_100(steps: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="rising percentages that end in 100"):
        RolloutConfig(canary_steps=steps)


def test_steps_are_read_from_text() -> None:
    assert parse_steps("10, 50,100") == (10, 50, 100)
    with pytest.raises(ValueError, match="ten"):
        parse_steps("ten,100")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"target": "docker"}, "unknown target 'docker'"),
        ({"model_name": "My_Model"}, "My_Model"),
        ({"serving_port": 0}, "`serving_port` is 0"),
        ({"drill_canary_errors": 1.5}, "`drill_canary_errors` is 1.5"),
        ({"version": ""}, "`version` is empty"),
        ({"serving": "gs://bucket/x"}, "a folder of this machine"),
        ({"target": "kserve", "drill_canary_errors": 0.5}, "no effect on KServe"),
    ],
)
def test_bad_settings_say_what_to_do(change: dict, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        DeployConfig(**{**GOOD, **change})


def test_a_latency_margin_below_the_noise_is_refused() -> None:
    with pytest.raises(ValueError, match="max_latency_increase"):
        RolloutConfig(max_latency_increase=0.1)
