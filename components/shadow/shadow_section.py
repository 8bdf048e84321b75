"""Declares the YAML section `shadow`: requests that are replayed before a push, and what the model must keep to."""

from __future__ import annotations

from embedding_core.schema import Text
from embedding_core.shadow_rules import ShadowRules


class Shadow(ShadowRules):
    """Recorded requests that are replayed on the trained model and on the last pushed version before a push.

    Attributes:
      requests: file of a TensorFlow Serving request log (TFRecords of `PredictionLog`, also gzip), or a glob of such
        files.
      against: version to compare with: "pushed", "served" or "trained" as in `warm_start`, or the folder of a version.
        Before the first push there is none, and the model is blessed.
    """

    SHORT = "requests"

    requests: Text
    against: Text = "pushed"

    def rules(self) -> ShadowRules:
        """Return what is measured and judged, without the paths."""
        return ShadowRules(**{name: getattr(self, name) for name in ShadowRules.model_fields})
