"""The configuration in section "CSV as it is found" of docs/data.md reads a file of the form that it describes."""

import re
from pathlib import Path

import pyarrow as pa
import pytest

pytestmark = pytest.mark.tfx

PAGE = Path(__file__).parents[3] / "docs" / "data.md"
ROWS = """patient;diagnosis;weight;readmitted
3.0;grippe|fièvre;70,5;<30
4;?;NA;>30
3;fièvre;81;NO
5;grippe;60;?
"""


def test_configuration_of_the_page_reads_such_a_file(ingest, tmp_path):
    from pipelines.config import load_config
    from pipelines.config.sections import data_location
    from pipelines.pipeline import component_inputs

    section = PAGE.read_text(encoding="utf-8").split("## CSV as it is found")[1]
    (tmp_path / "my.yaml").write_text(re.search(r"```yaml\n(.*?)```", section, re.DOTALL)[1])
    (tmp_path / "visits.csv.zst").write_bytes(pa.compress(ROWS.encode("latin-1"), "zstd", asbytes=True))
    config = load_config(tmp_path / "my.yaml", ["split={by: column, column: patient, train: [3], eval: [4, 5]}"])
    base, pattern = data_location(config.data)
    output = ingest(base, pattern=pattern, **component_inputs.example_settings(config).to_mapping())
    assert sorted(output.rows("train"), key=lambda row: row["weight"]) == [
        {"patient": [b"3"], "diagnosis": ["grippe|fièvre".encode()], "weight": [70.5], "readmitted": [1.0]},
        {"patient": [b"3"], "diagnosis": ["fièvre".encode()], "weight": [81.0], "readmitted": [0.0]},
    ]
    assert output.rows("eval") == [{"patient": [b"4"], "readmitted": [0.0]}]
    assert output.facts["set_aside"]["rows"] == 1
