import io
import logging

import pytest

from paraserve.pipelines.progress import StepLines, StepOutput

KFP = """\
    [KFP Executor 2026-01-01 10:00:00,000 INFO]: Looking for component `train` in x
    [KFP Executor 2026-01-01 10:00:00,000 INFO]: Got executor_input:
    {
        "inputs": {
            "data": "x"
        }
    }
    I0000 00:00:1796137904.732420    4550 port.cc:153] oneDNN custom operations are on.
    WARNING: All log messages before absl::InitializeLog() is called are written to STDERR
    E0000 00:00:1796137904.732420    4550 cuda_platform.cc:52] failed call to cuInit: INTERNAL: CUDA error
    2026-01-01 10:00:00.1: I tensorflow/core.cc:1] Started server with default session config: device_count {
      key: "GPU"
      value: 0
    }
    allow_soft_placement: true
    experimental {
      collective_group_leader: "/job:worker/replica:0/task:0"
    }
    [KFP Executor 2026-01-01 10:00:00,000 INFO]: Now creating a ClusterSpec({'ps': ['127.0.0.1:1']})
    [KFP Executor 2026-01-01 10:00:00,000 WARNING]: a/b has unsupported characters
    [KFP Executor 2026-01-01 10:00:00,000 INFO]: Stopping cluster, starting with failure handler
    [KFP Executor 2026-01-01 10:00:00,000 INFO]: Stopping workers
    epoch 1: loss 0.5
    [KFP Executor 2026-01-01 10:00:00,000 INFO]: at 10 %: fine
    [KFP Executor 2026-01-01 10:00:00,000 WARNING]: slow
    [KFP Executor 2026-01-01 10:00:00,000 INFO]: Wrote executor output file to x

--------------------------------------------------------------------------------
    done
"""


@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_only_the_steps_own_output_is_left(size: int) -> None:
    out = io.StringIO()
    filtered = StepOutput(out)
    for start in range(0, len(KFP), size):
        filtered.write(KFP[start : start + size])
    assert [line.strip() for line in out.getvalue().splitlines()] == [
        "epoch 1: loss 0.5",
        "at 10 %: fine",
        "[KFP Executor 2026-01-01 10:00:00,000 WARNING]: slow",
        "done",
    ]


FRAMES = """\
    Traceback (most recent call last):
      File "executor.py", line 453, in execute
        result = self.func(**func_kwargs)
                 ^^^^^^^^^^^^^^^^^^^^^^^^
"""
LINK = "The above exception was the direct cause of"
CAUSE = f"{FRAMES}    a.UnavailableError: closed\n    [Op:train]\n\n    {LINK} the following exception:\n\n"


def filtered(text: str) -> str:
    out = io.StringIO()
    StepOutput(out).write(text)
    return out.getvalue()


@pytest.mark.parametrize(
    "before",
    ["", CAUSE, CAUSE.replace(LINK, "During handling of the above exception,")],
)
@pytest.mark.parametrize(
    "raised",
    [
        "ValueError: `epochs` is 0",
        "FileNotFoundError: no x; correct `data`",
        "paraserve.components.deploy.rollout.RolloutError: x",
    ],
)
def test_an_error_that_explains_itself_comes_without_its_traceback(before: str, raised: str) -> None:
    assert filtered(f"    one\n{before}{FRAMES}    {raised}\n    more of it\n") == f"    one\n    {raised}\n    more of it\n"


@pytest.mark.parametrize(
    "raised", ["KeyError: 'x'", "AssertionError", "NotImplementedError: x", "RecursionError: x", "a.b.OddError: x"]
)
def test_a_bug_comes_with_its_traceback(raised: str) -> None:
    assert filtered(f"{FRAMES}    {raised}\n[ 0.1 s] x: FAILED\n") == f"{FRAMES}    {raised}\n[ 0.1 s] x: FAILED\n"


def test_the_last_of_chained_errors_decides() -> None:
    between = "    During handling of the above exception, another exception occurred:\n"
    text = f"{FRAMES}    ValueError: x\n{between}{FRAMES}    KeyError: 1\n"
    assert filtered(f"{text}[ 0.1 s] x: FAILED\n") == f"{text}[ 0.1 s] x: FAILED\n"


def test_steps_start_and_end_in_a_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    lines = StepLines()

    def shown(message: str) -> bool:
        return lines.filter(logging.LogRecord("root", logging.INFO, "x", 1, message, None, None))

    assert not shown("Executing task \x1b[96m'train'\x1b[0m")
    assert not shown("Streamed logs:\n")
    assert not shown("Task \x1b[96m'train'\x1b[0m finished with status \x1b[91mFAILURE\x1b[0m")
    assert shown("something that kfp says in a later version")
    started, failed = capsys.readouterr().out.splitlines()
    assert started.endswith("train: started")
    assert "train: FAILED after 0." in failed
