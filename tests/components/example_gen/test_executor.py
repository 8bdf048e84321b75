import json
import pathlib

import pytest
import tfx
from tfx.proto import example_gen_pb2
from tfx.types import standard_artifacts
from tfx.utils import proto_utils

from components.example_gen.executor import Executor
from embedding_core.errors import DataError

pytestmark = pytest.mark.tfx

TAXI = pathlib.Path(tfx.__file__).parent / "examples/chicago_taxi_pipeline/data/simple"
RETAIL = pathlib.Path(__file__).parents[4] / "shared/data/online_retail"
BEAM = ["--direct_running_mode=in_memory"]


def run(folder, out, settings, data_format="csv", pattern="*", beam=()):
    examples = standard_artifacts.Examples()
    examples.uri = str(out)
    config = example_gen_pb2.Input(splits=[example_gen_pb2.Input.Split(name="data", pattern=pattern)])
    properties = {
        "input_base": str(folder),
        "input_config": proto_utils.proto_to_json(config),
        "data_format": data_format,
        "settings": json.dumps(settings),
    }
    Executor(Executor.Context(beam_pipeline_args=[*BEAM, *beam])).Do({}, {"examples": [examples]}, properties)
    return examples


def test_taxi_is_split(tmp_path):
    artifact = run(
        TAXI,
        tmp_path,
        {"columns": {"company": "token", "fare": "float"}, "split": {"by": "hash", "eval_fraction": 0.3}},
    )
    facts = json.loads(artifact.get_string_custom_property("ingest"))
    print(json.dumps(facts, indent=1))
    assert facts["rows_read"] == facts["rows_kept"] == 15002
    assert 0.28 < facts["splits"]["eval"] / 15002 < 0.32
