"""A stand-in for the monitor that keeps what it is called with."""

from pathlib import Path
from typing import Any


class RecordingMonitor:
    """Counts the optimizer's steps as the monitor does, and keeps the rest."""

    def __init__(self, fails_in: str = "", stops_at: int | None = None) -> None:
        self.step, self._stops_at = 0, stops_at
        self.calls: list[str] = []
        self.model: Any = None
        self.last_step: int | None = None
        self.began_at: list[int] = []
        self.updates: list[int] = []
        self.logged: list[tuple[int, dict[str, Any]]] = []
        self.saved_paths: list[Path] = []
        self.saved_steps: list[int] = []
        self._fails_in = fails_in

    @property
    def should_stop(self) -> bool:
        return self._stops_at is not None and self.step >= self._stops_at

    def _called(self, name: str) -> None:
        self.calls.append(name)
        if name == self._fails_in:
            raise RuntimeError("planted")

    def watch(self, model: Any, last_step: int | None = None) -> None:
        self._called("watch")
        self.model, self.last_step = model, last_step

    def attach(self, optimizer: Any, step: int | None = None) -> None:
        self._called("attach")
        self.step = step or 0
        self.began_at.append(self.step)
        from toposcope.monitor.adapters import innermost

        innermost(optimizer).register_step_post_hook(self._after_step)

    def _after_step(self, *_: Any) -> None:
        self.step += 1
        self.updates.append(self.step)

    def log(self, step: int | None = None, **values: Any) -> None:
        self._called("log")
        self.logged.append((self.step if step is None else step, {k: float(v) for k, v in values.items()}))

    def saved(self, path: Path, step: int | None = None) -> None:
        self._called("saved")
        self.saved_paths.append(path)
        self.saved_steps.append(self.step if step is None else step)

    def close(self) -> None:
        self._called("close")

    def __exit__(self, *_: Any) -> None:
        self._called("failed")

    def values(self, name: str) -> dict[int, float]:
        """Return what was logged under a name, by step."""
        return {step: values[name] for step, values in self.logged if name in values}
