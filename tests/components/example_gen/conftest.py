import json
import pathlib

import pytest

from pipelines.pipeline.run_target import IN_PROCESS


class Output:
    """The output of the executor: its files, its recorded facts, and the examples of a split as dicts."""

    def __init__(self, artifact):
        self.artifact = artifact
        self.folder = pathlib.Path(artifact.uri)
        self.facts = json.loads(artifact.get_string_custom_property("ingest"))

    def files(self):
        return {path.relative_to(self.folder).as_posix(): path.read_bytes() for path in self.folder.rglob("*.gz")}

    def rows(self, split):
        import tensorflow as tf

        files = sorted(map(str, (self.folder / f"Split-{split}").iterdir()))
        return [as_dict(data) for data in tf.data.TFRecordDataset(files, "GZIP").as_numpy_iterator()]

    def values(self, column):
        return sorted((row.get(column) for split in ("train", "eval") for row in self.rows(split)), key=repr)


def as_dict(data):
    import tensorflow as tf

    example = tf.train.Example.FromString(data)
    kinds = {name: value.WhichOneof("kind") for name, value in example.features.feature.items()}
    return {name: list(getattr(example.features.feature[name], kind).value) for name, kind in kinds.items()}


@pytest.fixture
def ingest(tmp_path):
    """Return a function that runs the executor over a folder; additional keyword arguments are settings.

    Without a `mode` of Beam's runner, the steps run one after the other and Beam is not started.
    """
    import apache_beam as beam
    from tfx.proto import example_gen_pb2
    from tfx.types import standard_artifacts
    from tfx.utils import proto_utils

    from components.example_gen import executor

    class WithoutBeam(executor.Executor):
        def _in_parallel(self, step, work, elements, staging):
            does = executor._Step(step, work, staging)
            for element in enumerate(elements):
                list(does.process(element))
            return [executor._result(staging, step, number) for number in range(len(elements))]

    def run(folder=tmp_path, *, data_format="csv", pattern="*", out=None, mode=None, eval_pattern=None, **settings):
        examples = standard_artifacts.Examples()
        examples.uri = str(out or tmp_path / "out" / "examples")
        patterns = {"data": pattern} if eval_pattern is None else {"train": pattern, "eval": eval_pattern}
        splits = [example_gen_pb2.Input.Split(name=name, pattern=glob) for name, glob in patterns.items()]
        config = example_gen_pb2.Input(splits=splits)
        properties = {
            "input_base": str(folder),
            "input_config": proto_utils.proto_to_json(config),
            "data_format": data_format,
            "settings": json.dumps(settings),
        }
        options = [*IN_PROCESS, f"--direct_running_mode={mode}", "--direct_num_workers=2"]
        context = executor.Executor.Context(make_beam_pipeline_fn=lambda: beam.Pipeline(argv=options))
        cls = WithoutBeam if mode is None else executor.Executor
        cls(context).Do({}, {"examples": [examples]}, properties)
        return Output(examples)

    return run


@pytest.fixture
def write(tmp_path):
    """Return a function that writes a data file and returns its path."""

    def put(content, name="data.csv"):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return put
