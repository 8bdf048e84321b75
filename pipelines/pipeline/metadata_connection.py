"""Makes the connection to ML Metadata: a sqlite file, or a MySQL server."""

from __future__ import annotations

import logging
import os

from ml_metadata.proto import metadata_store_pb2 as mlmd

from pipelines.config.metadata_server import PASSWORD, MetadataServer, is_server


def metadata_connection(metadata: str, *, read_only: bool = False) -> mlmd.ConnectionConfig:
    """Return the connection to a store.

    Args:
      metadata: path of a sqlite file, or address of a server.
      read_only: whether sqlite refuses to write; a server's user has the rights that the server gives.

    Raises:
      ConfigError: the address breaks its rule, or the password is missing.
    """
    connection = mlmd.ConnectionConfig()
    if is_server(metadata):
        server = MetadataServer.of(metadata)
        connection.mysql.host, connection.mysql.port = server.host, server.port
        connection.mysql.database, connection.mysql.user = server.database, server.user
        connection.mysql.password = server.password
        logging.getLogger("absl").addFilter(_holds_no_password)
        return connection
    connection.sqlite.filename_uri = metadata
    modes = mlmd.SqliteMetadataSourceConfig
    connection.sqlite.connection_mode = modes.READONLY if read_only else modes.READWRITE_OPENCREATE
    return connection


def _holds_no_password(record: logging.LogRecord) -> bool:
    """Keep a record of the log, unless it holds the password: ML Metadata logs its connection at level DEBUG."""
    password = os.environ.get(PASSWORD)
    return not password or password not in record.getMessage()
