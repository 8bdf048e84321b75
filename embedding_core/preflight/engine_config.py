"""Summarizes the configuration of the embedding engine that the traced program hands to the TPU."""

from __future__ import annotations

from google.protobuf.json_format import MessageToDict
from tensorflow.core.protobuf.tpu.tpu_embedding_configuration_pb2 import TPUEmbeddingConfiguration

from embedding_core.schema import Json


def engine_summary(serialized: bytes) -> Json:
    """Convert a `TPUEmbeddingConfiguration` to plain values.

    Returns:
      "hosts", "cores", "pipelined"; "tables": each table's name, rows, dim, optimizer, the optimizer's parameters, and
      learning rate (a number, or the tag under which each step sends it); "features": each feature's name, table, and
      the shape of its activations on one core, without the dim.
    """
    proto = TPUEmbeddingConfiguration.FromString(serialized)
    tables = [_table(table) for table in proto.table_descriptor]
    return {
        "hosts": proto.num_hosts,
        "cores": proto.num_tensor_cores,
        "pipelined": proto.pipeline_execution_with_tensor_core,
        "tables": tables,
        "features": [
            {"name": one.name, "table": tables[one.table_id]["name"], "shape": list(one.input_shape)}
            for one in proto.feature_descriptor
        ],
    }


def _table(table: TPUEmbeddingConfiguration.TableDescriptor) -> Json:
    parameters = table.optimization_parameters
    kind = parameters.WhichOneof("parameters")
    common: Json = MessageToDict(parameters, preserving_proto_field_name=True)
    rate = parameters.learning_rate
    dynamic = rate.WhichOneof("learning_rate") == "dynamic"
    of_optimizer = common.pop(kind, {})
    common.pop("learning_rate", None)
    return {
        "name": table.name,
        "rows": table.vocabulary_size,
        "dim": table.dimension,
        "optimizer": kind,
        "parameters": {**of_optimizer, **common},
        "learning_rate": {"tag": rate.dynamic.tag} if dynamic else rate.constant,
    }
