"""Makes the connection to ML Metadata: a sqlite file, or a MySQL server."""

from __future__ import annotations

import logging

from ml_metadata.proto import metadata_store_pb2 as mlmd

from pipelines.config.metadata_server import MetadataServer, is_server


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
        connection.mysql.database, connection.mysql.user = server.database, server.user
        connection.mysql.password = server.password
        connection.mysql.socket = server.socket
        logging.getLogger("absl").addFilter(_holds_no_password)
        return connection
    connection.sqlite.filename_uri = metadata
    modes = mlmd.SqliteMetadataSourceConfig
    connection.sqlite.connection_mode = modes.READONLY if read_only else modes.READWRITE_OPENCREATE
    return connection


def _holds_no_password(record: logging.LogRecord) -> bool:
    """Keep a record of the log, unless it holds the password: ML Metadata logs its connection at level DEBUG."""
    # The connection is logged as the text of its proto, which may write the password in another form.
    return not str(record.msg).startswith("ConnectionConfig")
