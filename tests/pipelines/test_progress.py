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
