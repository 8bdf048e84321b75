"""Makes stores of ML Metadata in sqlite files, and records artifacts in them."""

import ml_metadata
from ml_metadata.proto import metadata_store_pb2 as mlmd


def sqlite_connection(path):
    config = mlmd.ConnectionConfig()
    config.sqlite.filename_uri = str(path)
    config.sqlite.connection_mode = mlmd.SqliteMetadataSourceConfig.READWRITE_OPENCREATE
    return config


def sqlite_store(path):
    return ml_metadata.MetadataStore(sqlite_connection(path))


def newest_artifact(store, kind):
    """Return the id of the newest live artifact of a type."""
    return max(each.id for each in store.get_artifacts_by_type(kind) if each.state == mlmd.Artifact.LIVE)


def put_artifact(store, kind, uri, pipeline):
    """Record a live artifact of a pipeline; return it, with its id."""
    type_id = store.put_artifact_type(mlmd.ArtifactType(name=kind))
    artifact = mlmd.Artifact(type_id=type_id, uri=str(uri), state=mlmd.Artifact.LIVE)
    (artifact.id,) = store.put_artifacts([artifact])
    context = mlmd.Context(type_id=store.put_context_type(mlmd.ContextType(name="pipeline")), name=pipeline)
    known = store.get_context_by_type_and_name("pipeline", pipeline)
    context_id = known.id if known else store.put_contexts([context])[0]
    store.put_attributions_and_associations([mlmd.Attribution(artifact_id=artifact.id, context_id=context_id)], [])
    return artifact
