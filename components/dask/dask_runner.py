"""Runs Beam pipelines on a Dask cluster.

Beam's own DaskRunner (2.74 and 2.77) gives every consumer of a transform all its outputs, whichever their tags; drops
what a DoFn yields at the end of a bundle; and computes only the last transform of a pipeline and what that needs. All
three are silent. This runner translates batch pipelines in the global window. It refuses whatever it cannot translate.

    --runner=components.dask.dask_runner.DaskRunner --dask_cluster=tcp://<host>:8786

A PCollection is a list of Dask tasks, each of which returns a partition, a list of elements. If a worker dies, Dask
runs its tasks again on another one.
"""

from __future__ import annotations

import zlib
from argparse import ArgumentParser
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, ClassVar

import apache_beam as beam
import dask
import distributed
from apache_beam import coders, typehints
from apache_beam.internal import cloudpickle_pickler
from apache_beam.io import iobase
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.pipeline import AppliedPTransform, PipelineVisitor, PTransformOverride
from apache_beam.pvalue import AsSideInput, PBegin, PCollection
from apache_beam.runners.common import DoFnContext, DoFnInvoker, DoFnSignature, Receiver, _OutputHandler
from apache_beam.runners.runner import PipelineResult, PipelineRunner, PipelineState
from apache_beam.transforms.combiners import LiftedCombinePerKey
from apache_beam.transforms.sideinputs import SideInputMap
from apache_beam.transforms.window import GlobalWindows

from embedding_core.errors import ConfigError, EmbeddingError, UnsupportedError

Partition = list[Any]
_TASKS_PER_THREAD = 4  # more than one, so that threads with short tasks take over work from others
_READ_BYTES = 64 << 20
_CONNECT_SECONDS, _WORKER_SECONDS = 10, 60


class DaskCluster(PipelineOptions):
    """Beam's options of the cluster."""

    @classmethod
    def _add_argparse_args(cls, parser: ArgumentParser) -> None:
        parser.add_argument("--dask_cluster", help="address of the Dask scheduler, such as tcp://10.0.0.5:8786")


class DaskRunner(PipelineRunner):
    """Runs a pipeline on the Dask cluster that `--dask_cluster` names, and waits for its end."""

    def run_pipeline(self, pipeline: beam.Pipeline, options: PipelineOptions) -> PipelineResult:
        """Run the pipeline.

        Raises:
          ConfigError: no scheduler answers, or it has no workers.
          UnsupportedError: the pipeline has windows, state, splittable DoFns, or transforms that this runner lacks.
          EmbeddingError: every worker that ran one of the tasks died.
        """
        with _connected(options.view_as(DaskCluster).dask_cluster) as client:
            threads = sum(worker["nthreads"] for worker in client.scheduler_info(n_workers=-1)["workers"].values())
            pipeline.replace_all(_OVERRIDES)
            translation = _Translation(_TASKS_PER_THREAD * threads)
            pipeline.visit(translation)
            try:
                client.gather(client.compute(translation.ends()))
            except distributed.KilledWorker as error:
                raise EmbeddingError(
                    f"Dask gave up on a task of Beam, because {error.allowed_failures + 1} workers that ran it died: "
                    "see their logs; if memory ran out, give workers more memory or fewer threads."
                ) from error
        result = PipelineResult(PipelineState.DONE)
        result.wait_until_finish = lambda duration=None: PipelineState.DONE
        return result

    def is_fnapi_compatible(self) -> bool:
        """Return false: this runner gets the pipeline itself, not its proto."""
        return False


def _connected(address: str | None) -> distributed.Client:
    """Connect to a scheduler that has a worker, or soon gets one."""
    given = f"`beam.address` is {address!r}"
    if not address:
        raise ConfigError(f"{given}: it must be the address of a Dask scheduler, such as tcp://10.0.0.5:8786.")
    try:
        client = distributed.Client(address, timeout=_CONNECT_SECONDS, set_as_default=False, name="tfx-embeddings")
    except (TypeError, RuntimeError) as error:
        raise ConfigError(
            f"{given}: this connection needs TLS ({error}); set `distributed.comm.tls` of Dask's configuration, or "
            "correct the address."
        ) from error
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{given}: no Dask scheduler answers there; start one with `dask scheduler`, or correct the address."
        ) from error
    try:
        client.wait_for_workers(1, timeout=_WORKER_SECONDS)
    except distributed.TimeoutError as error:
        client.close()
        raise ConfigError(
            f"{given}: this Dask scheduler has no workers; start some with `dask worker {address}`."
        ) from error
    return client


class _Elements(beam.PTransform):
    """A `Create` whose elements this runner partitions."""

    def __init__(self, values: Sequence[Any]) -> None:
        super().__init__()
        self.values = list(values)

    def expand(self, begin: PBegin) -> PCollection:
        return PCollection.from_(begin)

    def get_windowing(self, _: Any) -> beam.Windowing:
        return beam.Windowing(GlobalWindows())


class _Spread(beam.PTransform):
    """A `Reshuffle`, which here only spreads elements over the workers."""

    def expand(self, elements: PCollection) -> PCollection:
        return PCollection.from_(elements)


class _ReadSource(beam.PTransform):
    """Reads a source bundle by bundle."""

    def __init__(self, source: iobase.BoundedSource) -> None:
        super().__init__()
        self._source = source

    def expand(self, begin: PBegin) -> PCollection:
        bundles = begin.pipeline | beam.Create([self._source]) | beam.FlatMap(lambda source: source.split(_READ_BYTES))
        return bundles | beam.Reshuffle() | beam.FlatMap(_read)


def _read(bundle: iobase.SourceBundle) -> Iterator[Any]:
    tracker = bundle.source.get_range_tracker(bundle.start_position, bundle.stop_position)
    yield from bundle.source.read(tracker)


class _Override(PTransformOverride):
    """Replaces the transforms of one class."""

    def __init__(self, replaced: type, replacement: Callable[[Any], beam.PTransform]) -> None:
        self._replaced = replaced
        self._replacement = replacement

    def matches(self, node: AppliedPTransform) -> bool:
        is_of_class = type(node.transform) is self._replaced
        return is_of_class and isinstance(getattr(node.transform, "source", None), (iobase.BoundedSource, type(None)))

    def get_replacement_transform_for_applied_ptransform(self, node: AppliedPTransform) -> beam.PTransform:
        return self._replacement(node.transform)


_OVERRIDES = [
    _Override(iobase.Read, lambda read: _ReadSource(read.source)),
    _Override(beam.Create, lambda create: _Elements(create.values)),
    _Override(beam.Reshuffle, lambda _: _Spread()),
    # Combines values of a partition before they are sent to another worker.
    _Override(
        beam.CombinePerKey, lambda combining: LiftedCombinePerKey(combining.fn, combining.args, combining.kwargs)
    ),
]
"""Replacements, in the order that they are made in: a later one may replace parts of an earlier one."""


class _Translation(PipelineVisitor):
    """Translates each transform into Dask tasks.

    Attributes:
      width: number of partitions that elements are spread over.
    """

    def __init__(self, width: int) -> None:
        self.width = width
        self._partitions: dict[PCollection, list[Any]] = {}
        self._consumed: set[PCollection] = set()

    def ends(self) -> list[Any]:
        """Return a task for each partition that no transform reads; together they need all others."""
        discard = dask.delayed(_discard)
        unread = [self._partitions[partition] for partition in self._partitions if partition not in self._consumed]
        return [discard(partition) for partitions in unread for partition in partitions]

    def visit_transform(self, node: AppliedPTransform) -> None:
        """Translate a transform that has no parts."""
        for output in node.outputs.values():
            if not output.windowing.is_default():
                raise UnsupportedError(f"transform {node.full_label!r}: Beam on Dask has only the global window.")
        translate = next((self._KNOWN[kind] for kind in type(node.transform).__mro__ if kind in self._KNOWN), None)
        if translate is None:
            raise UnsupportedError(
                f"transform {node.full_label!r}: Beam on Dask does not know {type(node.transform).__name__}; leave out "
                "`beam` to run in this process."
            )
        self._partitions.update(translate(self, node))

    def _read(self, collection: PCollection) -> list[Any]:
        self._consumed.add(collection)
        return self._partitions[collection]

    def _impulse(self, node: AppliedPTransform) -> dict[PCollection, list[Any]]:
        return {_only(node): [dask.delayed([b""])]}

    def _elements(self, node: AppliedPTransform) -> dict[PCollection, list[Any]]:
        values = node.transform.values
        return {_only(node): [dask.delayed(values[at :: self.width]) for at in range(min(self.width, len(values)))]}

    def _flatten(self, node: AppliedPTransform) -> dict[PCollection, list[Any]]:
        return {_only(node): [element for collection in node.inputs for element in self._read(collection)]}

    def _spread(self, node: AppliedPTransform) -> dict[PCollection, list[Any]]:
        partitions = self._read(node.inputs[0])
        if len(partitions) > 1:  # elements of `Create`, or what was spread before
            return {_only(node): partitions}
        return {_only(node): self._exchanged(partitions, _deal, _concatenate)}

    def _group(self, node: AppliedPTransform) -> dict[PCollection, list[Any]]:
        (given,) = node.inputs
        key_type, _ = typehints.trivial_inference.key_value_types(given.element_type)
        coder = coders.registry.get_coder(key_type).as_deterministic_coder(node.full_label)
        encode, width = dask.delayed(coder), len(self._read(given))
        encoded = [dask.delayed(_encode_keys)(encode, partition) for partition in self._read(given)]
        return {_only(node): self._exchanged(encoded, _by_key, _grouped, min(self.width, width))}

    def _exchanged(
        self,
        partitions: Iterable[Any],
        split: Callable[[Partition, int], list[Partition]],
        join: Callable[[list[Partition]], Partition],
        width: int | None = None,
    ) -> list[Any]:
        """Split every partition into `width` parts, and join those of the same number."""
        width = width or self.width
        parts = [dask.delayed(split, nout=width)(partition, width) for partition in partitions]
        return [dask.delayed(join)([part[number] for part in parts]) for number in range(width)]

    def _par_do(self, node: AppliedPTransform) -> dict[PCollection, list[Any]]:
        transform, signature = node.transform, DoFnSignature(node.transform.fn)
        if signature.is_splittable_dofn() or signature.is_stateful_dofn():
            raise UnsupportedError(
                f"transform {node.full_label!r}: Beam on Dask runs neither splittable nor stateful DoFns; leave out "
                "`beam` to run in this process."
            )
        views = [(type(side), side._view_options()) for side in node.side_inputs]
        bundle = _Bundle(transform.fn, list(transform.args), transform.kwargs, views, node.full_label)
        work = dask.delayed(cloudpickle_pickler.dumps(bundle))
        sides = [self._side(side) for side in node.side_inputs]
        done = [dask.delayed(_run)(work, partition, *sides) for partition in self._read(node.inputs[0])]
        take = dask.delayed(_take)
        return {output: [take(result, tag) for result in done] for tag, output in node.outputs.items()}

    def _side(self, side: AsSideInput) -> Any:
        return dask.delayed(_concatenate)(self._read(side.pvalue))

    _KNOWN: ClassVar[dict[type, Callable[[Any, AppliedPTransform], dict[PCollection, list[Any]]]]] = {
        beam.Impulse: _impulse,
        beam.Flatten: _flatten,
        beam.GroupByKey: _group,
        beam.ParDo: _par_do,
        _Elements: _elements,
        _Spread: _spread,
    }


def _only(node: AppliedPTransform) -> PCollection:
    (output,) = node.outputs.values()
    return output


class _Bundle:
    """A DoFn and its arguments, which workers apply to partitions."""

    def __init__(self, fn: beam.DoFn, args: list[Any], kwargs: dict[str, Any], views: list[Any], label: str) -> None:
        self._fn = fn
        self._args = args
        self._kwargs = kwargs
        self._views = views
        self._label = label

    def run(self, elements: Partition, sides: Sequence[Partition]) -> dict[str | None, Partition]:
        """Process the elements as one bundle; return the outputs by tag."""
        outputs = _Outputs()
        windowed = GlobalWindows.windowed_value
        invoker = DoFnInvoker.create_invoker(
            DoFnSignature(self._fn),
            _OutputHandler(GlobalWindows(), outputs[None], outputs, None, None, False, False),
            context=DoFnContext(self._label, state=None),
            side_inputs=[
                SideInputMap(view, options, [windowed(value) for value in side])
                for (view, options), side in zip(self._views, sides, strict=True)
            ],
            input_args=self._args,
            input_kwargs=self._kwargs,
            bundle_finalizer_param=beam.DoFn.BundleFinalizerParam(),
        )
        invoker.invoke_setup()
        try:
            invoker.invoke_start_bundle()
            for element in elements:
                invoker.invoke_process(windowed(element))
            invoker.invoke_finish_bundle()
        finally:
            invoker.invoke_teardown()
        return {tag: receiver.values for tag, receiver in outputs.items()}


class _Values(Receiver):
    """Keeps the values of one output."""

    def __init__(self) -> None:
        self.values: Partition = []

    def receive(self, windowed: Any) -> None:
        self.values.append(windowed.value)


class _Outputs(dict[str | None, _Values]):
    """The outputs by tag; the main output has the tag None."""

    def __missing__(self, tag: str | None) -> _Values:
        self[tag] = _Values()
        return self[tag]


def _run(work: bytes, elements: Partition, *sides: Partition) -> dict[str | None, Partition]:
    if not elements:  # as in Beam, a bundle has elements
        return {}
    bundle: _Bundle = cloudpickle_pickler.loads(work)
    return bundle.run(elements, sides)


def _take(outputs: dict[str | None, Partition], tag: str | None) -> Partition:
    return outputs.get(tag, [])


def _discard(_: Partition) -> None:
    """Return nothing: what no transform reads is not sent to the client."""


def _deal(elements: Partition, width: int) -> list[Partition]:
    return [elements[number::width] for number in range(width)]


def _concatenate(parts: list[Partition]) -> Partition:
    return [element for part in parts for element in part]


def _encode_keys(coder: coders.Coder, elements: Partition) -> list[tuple[bytes, Any, Any]]:
    return [(coder.encode(key), key, value) for key, value in elements]


def _by_key(encoded: Partition, width: int) -> list[Partition]:
    parts: list[Partition] = [[] for _ in range(width)]
    for key_and_values in encoded:
        parts[zlib.crc32(key_and_values[0]) % width].append(key_and_values)
    return parts


def _grouped(parts: list[Partition]) -> Partition:
    groups: dict[bytes, tuple[Any, list[Any]]] = {}
    for part in parts:
        for encoded, key, value in part:
            groups.setdefault(encoded, (key, []))[1].append(value)
    return list(groups.values())
