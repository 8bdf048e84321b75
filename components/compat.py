"""Every private or version-sensitive name of TFX that the project uses, in one place (TFX 1.16).

A port to another TFX version starts, and should end, here.
"""

from __future__ import annotations

# A file-based ExampleGen with an executor and parameters of its own: TFX documents neither base class nor driver.
from tfx.components.example_gen.component import FileBasedExampleGen
from tfx.components.example_gen.driver import FileBasedDriver
from tfx.components.example_gen.utils import FINGERPRINT_PROPERTY_NAME

# Its reading of blessings and model paths, and how it marks a PushedModel, are what other tools look at.
from tfx.components.pusher.executor import Executor as PusherExecutor

# Transform's executor, to which the ranges of an earlier model are given: TFX says not to customize it.
from tfx.components.transform.executor import Executor as TransformExecutor

# The local runner's parts: `LocalDagRunner` itself neither says which node runs nor which was cached.
from tfx.dsl.compiler.constants import PIPELINE_RUN_ID_PARAMETER_NAME
from tfx.orchestration import metadata
from tfx.orchestration.local import runner_utils
from tfx.orchestration.portable.launcher import Launcher
from tfx.orchestration.portable.runtime_parameter_utils import substitute_runtime_parameter
from tfx.orchestration.portable.tfx_runner import IrBasedRunner

__all__ = [
    "FINGERPRINT_PROPERTY_NAME",
    "PIPELINE_RUN_ID_PARAMETER_NAME",
    "FileBasedDriver",
    "FileBasedExampleGen",
    "IrBasedRunner",
    "Launcher",
    "PusherExecutor",
    "TransformExecutor",
    "metadata",
    "runner_utils",
    "substitute_runtime_parameter",
]
