"""Versions with deltas that earlier commits wrote are read as they were; formats without a number are held by bytes.

`delta_fixed_parts/deltas.tar.xz` is a published version with three deltas, float16, int8 and float32 rows, with the
answers after each delta (`python -m tests.deltas.write_deltas <new folder>`). If a test of bytes fails, the format
changed: add files in the new format beside it, and keep reading the old ones.
"""

import os
import tarfile
from pathlib import Path

os.environ["TF_USE_LEGACY_KERAS"] = "1"

import numpy as np
import pytest

from components.deltas.client import apply_chain, newest_chain
from components.deltas.updates import UPDATES, folder_of, read_chain
from components.pusher.served import MANIFEST, find_published, verify_version, write_manifest
from embedding_core.deltas.content import Delta
from embedding_core.deltas.protocol import APPLY_DELTA
from embedding_core.deltas.served_state import LAYOUT, Layout, LoadedVersion, read_state

FILES = Path(__file__).with_name("delta_fixed_parts") / "deltas.tar.xz"


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("written")
    with tarfile.open(FILES) as archive:
        archive.extractall(folder, filter="data")
    return folder


def test_earlier_deltas_lead_to_the_states_and_answers_of_then(written):
    base = written / "served"
    version, first, chain = newest_chain(str(base))
    assert len(chain) == 3
    assert find_published(str(base), "delta 3")[0].update == 3
    expected = np.load(written / "expected.npz")
    rows = [expected[name].tobytes() for name in expected.files if name.startswith("examples/")]
    secret = (written / "secret").read_bytes()
    with LoadedVersion(base / str(version)) as served:
        for number in range(len(chain) + 1):
            done = apply_chain(lambda **inputs: served.call(APPLY_DELTA, **inputs), first, chain[:number], secret)
            assert done.digest == served.state().digest() == [first, *(link.digest for link in chain)][number]
            names = [name for name in expected.files if name.startswith(f"answers/{number}/")]
            assert names
            for name in names:
                _, _, signature, output = name.split("/")
                got = served.answer(signature, rows)[output]
                if got.dtype == object:  # the digest
                    assert got.tolist() == expected[name].tolist()
                else:
                    # Another CPU adds up in another order: a logit near 0 has the rounding of its largest terms.
                    largest = np.abs(expected[name]).max(initial=0.1)
                    np.testing.assert_allclose(got, expected[name], rtol=1e-6, atol=1e-6 * largest, err_msg=name)


def test_content_of_a_delta_has_todays_bytes(written):
    version, _, chain = newest_chain(str(written / "served"))
    state = read_state(written / "served" / str(version))
    for link in chain:
        delta = Delta.from_bytes(link.content, state)
        assert delta.to_bytes(state.layout) == link.content
        state = delta.applied(state)
        assert state.digest() == link.digest


def test_earlier_manifests_and_layout_have_todays_bytes(written, tmp_path):
    base = written / "served"
    version, first, chain = newest_chain(str(base))
    UPDATES.write(tmp_path, version, read_chain(base, version, first))
    for link in chain:
        then, now = (Path(folder_of(folder, version), str(link.number)) for folder in (base, tmp_path))
        assert {path.name: path.read_bytes() for path in now.iterdir()} == {
            path.name: path.read_bytes() for path in then.iterdir()
        }
    manifest = verify_version(base / str(version))
    files = {name: {"size": file["bytes"], "sha256": file["sha256"]} for name, file in manifest["files"].items()}
    write_manifest(str(tmp_path), files, manifest["facts"])
    assert (tmp_path / MANIFEST).read_bytes() == (base / str(version) / MANIFEST).read_bytes()
    Layout.load(base / str(version)).save(tmp_path)
    assert (tmp_path / LAYOUT).read_bytes() == (base / str(version) / LAYOUT).read_bytes()
