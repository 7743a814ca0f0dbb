import json
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from paraserve.components import storage
from paraserve.components.register import audit
from paraserve.components.register.audit import AuditLog, Event
from paraserve.components.register.registry import RegisteredVersion, Registry

MakeModel = Callable[[str], Path]
CARD = {"metrics": {"auc": 0.78}, "lineage": {"spec_digest": "abc"}}


def content_of(registry: Registry) -> dict[str, bytes]:
    """Every file below the registry, hidden ones too."""
    if registry.place.startswith("gs://"):
        return {info.place: storage.read_bytes(info.place) for info in storage.list_files(registry.place)}
    return {str(p): p.read_bytes() for p in Path(registry.place).rglob("*") if p.is_file()}


def test_register_lays_out_what_a_model_server_reads(registry: Registry, make_model: MakeModel) -> None:
    model = make_model("a")
    registered = registry.register("ctr", model, CARD, "run-1")
    assert registered == RegisteredVersion(
        name="ctr", version="v1", uri=f"{registry.place}/ctr/v1", model_uri=f"{registry.place}/ctr/v1/model", created=True
    )
    assert storage.list_names(registered.model_uri) == ["1"]
    for path in (p for p in model.rglob("*") if p.is_file()):
        assert storage.read_bytes(storage.join(registered.saved_model, path.relative_to(model).as_posix())) == path.read_bytes()
    card = registry.card("ctr", "v1")
    assert card["metrics"] == {"auc": 0.78}
    assert (card["name"], card["version"]) == ("ctr", "v1")
    assert {f["file"]: f["sha256"] for f in card["files"]}["saved_model.pb"] == storage.sha256_of(model / "saved_model.pb")
    assert "ctr v1" in storage.read_bytes(storage.join(registered.uri, "model-card.md")).decode()


def test_aliases_through_two_promotions_and_back(registry: Registry, make_model: MakeModel) -> None:
    assert registry.aliases("ctr") == {}
    registry.register("ctr", make_model("a"), CARD, "run-1")
    assert registry.aliases("ctr") == {"candidate": "v1"}
    registry.promote("ctr", "v1", run_id="run-1", reason="first")
    assert registry.aliases("ctr") == {"champion": "v1"}
    registry.register("ctr", make_model("b"), CARD, "run-2")
    assert registry.aliases("ctr") == {"candidate": "v2", "champion": "v1"}
    registry.promote("ctr", "v2", run_id="run-2", reason="passed 10, 50, 100")
    registry.promote("ctr", "v2", run_id="run-2", reason="a retried step")
    assert registry.aliases("ctr") == {"champion": "v2", "previous": "v1"}
    registry.promote("ctr", "v1", run_id="by-hand", reason="v2 was a mistake")
    assert registry.aliases("ctr") == {"champion": "v1", "previous": "v2"}
    registry.verify_log("ctr")
    assert [(e.number, e.what, e.version) for e in registry.history("ctr")] == [
        (1, "registered", "v1"),
        (2, "promoted", "v1"),
        (3, "registered", "v2"),
        (4, "promoted", "v2"),
        (5, "promoted", "v1"),
    ]
    assert registry.history("ctr")[3].reason == "passed 10, 50, 100"


def test_promoting_an_older_version_keeps_the_candidate(registry: Registry, make_model: MakeModel) -> None:
    registry.register("ctr", make_model("a"), CARD, "run-1")
    registry.register("ctr", make_model("b"), CARD, "run-2")
    registry.promote("ctr", "v1", run_id="run-1", reason="late")
    assert registry.aliases("ctr") == {"candidate": "v2", "champion": "v1"}


def test_same_content_again_is_the_same_version_and_changes_no_byte(registry: Registry, make_model: MakeModel) -> None:
    model = make_model("a")
    registry.register("ctr", model, CARD, "run-1")
    before = content_of(registry)
    (model / "saved_model.pb").chmod(0o600)
    (model / "fingerprint.pb").write_text("another export's random id")
    again = registry.register("ctr", model, {"metrics": {"auc": 0.1}}, "run-1")
    assert (again.version, again.created) == ("v1", False)
    assert content_of(registry) == before


def test_registering_the_champion_again_makes_it_no_candidate(registry: Registry, make_model: MakeModel) -> None:
    registry.register("ctr", make_model("a"), CARD, "run-1")
    registry.promote("ctr", "v1", run_id="run-1", reason="first")
    registry.register("ctr", make_model("a"), CARD, "run-2")
    assert registry.aliases("ctr") == {"champion": "v1"}


@pytest.mark.parametrize("left", ["claim", "model", "card"])
def test_an_attempt_that_died_is_invisible_then_completed(registry: Registry, make_model: MakeModel, left: str) -> None:
    model = make_model("a")
    registry.register("ctr", model, CARD, "run-1")
    whole = {place: content for place, content in content_of(registry).items() if "/log/" not in place}
    keep = {"claim": ["claim.json"], "model": ["claim.json", "/model/"], "card": ["claim.json", "/model/", "model-card"]}[left]
    storage.remove_folder(storage.join(registry.place, "ctr"))
    for place, content in whole.items():
        if any(part in place for part in keep):
            storage.write_bytes(place, content)

    assert registry.versions("ctr") == (["v1"] if left == "card" else [])
    assert registry.aliases("ctr") == {}
    other = registry.register("ctr", make_model("b"), CARD, "run-2")
    assert (other.version, other.created) == ("v2", True)
    again = registry.register("ctr", model, CARD, "run-1")
    assert (again.version, again.created) == ("v1", False)
    assert {place: c for place, c in content_of(registry).items() if "/v1/" in place} == whole
    assert registry.versions("ctr") == ["v1", "v2"]
    assert registry.aliases("ctr") == {"candidate": "v1"}


def test_a_folder_without_its_claim_is_taken(make_model: MakeModel, tmp_path: Path) -> None:
    registry = Registry(str(tmp_path / "registry"))
    (tmp_path / "registry/ctr/v1").mkdir(parents=True)
    assert registry.register("ctr", make_model("a"), CARD, "run-1").version == "v1"


def test_racing_registrations(registry: Registry, make_model: MakeModel) -> None:
    models = [make_model(text) for text in "abcaabbc"]
    start = threading.Barrier(len(models))

    def register(model: Path) -> RegisteredVersion:
        start.wait()
        return registry.register("ctr", model, CARD, "run")

    with ThreadPoolExecutor(len(models)) as pool:
        done = list(pool.map(register, models))
    by_content = {text: {d.version for d, t in zip(done, "abcaabbc", strict=True) if t == text} for text in "abc"}
    assert sorted(v for versions in by_content.values() for v in versions) == ["v1", "v2", "v3"]
    assert sum(d.created for d in done) == 3
    assert registry.versions("ctr") == ["v1", "v2", "v3"]
    for version in registry.versions("ctr"):
        stored = registry.get("ctr", version).saved_model
        for file in registry.card("ctr", version)["files"]:
            assert storage.exists(storage.join(stored, file["file"]))
    registry.verify_log("ctr")
    assert not [place for place in content_of(registry) if ".tmp" in place]


def test_racing_promotions_lose_none(registry: Registry, make_model: MakeModel) -> None:
    versions = [registry.register("ctr", make_model(str(i)), CARD, "run").version for i in range(6)]
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda v: registry.promote("ctr", v, run_id="run", reason="race"), versions))
    registry.verify_log("ctr")
    promoted = [event.version for event in registry.history("ctr") if event.what == "promoted"]
    assert sorted(promoted) == versions
    assert registry.aliases("ctr") == {"champion": promoted[-1], "previous": promoted[-2]}


def rewrite(registry: Registry, number: int, **changes: object) -> None:
    place = storage.join(registry.place, "ctr", "log", f"{number:08d}.json")
    storage.write_bytes(place, json.dumps(json.loads(storage.read_bytes(place)) | changes, indent=1).encode())


@pytest.mark.parametrize(
    ("number", "changes", "found"),
    [
        (2, {"reason": "another"}, "event 2 .* was changed after event 3"),
        (1, {"who": "nobody@nowhere"}, "event 1 .* was changed after event 2"),
        (3, {"aliases": {"candidate": None, "champion": "v2", "previous": "v1"}}, "event 3 .* do not follow"),
        (3, {"version": "v1"}, "event 3 .* do not follow"),
    ],
)
def test_a_tampered_log_is_found(
    registry: Registry, make_model: MakeModel, number: int, changes: dict[str, object], found: str
) -> None:
    registry.register("ctr", make_model("a"), CARD, "run-1")
    registry.promote("ctr", "v1", run_id="run-1", reason="first")
    registry.register("ctr", make_model("b"), CARD, "run-2")
    registry.verify_log("ctr")
    rewrite(registry, number, **changes)
    with pytest.raises(ValueError, match=found):
        registry.verify_log("ctr")


def test_a_removed_event_is_found(make_model: MakeModel, tmp_path: Path) -> None:
    registry = Registry(str(tmp_path / "registry"))
    for text in "abc":
        registry.register("ctr", make_model(text), CARD, "run")
    (tmp_path / "registry/ctr/log/00000002.json").unlink()
    with pytest.raises(ValueError, match=r"expected 00000002.json, found 00000003.json"):
        registry.verify_log("ctr")


def test_a_lost_answer_writes_no_second_event(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The write succeeded, but the client was told that it did not: as a retried request on gs:// is."""
    create = storage.create_exclusive
    monkeypatch.setattr(storage, "create_exclusive", lambda place, content: create(place, content) and False)
    log = AuditLog(str(tmp_path / "log"))
    log.append(audit.REGISTERED, "v1", run_id="run", reason="new")
    assert [event.version for event in log.events()] == ["v1"]


def test_events_tell_who_and_when(make_model: MakeModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_entry() -> str:
        raise KeyError("getpwuid(): uid not found")

    monkeypatch.setattr("getpass.getuser", no_entry)
    registry = Registry(str(tmp_path / "registry"))
    registry.register("ctr", make_model("a"), CARD, "run-1")
    (event,) = registry.history("ctr")
    assert event.time.endswith("+00:00")
    assert event.who.partition("@")[0].isdigit()
    assert isinstance(event, Event)


@pytest.mark.parametrize("name", ["", "Ctr", "1ctr", "ctr-", "ct_r", "ct/r", "..", "c" * 41])
def test_names_that_cannot_be_served(name: str, make_model: MakeModel, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="small letters, digits and -"):
        Registry(str(tmp_path / "registry")).register(name, make_model("a"), CARD, "run")
    assert not (tmp_path / "registry").exists()


def test_longest_name_is_fine(make_model: MakeModel, tmp_path: Path) -> None:
    registry = Registry(str(tmp_path / "registry"))
    registry.register("c" * 40, make_model("a"), CARD, "run")
    assert registry.names() == ["c" * 40]


def test_no_saved_model(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"holds no saved_model.pb"):
        Registry(str(tmp_path / "registry")).register("ctr", tmp_path / "empty", CARD, "run")
    assert not (tmp_path / "registry").exists()


def test_a_registry_that_cannot_be_written(make_model: MakeModel, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    for place in (str(tmp_path / "file"), "/proc/registry"):
        with pytest.raises(OSError, match=f"cannot write to the registry {place}.*permission"):
            Registry(place).register("ctr", make_model("a"), CARD, "run")
    assert (tmp_path / "file").read_text() == "not a folder"


def test_a_bucket_that_is_not_there(make_model: MakeModel, bucket: str) -> None:
    with pytest.raises(OSError, match=r"cannot write to the registry gs://no-such-bucket/r.*permission"):
        Registry("gs://no-such-bucket/r").register("ctr", make_model("a"), CARD, "run")


def test_a_disk_that_fills_up_leaves_no_version(make_model: MakeModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, registry = make_model("a"), Registry(str(tmp_path / "registry"))

    def full(source: str, target: str) -> None:
        Path(target).write_bytes(b"part")
        raise OSError(28, "No space left on device", target)

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "copyfile", full)
        with pytest.raises(OSError, match="No space left on device"):
            registry.register("ctr", model, CARD, "run")
    assert registry.names() == []
    assert [name for name in content_of(registry) if "claim.json" not in name] == []
    assert registry.register("ctr", model, CARD, "run").version == "v1"


def test_unknown_versions_are_named_with_those_that_are_there(registry: Registry, make_model: MakeModel) -> None:
    registry.register("ctr", make_model("a"), CARD, "run")
    for version in ("v2", "1", "../ctr/v1"):
        with pytest.raises(ValueError, match="it has: v1"):
            registry.get("ctr", version)
        with pytest.raises(ValueError, match="it has: v1"):
            registry.promote("ctr", version, run_id="run", reason="none")
    with pytest.raises(ValueError, match="it has: none"):
        registry.get("other", "v1")
    assert registry.get("ctr", "v1").created is False


def test_versions_sort_by_number(make_model: MakeModel, tmp_path: Path) -> None:
    registry = Registry(str(tmp_path / "registry"))
    for i in range(11):
        registry.register("ctr", make_model(str(i)), CARD, "run")
    assert registry.versions("ctr")[-2:] == ["v10", "v11"]
    assert len(registry.history("ctr")) == 11


def test_a_relative_place_is_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert Registry("registry").place == str(tmp_path / "registry")
    with pytest.raises(ValueError, match="no registry was given"):
        Registry("")
