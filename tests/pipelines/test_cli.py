"""The command line without whole runs (those are in tests/e2e)."""

import contextlib
import gzip
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from paraserve.components import images
from paraserve.components.register import audit
from paraserve.components.register.registry import Registry
from paraserve.pipelines import cli
from paraserve.pipelines.compile import check_images
from paraserve.pipelines.run import exit_code
from paraserve.pipelines.workdir import Busy, Workdir

SPEC = """\
label: {column: clicked, positive_at_least: 1}
categorical: {user: {dimension: 4, rows: 16}}
"""

Command = Callable[..., int]


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    """Runs `paraserve run` with good data and spec, and what is added; it must not get as far as starting."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "log.csv").write_text("clicked,user\n1,a\n0,b\n")
    (tmp_path / "spec.yaml").write_text(SPEC)

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    good = {"data": "log.csv", "feature_spec": "spec.yaml", "serving_port": port}

    def run(*arguments: str) -> int:
        settings = [text for name, value in good.items() for text in ("--set", f"{name}={value}")]
        return cli.main(["run", *settings, "--workdir", "w", *arguments])

    return run


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("learning_rat=0.1", "did you mean 'learning_rate'?"),
        ("epochs=many", "parameter 'epochs' is 'many'; give a whole number"),
        ("epochs", "write --set name=value"),
        ("data=missing/*.csv", "no file matches 'missing/*.csv'"),
        ("feature_spec=missing.yaml", "cannot read the feature spec"),
        ("feature_spec=log.csv", "log.csv"),
        ("epochs=0", "`epochs` is 0"),
        ("model=deep", "`model` is 'deep'"),
        ("split=week", "`split` is 'week'"),
        ("min_auc=2", "`min_auc` is 2.0"),
        ("canary_steps=50,10", "`canary_steps` is 50,10"),
        ("model_name=My Model", "My Model"),
        ("target=cloud", "unknown target 'cloud'"),
        ("registry=log.csv/registry", "`registry` is"),
        ("snapshots=/proc/paraserve/snapshots", "`snapshots` is /proc/paraserve/snapshots"),
        ("shards=/sys/shards", "`shards` is /sys/shards"),
        ("target=kserve", "`kserve_namespace` is empty"),
        ("slice_columns=user,clicked", "`slice_columns` names clicked; the spec's categorical columns are: user"),
        ("split=time", "the feature spec names no time column"),
        ("model=no_such_package.models:build", "there is no package 'no_such_package'"),
        ("model=:build", "there is no package ''"),
        ("resume_from=snapshots/epoch-0001", "holds no snapshot (no manifest.json)"),
        ("column_names=a,b,c", "`column_names` names 3 columns"),
        ("column_names=clicked,item", "lacks the column 'user'"),
        ("delimiter=tab", "lacks the columns 'clicked'"),
    ],
)
def test_wrong_usage_says_the_remedy_and_starts_nothing(
    command: Command, setting: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(tmp_path.iterdir())
    assert command("--set", setting) == 2
    assert said in capsys.readouterr().err
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"clicked,usr\n1,a\n", "lacks the column 'user' (did you mean 'usr'?)"),
        (b"clicked,user,user\n1,a,b\n", "has the column 'user' more than once"),
        (b"", "is empty"),
        (gzip.compress(b"clicked,user\n1,a\n" * 9)[:20], "cannot read the log"),
    ],
)
def test_a_wrong_log_is_found_before_anything_starts(
    command: Command, tmp_path: Path, content: bytes, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "part.csv.gz" if content.startswith(b"\x1f") else "part.csv"
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / name).write_bytes(content)
    assert command("--set", "data=logs") == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "w").exists()


def test_a_model_of_ones_own_is_looked_up_but_not_imported(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "own_model_package.py").write_text("raise AssertionError")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert command("--set", "model=own_model_package:build", "--set", "registry=log.csv/registry") == 2
    assert "`registry` is" in capsys.readouterr().err


def test_a_workdir_with_other_files_is_refused(command: Command, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "w").mkdir()
    (tmp_path / "w" / "result.json").write_text("mine")
    assert command() == 2
    assert "holds files that are not of `paraserve run`" in capsys.readouterr().err
    assert [path.read_text() for path in (tmp_path / "w").iterdir()] == ["mine"]


def test_a_port_in_use_is_found_before_anything_starts(command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert command("--set", f"serving_port={port}") == 2
    assert f"port {port} cannot be used" in capsys.readouterr().err


def test_a_parameter_file_is_read_and_set_goes_over_it(
    command: Command, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "params.yaml").write_text("epochs: 0\nbatch_size: 0\n")
    assert command("--params", "params.yaml", "--set", "epochs=1") == 2
    assert "`batch_size` is 0" in capsys.readouterr().err
    assert command("--params", "nowhere.yaml") == 2
    assert "cannot read the parameters in nowhere.yaml" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [[], ["fly"], ["run", "--sett", "a=b"], ["models"], ["serve", "start"]])
def test_unknown_commands_exit_with_2(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        cli.main(arguments)
    assert raised.value.code == 2


@pytest.mark.parametrize("name", ["run", "compile", "serve", "models"])
def test_each_command_has_help_with_an_example(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        cli.main([name, "--help"])
    assert raised.value.code == 0
    assert f"\n  paraserve {name}" in capsys.readouterr().out


def test_the_command_line_does_without_tensorflow_and_kfp_until_it_needs_them() -> None:
    code = "import sys, paraserve.pipelines.cli; sys.exit(bool({'tensorflow', 'kfp', 'psutil'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_pipeline_and_the_checks_do_without_tensorflow() -> None:
    code = "import sys, paraserve.pipelines.compile, paraserve.pipelines.checks; sys.exit('tensorflow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_compile_writes_the_images_that_were_asked_for(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "p.yaml"
    arguments = ["compile", "--out", str(out), "--image-registry", "registry.example.com/ml", "--image-tag", "9"]
    subprocess.run([sys.executable, "-m", "paraserve.pipelines.cli", *arguments], check=True, env=os.environ)
    text = out.read_text()
    assert "registry.example.com/ml/paraserve:9" in text
    assert "registry.example.com/ml/paraserve-tensorflow:9" in text


def test_compile_refuses_another_suffix(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["compile", "--out", "p.json"]) == 2
    assert "ends in .yaml" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("registry", "tag", "legal"),
    [
        ("localhost:5000", "1.4", True),
        ("Registry.example.com/team/ml__x", "V_1-rc.2", True),
        ("https://registry.example.com", "1", False),
        ("registry.example.com/ML", "1", False),
        ("registry.example.com/", "1", False),
        ("registry.example.com", "a b", False),
        ("registry.example.com", "", False),
        ("registry.example.com", "a" * 129, False),
    ],
)
def test_images_are_legal_references(registry: str, tag: str, legal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "LIGHT", f"{registry}/paraserve:{tag}")
    with contextlib.nullcontext() if legal else pytest.raises(ValueError, match="is no image reference"):
        check_images()


def test_compile_refuses_an_illegal_tag(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "paraserve.pipelines.cli", "compile", "--out", str(tmp_path / "p.yaml"), "--image-tag="]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 2
    assert "is no image reference" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_compile_says_where_it_cannot_write(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "folder.yaml").mkdir()
    for out in (tmp_path / "folder.yaml", Path("/proc/paraserve/p.yaml")):
        assert cli.main(["compile", "--out", str(out)]) == 2
        assert f"cannot write --out {out}" in capsys.readouterr().err


def test_an_error_outside_the_steps_is_a_failure_and_no_wrong_usage(
    command: Command, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> int:
        raise ValueError("the endpoint's state is damaged")

    monkeypatch.setattr(cli, "run", fail)
    assert command() == 1
    assert "failed outside its steps: the endpoint's state is damaged" in capsys.readouterr().err


@pytest.mark.parametrize("error", ["ValueError", "OSError", "RuntimeError"])
def test_the_pipelines_process_says_what_went_wrong_outside_the_steps(error: str) -> None:
    code = f"""
import sys
from paraserve.pipelines import local
def fail(**job):
    raise {error}(f"no use for {{job}}")
local.run_pipeline = fail
sys.exit(local.main())
"""
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,  # stays open: the process ends with its starter
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write('{"artifacts": "x"}\n')
        process.stdin.flush()
        assert process.stdout.read() == "no use for {'artifacts': 'x'}\n"
        assert process.wait(timeout=60) == 1


def test_a_second_run_in_the_same_folder_is_refused(
    tmp_path: Path, command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    with Workdir(tmp_path / "w").locked():
        assert command() == 2
        assert "another `paraserve run` goes on in" in capsys.readouterr().err
        with pytest.raises(Busy), Workdir(tmp_path / "w").locked():
            pass
    with Workdir(tmp_path / "w").locked():
        pass


@pytest.mark.parametrize(
    ("status", "decision", "code"),
    [("succeeded", "promoted", 0), ("succeeded", "skipped", 3), ("failed", "rolled_back", 4), ("failed", "skipped", 1)],
)
def test_exit_codes(status: str, decision: str, code: int) -> None:
    assert exit_code({"status": status, "rollout": {"decision": decision}}) == code


def test_serve_status_of_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["serve", "status", "--workdir", str(tmp_path)]) == 1
    assert "nothing was ever served here" in capsys.readouterr().out
    assert cli.main(["serve", "stop", "--workdir", str(tmp_path)]) == 0


@pytest.fixture
def registry(tmp_path: Path) -> str:
    """Two versions of `clicks`, the first one the champion."""
    model = tmp_path / "model"
    (model / "variables").mkdir(parents=True)
    place = Registry(str(tmp_path / "registry"))
    for number in (1, 2):
        (model / "saved_model.pb").write_bytes(bytes([number]))
        card = {"registered": f"2026-01-0{number}T00:00:00", "metrics": {"auc": 0.7 + number / 100, "logloss": 0.5}}
        place.register("clicks", model, card, f"run{number}")
    place.promote("clicks", "v1", run_id="run1", reason="it is better")
    return place.place


def test_models_list(registry: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["models", "list", "--registry", registry]) == 0
    table = capsys.readouterr().out.splitlines()
    assert [line.split()[:3] for line in table[1:]] == [["clicks", "v1", "champion"], ["clicks", "v2", "candidate"]]
    assert cli.main(["models", "list", "--registry", registry, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(row["version"], row["aliases"], row["auc"]) for row in rows] == [
        ("v1", [audit.CHAMPION], 0.71),
        ("v2", [audit.CANDIDATE], 0.72),
    ]


def test_models_of_a_place_that_is_no_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    for name in ("file", "missing"):
        assert cli.main(["models", "list", "--registry", str(tmp_path / name)]) == 2
        assert f"{name} is no folder" in capsys.readouterr().err


def test_models_show(registry: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["models", "show", "--registry", registry]) == 0
    assert "it is better" in capsys.readouterr().out
    assert cli.main(["models", "show", "clicks", "v2", "--registry", registry]) == 0
    assert "# clicks v2" in capsys.readouterr().out
    assert cli.main(["models", "show", "clicks", "v2", "--registry", registry, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["metrics"]["auc"] == 0.72


@pytest.mark.parametrize(
    ("arguments", "said"), [(["nobody"], "there is no model 'nobody'"), (["clicks", "v9"], "has no version 'v9'")]
)
def test_models_show_of_what_is_not_there(
    registry: str, arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["models", "show", *arguments, "--registry", registry]) == 2
    assert said in capsys.readouterr().err
