"""Tries the health gate on trained tables: healthy daily runs must pass, sicknesses planted into their tables must not.

The campaign `health` runs it with Online Retail (DATA), and writes the table of docs/health.md. The default bounds were
chosen on other runs: April 2011 of Online Retail, seed 1 of the made-up rows, and the first 13 later runs of the taxi
trips.
"""

import os
import sys
from pathlib import Path

import pytest

from benchmarks.measuring import write_between
from examples.online_retail.prepare_data import read_purchases
from tests.pipelines.health.chains import made_up_chain, retail_chain, taxi_chain, trained
from tests.pipelines.health.judging import OLDER, healthy, sick, table_of

pytestmark = [pytest.mark.tfx, pytest.mark.slow, pytest.mark.timeout(7200)]

PAGE = Path(__file__).parents[3] / "docs" / "health.md"
DATA = os.environ.get("DATA", "")
MAIN = {"retail": "CustomerID", "taxi": "dropoff_census_tract", "made-up": "item"}


def chains(folder):
    """Yield the chains, and which of their later runs are judged."""
    yield made_up_chain(folder, seed=2), slice(None)
    yield taxi_chain(folder), slice(13, None)
    if DATA:
        yield retail_chain(folder, read_purchases(Path(DATA)), "2011-09", "2011-10"), slice(None)


def is_failure(result):
    """Whether a healthy run was refused, or a sickness of the main table of a chain was not found."""
    is_main = any(result.chain.startswith(chain) and result.table == table for chain, table in MAIN.items())
    return not result.is_right and (not result.sickness or is_main)


def test_healthy_runs_pass_and_planted_sicknesses_are_found(tmp_path):
    results = []
    for chain, judged_runs in chains(tmp_path):
        line = list(trained(chain, tmp_path))[judged_runs]
        results += [*healthy(chain, line), *sick(chain, line, (OLDER, len(line) - 1))]
    table = table_of(results)
    sys.stdout.write(table)
    if DATA:
        write_between(PAGE, "health", table)
    assert list(filter(is_failure, results)) == []
