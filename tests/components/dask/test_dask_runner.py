"""Runs small pipelines on a Dask cluster in this process, and shows why Beam's own DaskRunner is not used."""

import socket

import apache_beam as beam
import pytest
from apache_beam.pvalue import AsDict, AsIter, AsSingleton, TaggedOutput
from apache_beam.transforms.userstate import CombiningValueStateSpec
from apache_beam.transforms.window import FixedWindows, GlobalWindows

from embedding_core.errors import ConfigError, UnsupportedError
from pipelines.dask.beam_runner import on_dask
from pipelines.pipeline.run_target import IN_PROCESS

pytestmark = pytest.mark.tfx


@pytest.fixture(scope="module")
def address():
    import distributed

    with distributed.LocalCluster(
        processes=False, n_workers=2, threads_per_worker=1, protocol="tcp", dashboard_address=None
    ) as cluster:
        yield cluster.scheduler_address


class Odd(beam.DoFn):
    """Gives odd numbers a tag; at the end of a bundle, yields 100 for each of its elements."""

    def start_bundle(self):
        self.seen = 0

    def process(self, number):
        self.seen += 1
        yield TaggedOutput("odd", number) if number % 2 else number

    def finish_bundle(self):
        yield GlobalWindows.windowed_value(100 * self.seen)


def written(folder):
    return {path.name: sorted(path.read_text().split()) for path in sorted(folder.iterdir())}


def numbers(folder, arguments):
    """Run a pipeline that needs every output of a transform; return what it wrote, by file."""
    folder.mkdir()

    def write(value, name):
        with open(folder / name, "a") as file:
            file.write(f"{value}\n".replace(" ", ""))

    with beam.Pipeline(argv=arguments) as pipeline:
        both = pipeline | beam.Create(range(10)) | beam.ParDo(Odd()).with_outputs("odd", main="even")
        _ = both.odd | "Odd" >> beam.Map(write, "odd")
        total = both.even | beam.CombineGlobally(sum)
        _ = total | "Total" >> beam.Map(write, "total")
    return written(folder)


RIGHT = {"odd": ["1", "3", "5", "7", "9"], "total": [str(20 + 1000)]}


def test_outputs_go_where_their_tags_say_and_all_are_written(address, tmp_path):
    assert numbers(tmp_path / "dask", [*on_dask(address)]) == RIGHT
    assert numbers(tmp_path / "here", [*IN_PROCESS]) == RIGHT


def test_side_inputs_combiners_and_files_equal_the_direct_runner(address, tmp_path):
    (tmp_path / "lines").write_text("".join(f"{number} {'x' * (number % 7)}\n" for number in range(500)))

    def run(folder, arguments):
        folder.mkdir()
        with beam.Pipeline(argv=arguments) as pipeline:
            lines = pipeline | beam.io.ReadFromText(str(tmp_path / "lines"))
            sizes = lines | beam.Map(lambda line: (len(line.split()[-1]), 1)) | beam.CombinePerKey(sum)
            most = sizes | beam.Map(lambda pair: pair[1]) | beam.CombineGlobally(max)
            few = pipeline | "Few" >> beam.Create([1, 2, 3])
            shown = (sizes, few | beam.Map(lambda few: (-few, few))) | beam.Flatten() | beam.Reshuffle()
            shown |= beam.Map(
                lambda pair, most, few, sizes: (*pair, most, sorted(few), sizes.get(2)),
                AsSingleton(most), AsIter(few), AsDict(sizes),
            )  # fmt: skip
            _ = shown | beam.io.WriteToText(str(folder / "out"), num_shards=1)
        return written(folder)

    assert run(tmp_path / "dask", [*on_dask(address)]) == run(tmp_path / "here", [*IN_PROCESS])


class Stateful(beam.DoFn):
    STATE = CombiningValueStateSpec("sum", beam.coders.VarIntCoder(), sum)

    def process(self, pair, state=beam.DoFn.StateParam(STATE)):  # noqa: B008
        state.add(pair[1])
        yield state.read()


@pytest.mark.parametrize(
    ("transform", "said"),
    [
        (beam.WindowInto(FixedWindows(10)), "has only the global window"),
        (beam.Map(lambda number: (number, number)) | beam.ParDo(Stateful()), "neither splittable nor stateful"),
    ],
)
def test_what_the_runner_cannot_do_is_refused(address, transform, said):
    pipeline = beam.Pipeline(argv=[*on_dask(address)])
    _ = pipeline | beam.Create([1, 2]) | transform
    with pytest.raises(UnsupportedError, match=said):
        pipeline.run()


def test_the_error_of_a_worker_is_raised_here(address):
    pipeline = beam.Pipeline(argv=[*on_dask(address)])
    _ = pipeline | beam.Create([1, 0]) | beam.Map(lambda number: 1 // number)
    with pytest.raises(ZeroDivisionError):
        pipeline.run()


def test_an_address_without_a_scheduler_is_an_error(monkeypatch):
    from components.dask import dask_runner

    monkeypatch.setattr(dask_runner, "_CONNECT_SECONDS", 1)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        pipeline = beam.Pipeline(argv=[*on_dask(f"tcp://127.0.0.1:{free.getsockname()[1]}")])
        _ = pipeline | beam.Create([1])
        with pytest.raises(ConfigError, match="no Dask scheduler answers there"):
            pipeline.run()


@pytest.mark.parametrize("encrypted", [False, True])
def test_an_address_that_needs_tls_names_the_setting(encrypted):
    import dask

    pipeline = beam.Pipeline(argv=[*on_dask(f"{'tcp' if encrypted else 'tls'}://127.0.0.1:1")])
    _ = pipeline | beam.Create([1])
    with (
        dask.config.set({"distributed.comm.require-encryption": encrypted}),
        pytest.raises(ConfigError, match=r"set `distributed.comm.tls`"),
    ):
        pipeline.run()


def test_a_scheduler_without_workers_is_an_error(monkeypatch):
    import distributed

    from components.dask import dask_runner

    monkeypatch.setattr(dask_runner, "_WORKER_SECONDS", 0.2)
    with distributed.LocalCluster(processes=False, n_workers=0, protocol="tcp", dashboard_address=None) as empty:
        pipeline = beam.Pipeline(argv=[*on_dask(empty.scheduler_address)])
        _ = pipeline | beam.Create([1])
        with pytest.raises(ConfigError, match="has no workers; start some"):
            pipeline.run()
