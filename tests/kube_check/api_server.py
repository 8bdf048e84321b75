"""Starts etcd and Kubernetes' API server on loopback in a temporary folder, and asks it to judge manifests; for tests.

The campaign `kube-check` builds both programs. There is no scheduler and no kubelet: nothing is ever started.
"""

import contextlib
import json
import secrets
import ssl
import subprocess
import urllib.error
import urllib.request
from pathlib import Path

from tests.servers.real_servers import free_ports, running

FOLDER = Path(__file__).parents[2] / ".kube-check"
PLURALS = {
    "Pod": "api/v1/namespaces/default/pods",
    "Service": "api/v1/namespaces/default/services",
    "ConfigMap": "api/v1/namespaces/default/configmaps",
    "Deployment": "apis/apps/v1/namespaces/default/deployments",
    "StatefulSet": "apis/apps/v1/namespaces/default/statefulsets",
    "Job": "apis/batch/v1/namespaces/default/jobs",
}


class ApiServer:
    """A client of the running server."""

    def __init__(self, address, certificate, token):
        self._address, self._token = address, token
        self._tls = ssl.create_default_context(cafile=str(certificate))

    def dry_run(self, manifest):
        """Return the server's refusal of a manifest, or an empty text if it would take it. Nothing is stored."""
        try:
            taken = self._ask(f"{PLURALS[manifest['kind']]}?dryRun=All", json.dumps(manifest).encode())
        except urllib.error.HTTPError as error:
            return json.load(error)["message"]
        lost = _lost(manifest, taken)
        return f"ignored: {', '.join(lost)}" if lost else ""

    def stored(self, kind):
        """Return the names of the objects of a kind in the default namespace."""
        return {item["metadata"]["name"] for item in self._ask(PLURALS[kind])["items"]}

    def _ask(self, path, body=None):
        request = asking(f"{self._address}/{path}", self._token, body)
        with urllib.request.urlopen(request, timeout=60, context=self._tls) as answer:
            return json.load(answer)


def asking(address, token, body=None):
    """Return a request of the user who has the token."""
    return urllib.request.Request(
        address, body, {"Content-Type": "application/json", "Authorization": f"Bearer {token}"}
    )


def _lost(given, taken, path=""):
    """Return the paths that the server left out of a manifest: it drops keys that it does not know."""
    if isinstance(given, dict):
        if not isinstance(taken, dict):
            return [path] if given else []
        return [lost for key, value in given.items() for lost in _lost(value, taken.get(key), f"{path}.{key}")]
    if isinstance(given, list):
        if not isinstance(taken, list) or len(taken) < len(given):  # the server appends tolerations of its own
            return [path] if given else []
        return [lost for value, other in zip(given, taken, strict=False) for lost in _lost(value, other, f"{path}[]")]
    return [path] if taken is None and given is not None else []


@contextlib.contextmanager
def api_server(folder):
    """Run etcd and the API server until the block ends; yield a client of its administrator."""
    clients, peers, port = free_ports(3)
    token, tokens = secrets.token_hex(16), folder / "tokens.csv"
    tokens.touch(mode=0o600)
    tokens.write_text(f"{token},administrator,administrator,system:masters\n")
    key = folder / "service-accounts.pem"
    subprocess.run(["openssl", "genrsa", "-out", key, "2048"], check=True, capture_output=True, timeout=60)
    etcd = [
        FOLDER / "bin/etcd",
        f"--data-dir={folder / 'etcd'}",
        f"--listen-client-urls=http://127.0.0.1:{clients}",
        f"--advertise-client-urls=http://127.0.0.1:{clients}",
        f"--listen-peer-urls=http://127.0.0.1:{peers}",
        "--unsafe-no-fsync",
    ]
    server = [
        FOLDER / "bin/kube-apiserver",
        f"--etcd-servers=http://127.0.0.1:{clients}",
        "--bind-address=127.0.0.1",
        f"--secure-port={port}",
        f"--cert-dir={folder / 'certificates'}",
        "--service-cluster-ip-range=10.0.0.0/24",
        "--service-account-issuer=https://127.0.0.1",
        f"--service-account-key-file={key}",
        f"--service-account-signing-key-file={key}",
        f"--token-auth-file={tokens}",
        "--authorization-mode=RBAC",
        # Nobody makes service accounts here: that is a controller's work.
        "--disable-admission-plugins=ServiceAccount",
    ]
    certificate = folder / "certificates/apiserver.crt"
    address = f"https://127.0.0.1:{port}"
    ready = asking(f"{address}/readyz", token)
    with (
        running(etcd, environment={}, log=folder / "etcd.log", ready=f"http://127.0.0.1:{clients}/health"),
        running(server, environment={}, log=folder / "server.log", ready=ready, trusted=certificate),
    ):
        yield ApiServer(address, certificate, token)
