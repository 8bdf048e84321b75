"""Uses components of this project in a TFX pipeline with TFX's own CsvExampleGen, Transform, Trainer and Pusher.

    python examples/in_your_own_pipeline/taxi_pipeline.py runs/in_your_own_pipeline

TFX's Trainer trains the linear model that the pipeline had before, on Transform's examples. Beside it, VocabularyGen
counts tokens, TableConfigGen sizes tables, EmbeddingTrainer trains a model with them, TableHealth and EmbeddingPusher
judge and push it. Every channel is an ordinary one: the components read what TFX's components wrote.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import tfx
from tfx.components import CsvExampleGen, Pusher, SchemaGen, StatisticsGen, Trainer, Transform
from tfx.dsl.components.base.base_node import BaseNode
from tfx.orchestration.local.local_dag_runner import LocalDagRunner
from tfx.orchestration.metadata import sqlite_metadata_connection_config
from tfx.orchestration.pipeline import Pipeline
from tfx.proto import pusher_pb2, trainer_pb2

from components import (
    CheckpointRetriever,
    EmbeddingPusher,
    EmbeddingTrainer,
    TableConfigGen,
    TableHealth,
    VocabularyGen,
)
from components.vocabulary_gen.counting_plan import VocabularyRule

DATA = Path(tfx.__file__).parent / "examples" / "chicago_taxi_pipeline" / "data" / "simple"
MODULES = str(Path(__file__).with_name("taxi_modules.py"))
FEATURES = [
    {"name": "company", "column": {"name": "company"}},
    {"name": "pickup", "column": {"name": "pickup_community_area"}, "vocabulary": "area"},
    {"name": "dropoff", "column": {"name": "dropoff_community_area"}, "vocabulary": "area"},
]


def create_pipeline(root: str, data: str = str(DATA), steps: int = 200) -> Pipeline:
    """Build the pipeline.

    Args:
      root: folder of artifacts, metadata and served versions.
      data: folder with the CSV files.
      steps: batches that each of the two models is trained on.
    """
    example_gen = CsvExampleGen(input_base=data)
    statistics_gen = StatisticsGen(examples=example_gen.outputs["examples"])
    schema_gen = SchemaGen(statistics=statistics_gen.outputs["statistics"])
    transform = Transform(
        examples=example_gen.outputs["examples"], schema=schema_gen.outputs["schema"], module_file=MODULES
    )
    trainer = Trainer(
        module_file=MODULES,
        examples=transform.outputs["transformed_examples"],
        transform_graph=transform.outputs["transform_graph"],
        train_args=trainer_pb2.TrainArgs(num_steps=steps),
        eval_args=trainer_pb2.EvalArgs(num_steps=1),
    )
    served = pusher_pb2.PushDestination.Filesystem(base_directory=os.path.join(root, "linear"))
    pusher = Pusher(model=trainer.outputs["model"], push_destination=pusher_pb2.PushDestination(filesystem=served))
    before = [example_gen, statistics_gen, schema_gen, transform, trainer, pusher]
    return Pipeline(
        pipeline_name="in_your_own_pipeline",
        pipeline_root=os.path.join(root, "artifacts"),
        components=[*before, *embedding_nodes(example_gen, transform, os.path.join(root, "embeddings"), steps)],
        metadata_connection_config=sqlite_metadata_connection_config(os.path.join(root, "metadata.sqlite")),
        beam_pipeline_args=["--runner=FnApiRunner"],  # DirectRunner would try to download another runner
    )


def embedding_nodes(example_gen: BaseNode, transform: BaseNode, destination: str, steps: int) -> list[BaseNode]:
    """Build the nodes of this project, on the examples and the transform graph of TFX's components.

    Args:
      example_gen: the node whose raw examples are counted and trained on.
      transform: the node whose graph computes the dense features and the label.
      destination: folder of the served versions.
      steps: batches to train on.
    """
    examples = example_gen.outputs["examples"]
    vocabulary_gen = VocabularyGen(
        examples=examples, features=FEATURES, vocabularies={"company": VocabularyRule(min_count=2)}
    )
    table_config_gen = TableConfigGen(vocabularies=vocabulary_gen.outputs["vocabularies"], features=FEATURES)
    tables = {
        "vocabularies": vocabulary_gen.outputs["vocabularies"],
        "table_configs": table_config_gen.outputs["table_configs"],
    }
    trainer = EmbeddingTrainer(
        examples=examples,
        transform_graph=transform.outputs["transform_graph"],
        model="pipelines.models.ranking",
        custom_config={
            "training": {"steps": steps, "batch_size": 256},
            "dense": ["fare", "trip_miles"],
            "tasks": [{"name": "big_tip", "key": "big_tip"}],
        },
        **tables,
    )
    retriever = CheckpointRetriever(model_run=trainer.outputs["model_run"], **tables)
    health = TableHealth(embedding_checkpoint=retriever.outputs["embedding_checkpoint"])
    pusher = EmbeddingPusher(
        examples=examples,
        model=trainer.outputs["model"],
        model_run=trainer.outputs["model_run"],
        transform_graph=transform.outputs["transform_graph"],
        health_blessing=health.outputs["blessing"],
        push_destination=destination,
        **tables,
    )
    return [vocabulary_gen, table_config_gen, trainer, retriever, health, pusher]


if __name__ == "__main__":
    LocalDagRunner().run(create_pipeline(os.path.abspath(sys.argv[1])))
