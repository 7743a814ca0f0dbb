"""Settings of the register step."""

from dataclasses import dataclass

from paraserve.components.register.registry import check_name


@dataclass(frozen=True, kw_only=True, slots=True)
class RegisterConfig:
    """What to register, and where."""

    model: str
    """Local folder of the SavedModel that train exported."""
    evaluation: str
    """What evaluate said about it, as JSON."""
    shards: str
    """Place of the packed data set that it was evaluated on."""
    registry: str
    """Path or gs:// address of the registry."""
    model_name: str
    """Small letters, digits and -, at most 40 characters."""
    run_id: str
    """The run that registers."""

    def __post_init__(self) -> None:
        check_name(self.model_name)
