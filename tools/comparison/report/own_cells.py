"""What one run of a user's own program left: steps.csv, and as much of the other tables as it wrote."""
import math
import re
from functools import cached_property

from cells import ACCURACY, BYTES, TEST_LOSS, TRAINING_LOSS, Cell, mean


class OwnCell(Cell):
    """A run of amp::Comparison, or of a grid's `program`."""

    @cached_property
    def steps(self):
        return self.table("steps")

    @cached_property
    def result(self):
        return self.table("result")[0] if self.has("result") else {}

    @property
    def diverged(self):
        return not (math.isfinite(self.losses[-1]) and math.isfinite(self.quality))

    @property
    def measure(self):
        if self.result.get("test_accuracy"):
            return ACCURACY
        return TEST_LOSS if self.result.get("test_loss") else TRAINING_LOSS

    @property
    def quality(self):
        if self.measure is TRAINING_LOSS:
            return mean(self.losses[-max(1, len(self.losses) // 10):])
        return float(self.result["test_accuracy" if self.measure is ACCURACY else "test_loss"])

    @property
    def loss_scales(self):
        return [float(step["loss_scale"]) for step in self.steps] if "loss_scale" in self.steps[0] else []

    @property
    def loss_scale(self):
        return self.loss_scales[-1] if self.loss_scales else 1.0

    @property
    def skipped(self):
        return len(self.skipped_steps)

    @property
    def training_seconds(self):
        return sum(float(step["step_ms"]) for step in self.steps) / 1000

    @property
    def command(self):
        """That it was started by; empty of amp::Comparison."""
        path = self.folder / "cell.yaml"
        return path.read_text(encoding="utf-8").splitlines()[0].lstrip("# ") if path.exists() else ""

    @property
    def is_at_level(self):
        return True

    @property
    def scale_is_dynamic(self):
        return len(set(self.loss_scales)) > 1

    @cached_property
    def parameters(self):
        return super().parameters if self.has("parameters") else {}

    @cached_property
    def loses_small_updates(self):
        if self.has("parameters"):
            return any(BYTES[row["dtype"]] == 2 and not row["master_dtype"] for row in self.table("parameters"))
        return re.match(r"O3\b", self.level) is not None

    @cached_property
    def memory(self):
        """Bytes between two steps, and the most within one; empty where the program counts none."""
        if not self.has("memory"):
            return {}
        row = self.table("memory")[0]
        return {part: int(float(row[part])) for part in ("held", "peak")}

    @property
    def resident(self):
        return self.memory.get("peak", math.nan)

    @cached_property
    def layers(self):
        return []

    @cached_property
    def calls(self):
        return self.table("trace") if self.has("trace") else []
