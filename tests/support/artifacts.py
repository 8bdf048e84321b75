"""Makes TFX artifacts as components leave them."""

import json
from pathlib import Path

from tfx.types import standard_artifacts

from components.artifacts import TableConfigs, Vocabularies
from embedding_core.vocabulary import save_vocabulary
from tests.support.tf_examples import write_rows


def artifact(cls, folder, *, made=True):
    """Return an artifact at a folder, which is created unless `made` is false."""
    result = cls()
    result.uri = str(folder)
    if made:
        Path(folder).mkdir(parents=True, exist_ok=True)
    return result


def fact(of, key):
    """Return a fact that a component recorded on an artifact; None if there is none of this name."""
    return json.loads(of.get_string_custom_property(key)) if of.has_custom_property(key) else None


def examples_at(folder, payload="FORMAT_TF_EXAMPLE", file_format="tfrecords_gzip"):
    """Return the artifact of examples with the splits "train" and "eval"; the files are written by `write_split`."""
    examples = artifact(standard_artifacts.Examples, folder)
    examples.split_names = json.dumps(["train", "eval"])
    examples.set_string_custom_property("payload_format", payload)
    examples.set_string_custom_property("file_format", file_format)
    return examples


def write_split(folder, rows, split="train", files=1, compression="GZIP"):
    """Write the rows of a split, or serialized ones, to files in turn."""
    target = Path(folder) / f"Split-{split}"
    target.mkdir(parents=True, exist_ok=True)
    ending = ".gz" if compression else ""
    for file in range(files):
        write_rows(target / f"data-{file:05d}-of-{files:05d}{ending}", rows[file::files], compression)


def inputs_of(folder, config, vocabularies, **splits):
    """Write tables, vocabularies, and the rows of splits; return the artifacts by input key of the components."""
    made = {
        "vocabularies": artifact(Vocabularies, folder / "vocabularies"),
        "table_configs": artifact(TableConfigs, folder / "table_configs"),
    }
    for vocabulary in vocabularies:
        save_vocabulary(vocabulary, folder / "vocabularies")
    (folder / "table_configs" / "embedding_config.json").write_text(config.to_json())
    for split, rows in splits.items():
        write_split(folder / "examples", rows, split)
    return {**made, "examples": examples_at(folder / "examples")} if splits else made
