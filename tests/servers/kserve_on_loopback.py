"""Starts the predictor of `examples/kserve` with KServe's REST server on loopback: python ... FOLDER MODEL PORT.

KServe's `ModelServer` always listens on all addresses of a machine, which is right in a pod and wrong in a test.
"""

import asyncio
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "examples/kserve"))

from kserve import ModelRepository
from kserve.protocol.dataplane import DataPlane
from kserve.protocol.model_repository_extension import ModelRepositoryExtension
from kserve.protocol.rest.server import RESTServer
from predictor import Versions

folder, name, port = sys.argv[1:]
model, repository = Versions(name, folder), ModelRepository()
model.load()
repository.update(model)
server = RESTServer("kserve.model_server:app", DataPlane(repository), ModelRepositoryExtension(repository), int(port))
server.config.host = "127.0.0.1"
asyncio.run(server.start())
