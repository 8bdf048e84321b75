"""Keeps ML Metadata on a MariaDB server: locks, errors, and a password that is written nowhere."""

import logging
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import ml_metadata
import pymysql
import pytest

from embedding_core.errors import ConfigError, DataError, StorageError
from pipelines.config.metadata_server import MetadataServer, has_store
from tests.pipelines.mariadb import needs_mariadb, running_mariadb

pytestmark = [pytest.mark.tfx, needs_mariadb]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with running_mariadb(tmp_path_factory.mktemp("mariadb") / "server") as server:
        yield server


@pytest.fixture(autouse=True)
def password(server, monkeypatch):
    monkeypatch.setenv("METADATA_PASSWORD", server.password)


def config_of(server, folder, name="one"):
    return SimpleNamespace(name=name, work_dir=f"{folder}/work", metadata_path=server.address, permissions="owner")


def rows_of(server):
    """Return every row of every table of the database."""
    given = {"host": "127.0.0.1", "port": server.port, "user": "tfx", "password": server.password}
    with pymysql.connect(**given, database="lineage") as connection, connection.cursor() as cursor:
        cursor.execute("SHOW TABLES")
        for (table,) in cursor.fetchall():
            cursor.execute(f"SELECT * FROM {table}")
            yield from cursor.fetchall()


def test_errors_of_the_server_say_what_to_do(server, monkeypatch):
    from pipelines.lineage.graph import open_store

    empty = MetadataServer.of(server.address.replace("lineage", "absent"))
    with pytest.raises(StorageError, match="cannot be reached"):
        empty.schema_version()
    with pytest.raises(StorageError, match=r":1/lineage' cannot be reached .*: start the server, or correct"):
        has_store(server.address.replace(f":{server.port}/", ":1/"))
    monkeypatch.setenv("METADATA_PASSWORD", "wrong")
    with pytest.raises(StorageError, match="Access denied for user 'tfx'") as error:
        open_store(server.address)
    assert "wrong" not in str(error.value)
    monkeypatch.delenv("METADATA_PASSWORD")
    with pytest.raises(ConfigError, match="environment variable METADATA_PASSWORD is missing: set it to the password"):
        open_store(server.address)


def test_a_run_on_the_server_writes_the_password_nowhere(server, tmp_path, caplog):
    from tfx import v1 as tfx

    from components import compat
    from pipelines.lineage.graph import artifacts_of, open_store
    from pipelines.local.metadata_repair import repair_metadata
    from pipelines.local.runner import ReportingDagRunner
    from pipelines.local.work_dir import ready_metadata, run_lock
    from pipelines.pipeline.run_target import metadata_connection
    from tests.pipelines.small_nodes import First, Joined

    config = config_of(server, tmp_path)
    with pytest.raises(DataError, match="there is no store of ML Metadata; run the pipeline first"):
        open_store(server.address)
    assert ready_metadata(config) is None
    logging.getLogger("absl").setLevel(logging.DEBUG)
    with caplog.at_level(logging.DEBUG), run_lock(config):
        connection = metadata_connection(config.metadata_path)
        with compat.metadata.Metadata(connection) as handle:
            repair_metadata(handle.store, config.name, f"{config.work_dir}/artifacts")
        first = First(text="text")
        nodes = [first, Joined(read=first.outputs["made"], text="")]
        pipeline = tfx.dsl.Pipeline(
            config.name, f"{config.work_dir}/artifacts", components=nodes, metadata_connection_config=connection
        )
        ReportingDagRunner(lambda _: None).run(pipeline)
    assert ready_metadata(config) is None
    assert len(artifacts_of(open_store(server.address), "components.Vocabularies", pipeline="one")) == 2

    stored = b"".join(repr(row).encode() for row in rows_of(server))
    assert b"Vocabularies" in stored
    files = [path.read_bytes() for path in Path(tmp_path).rglob("*") if path.is_file()]
    assert files
    for text in (stored, caplog.text.encode(), *files):
        assert server.password.encode() not in text


def test_second_run_of_one_name_is_refused_in_any_folder(server, tmp_path):
    from pipelines.local.work_dir import run_lock

    with (
        run_lock(config_of(server, tmp_path / "here")),
        run_lock(config_of(server, tmp_path / "there", name="two")),
        pytest.raises(ConfigError, match="`name` is 'one': another run uses it in 'mysql://"),
        run_lock(config_of(server, tmp_path / "elsewhere")),
    ):
        raise AssertionError
    with run_lock(config_of(server, tmp_path / "elsewhere")):
        pass


def test_a_row_that_another_run_changed_can_still_be_locked(server):
    """MariaDB 11.6.2 and later refuse it by default, and ML Metadata does it when pipelines share a store."""
    given = MetadataServer.of(server.address)
    first, second = (
        pymysql.connect(user=given.user, password=given.password, database=given.database, unix_socket=given.socket)
        for _ in range(2)
    )
    with first, second, first.cursor() as mine, second.cursor() as other:
        mine.execute("CREATE TABLE counted (number INT) ENGINE = InnoDB")
        mine.execute("INSERT INTO counted VALUES (1)")
        first.commit()
        mine.execute("SELECT number FROM counted")
        other.execute("UPDATE counted SET number = 2")
        second.commit()
        mine.execute("SELECT number FROM counted LOCK IN SHARE MODE")
        assert mine.fetchall() == ((2,),)
        first.commit()
        mine.execute("DROP TABLE counted")


def certified(folder, name, authority):
    """Write a key and a certificate for a host name; `authority` is the name of the file pair that signs it."""
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={name}"]
    command += ["-keyout", f"{name}.key", "-out", f"{name}.pem"]
    if authority is None:
        command += ["-addext", "keyUsage=keyCertSign"]  # Python 3.13 refuses an authority without it
    else:
        command += ["-CA", f"{authority}.pem", "-CAkey", f"{authority}.key", "-addext", f"subjectAltName=DNS:{name}"]
        command += ["-addext", "basicConstraints=CA:FALSE"]  # `-x509` would make it an authority too
    subprocess.run(command, cwd=folder, check=True, capture_output=True)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is missing")
def test_a_server_is_used_only_with_its_own_certificate(tmp_path):
    from pipelines.lineage.graph import open_store
    from pipelines.pipeline.run_target import metadata_connection

    for name, authority in (("ours", None), ("theirs", None), ("localhost", "ours")):
        certified(tmp_path, name, authority)
    pair = [f"--ssl-cert={tmp_path}/localhost.pem", f"--ssl-key={tmp_path}/localhost.key"]
    options = [*pair, "--require-secure-transport"]
    with running_mariadb(tmp_path / "server", options=options) as server:
        plain = server.address.replace("127.0.0.1", "localhost")
        with pytest.raises(StorageError, match="cannot be reached"):
            has_store(plain)
        address = f"{plain}?ssl-ca={tmp_path}/ours.pem"
        assert not has_store(address)
        ml_metadata.MetadataStore(metadata_connection(address))
        assert open_store(address).get_artifacts() == []
        for wrong in (address.replace("ours", "theirs"), address.replace("localhost", "127.0.0.1")):
            with pytest.raises(StorageError, match="certificate verify failed"):
                has_store(wrong)
