"""Writes the output of a training that did not take place, as EmbeddingTrainer leaves it."""

import os

import tensorflow as tf

from embedding_core.checkpoint import write_training_checkpoint
from embedding_core.tasks import POSITIVE
from embedding_core.training import TrainingConfig
from embedding_core.training.finished_run import RunDescription

STEP = 7


def write_checkpoint(uri, engine, model):
    """Write the checkpoint of tables and model; return its name."""
    checkpoint = tf.train.Checkpoint(embedding=engine.tables, model=model, step=tf.Variable(STEP, dtype=tf.int64))
    checkpoint.save_counter.assign_add(1)  # creates the counter, as `save` would
    return os.path.basename(write_training_checkpoint(f"{uri}/checkpoints", STEP, checkpoint.write).prefix)


def write_run(uri, engine, model, digests, *, module, config, arguments=None, dense=(), **training):
    """Write the description of the run and its checkpoint; `training` holds settings of the training."""
    RunDescription(
        model=module,
        arguments=arguments or {},
        config=config,
        training=TrainingConfig(steps=STEP, **training),
        dense=dense,
        tasks=(POSITIVE,),
        weight=None,
        step=STEP,
        checkpoint=write_checkpoint(uri, engine, model),
        vocabularies=digests,
    ).save(uri)
