"""Compiles the lookup and update of stacks on SparseCores. Runs in the compiler's own environment, as a script.

`embedding_core/tpu_compiler/compilers.py` starts this file by its path and exchanges files with it. It
imports nothing of this project but the script beside it.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path.append(os.path.dirname(__file__))  # Python's option -I leaves the folder of a script out

from compiler_process import memory_of, ready, write_reply

_AXIS = "chips"


def main(folder: Path) -> None:
    """Read request.json in the folder; write reply.json.

    The reply has "stage": "versions" if this environment does not have the requested versions; "compiling" while the
    compiler works on "stack"; then "compiled". "stacks" has what is done.
    """
    request = ready(folder)
    if request is None:
        return
    from jax.experimental import topologies

    devices = topologies.get_topology_desc(platform="tpu", topology_name=request["topology"]).devices
    done: dict[str, Any] = {}
    common = {"versions": request["versions"], "stacks": done}
    for stack, tables in stacks_of(request).items():
        if stack not in request["done"]:
            write_reply(folder, {"stage": "compiling", "stack": stack, "tables": tables, **common})
            done[stack] = {"tables": tables, **_compiled(request, tables, devices)}
    write_reply(folder, {"stage": "compiled", **common})


def stacks_of(request: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the tables of each stack, in the order of their rows."""
    stacked = {stack["stack_name"]: stack["table_names"] for stack in request["form"]["stack_tables"]}
    limits = request["form"]["update_preprocessing_parameters"]["max_ids_per_partition"]
    return {stack: stacked.get(stack, [stack]) for stack in limits}


def feature_specs(request: Mapping[str, Any], names: list[str] | None = None) -> dict[str, Any]:
    """Make the specs of the features of some tables, stacked and limited as the request's form says.

    Args:
      request: see `SparseCoreCompiler.compile`.
      names: whole stacks of tables; None for all tables.

    Raises:
      LookupError: jax-tpu-embedding does not have an optimizer.
    """
    import jax
    from jax_tpu_embedding.sparsecore.lib.nn import embedding, embedding_spec, table_stacking

    chips, cores, form = request["chips"], request["sparse_cores_per_chip"], request["form"]
    tables = {
        name: embedding_spec.TableSpec(
            name=name,
            vocabulary_size=table["rows"],
            embedding_dim=table["dim"],
            initializer=jax.nn.initializers.zeros,
            optimizer=_optimizer(table["optimizer"])[0],
            combiner=table["combiner"],
        )
        for name, table in request["tables"].items()
        if names is None or name in names
    }
    features = {}
    for name, feature in request["features"].items():
        if feature["table"] in tables:
            samples = request["batch_size"] * max(1, feature["length"])  # each position of a sequence is a sample
            table = tables[feature["table"]]
            features[name] = embedding_spec.FeatureSpec(
                name=name,
                table_spec=table,
                input_shape=(samples, 1),
                output_shape=(samples, table.embedding_dim),
            )
    for stack in form["stack_tables"]:
        if stack["table_names"][0] in tables:
            table_stacking.stack_tables(features, stack["table_names"], chips, cores, stack_name=stack["stack_name"])
    embedding.prepare_feature_specs_for_training(features, chips, cores)
    stats = embedding.SparseDenseMatmulInputStats(**form["update_preprocessing_parameters"])
    embedding.update_preprocessing_parameters(features, stats, cores)
    return features


def _optimizer(given: Mapping[str, Any]) -> tuple[Any, list[str]]:
    """Make the optimizer; also return the hyperparameters that are set and that jax-tpu-embedding does not have."""
    from jax_tpu_embedding.sparsecore.lib.nn import embedding_spec

    kind = getattr(embedding_spec, f"{given['kind']}OptimizerSpec", None)
    if kind is None:
        raise LookupError(f"jax-tpu-embedding does not have the optimizer {given['kind']}")
    known = inspect.signature(kind).parameters
    passed = {name: value for name, value in given["hyperparameters"].items() if name in known}
    return kind(**passed), [name for name in given["changed"] if name not in known]


def _compiled(request: Mapping[str, Any], names: list[str], devices: Any) -> dict[str, Any]:
    import jax

    try:
        specs = feature_specs(request, names)
    except LookupError as error:
        return {"stage": "lacking", "error": str(error)}
    try:
        found = memory_of(_program(request, specs, devices).memory_analysis())
    except (jax.errors.JaxRuntimeError, ValueError, NotImplementedError) as error:
        return {"stage": "refused", "error": str(error)}
    left = {name: _optimizer(request["tables"][name]["optimizer"])[1] for name in names}
    return {"stage": "compiled", **found, "not_passed": {name: keys for name, keys in left.items() if keys}}


def _instead(values: Any, _: Any) -> Any:
    return values


def _program(request: Mapping[str, Any], specs: Mapping[str, Any], devices: Any) -> Any:
    """Compile the lookup of a batch, and the update with the activations in place of their gradients."""
    import jax
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec
    from jax_tpu_embedding.sparsecore.lib.nn import embedding

    chips, cores = request["chips"], request["sparse_cores_per_chip"]
    mesh, part = Mesh(np.array(devices), (_AXIS,)), PartitionSpec(_AXIS)
    shape = functools.partial(jax.ShapeDtypeStruct, sharding=NamedSharding(mesh, part))
    inputs = jax.tree.map(
        lambda array: shape(array.shape, array.dtype),
        embedding.eval_preprocess_sparse_dense_matmul_input_shape(specs, chips, chips, num_sc_per_device=cores),
    )
    tables = {}
    for spec in {spec.table_spec.stacked_table_spec for spec in specs.values()}:
        values = shape((spec.stack_vocab_size, spec.stack_embedding_dim), np.float32)
        slots = jax.tree.map(functools.partial(_instead, values), spec.optimizer.slot_variables_initializers())
        tables[spec.stack_name] = embedding.EmbeddingVariables(values, slots)

    def step(inputs: Any, tables: Any) -> Any:
        found = embedding.tpu_sparse_dense_matmul(
            inputs, tables, specs, global_device_count=chips, num_sc_per_device=cores
        )
        return embedding.tpu_sparse_dense_matmul_grad(
            found, inputs, tables, specs, global_device_count=chips, num_sc_per_device=cores
        )

    on_chips = jax.shard_map(step, mesh=mesh, in_specs=(part, part), out_specs=part, check_vma=False)
    return jax.jit(on_chips, donate_argnums=1).lower(inputs, tables).compile()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
