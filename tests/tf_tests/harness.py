"""Points TensorFlow's own TPU embedding tests at the simulated engine.

The tests run unmodified from a checkout of TensorFlow. This module, not the class, provides the private members of
TPUEmbedding that they read.
"""

import types

from tensorflow.python.tpu import tpu_embedding_for_serving, tpu_embedding_v1, tpu_embedding_v2

from embedding_core import engines
from embedding_core.engines import tables
from embedding_core.engines.hardware_configs import with_enum_numbers
from embedding_core.lookup import cpu_embedding_lookup

TheirTPUEmbedding = tpu_embedding_v2.TPUEmbedding


class Shards:
    """A table as the tests read it: `variables[0]` holds the rows of all hosts."""

    def __init__(self, variable):
        self.variables = [variable]

    @property
    def shape(self):
        return self.variables[0].shape

    def numpy(self):
        return self.variables[0].numpy()


class TPUEmbedding(engines.TPUEmbedding):
    """The class under test, with the private members that the tests read."""

    @property
    def _variables(self):
        own = self._engine.variables.items()
        return {table: {slot: Shards(variable) for slot, variable in slots.items()} for table, slots in own}

    @property
    def _output_shapes(self):
        return self._engine.output_shapes

    @_output_shapes.setter
    def _output_shapes(self, shapes):
        self._engine.output_shapes = shapes

    @property
    def _feature_config(self):
        return self._engine.model.structure

    def _load_variables(self):
        """Nothing to do: the variables are the device memory."""

    def _retrieve_variables(self):
        """Nothing to do: the variables are the device memory."""

    def _create_config_proto(self):
        """Create the proto with TensorFlow's own code, from the configuration as this engine reads it."""
        model, strategy = self._engine.model, self._engine._strategy
        named = {table.key: table for table in model.tables}
        for key, table in named.items():
            key.name, key.optimizer = table.name, with_enum_numbers(key.optimizer or self._default_optimizer)
        optimizers = [table.optimizer for table in model.tables]
        extended = types.SimpleNamespace(num_hosts=strategy.hosts)
        theirs = types.SimpleNamespace(
            _dynamic_learning_rates=tables.distinct_rates(optimizers),
            _table_config=list(named),
            _feature_config=model.structure,
            _output_shapes=self._output_shapes,
            _num_cores_per_replica=None,
            _pipeline_execution_with_tensor_core=False,
            _strategy=types.SimpleNamespace(extended=extended, num_replicas_in_sync=strategy.num_replicas_in_sync),
        )
        return TheirTPUEmbedding._create_config_proto(theirs)

    def __init__(self, feature_config, optimizer, *args, **kwargs):
        super().__init__(feature_config, optimizer, *args, **kwargs)
        self._default_optimizer = optimizer


class TPUEmbeddingV0(engines.TPUEmbeddingV0):
    """The class for cores without an embedding engine, with the private member that the tests read."""

    @property
    def _variables(self):
        return self._state.variables


class TPUEmbeddingForServing(TPUEmbedding):
    """Tables without a TPU, and the CPU lookup in them."""

    def __call__(self, features, weights=None):
        return cpu_embedding_lookup(features, weights, self.embedding_tables, self._feature_config)


def install(base_test, resolver_module, hosts, cores_per_host):
    """Make the test modules use the simulated TPU of that topology."""

    def get_strategy(self):
        self.resolver = engines.simulated_tpu(hosts=hosts, cores_per_host=cores_per_host)
        return self.resolver

    base_test.TPUEmbeddingBaseTest._get_strategy = get_strategy
    base_test.TPUEmbeddingBaseTest._get_variable = lambda self, variable: variable
    resolver_module.initialize_tpu_system = engines.initialize_simulated_tpu
    tpu_embedding_v2.TPUEmbedding = TPUEmbedding
    tpu_embedding_v1.TPUEmbeddingV0 = TPUEmbeddingV0
    tpu_embedding_for_serving.TPUEmbeddingForServing = TPUEmbeddingForServing
    tpu_embedding_for_serving.cpu_embedding_lookup = cpu_embedding_lookup
