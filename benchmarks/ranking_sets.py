"""Reads public tables, on which the defaults of the ranking model are chosen (`DEVELOPMENT`) or judged (`HELD_BACK`).

The tables of `HELD_BACK` were named before the first try on those of `DEVELOPMENT`, and are opened once, at the end.
Each is read by its commit from a clone of its repository, `CLONES/OWNER/NAME`, and is not part of this project. Columns
that are known only after the label are left out.

A table's last fifth by time, or a fifth at random if its authors split it so, is the eval split: at most 40,000 rows.
"""

from __future__ import annotations

import dataclasses
import io
import pathlib
import subprocess
import zipfile
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import pandas

Frame: TypeAlias = "pandas.DataFrame"
_EVAL = 0.2
_MOST_EVAL = 40_000


@dataclasses.dataclass(frozen=True)
class PublicTable:
    """A file of a public repository, and how a model reads it.

    Attributes:
      source: repository, commit and path of the file.
      label: computes the label, 0 or 1; NaN leaves a row out.
      tokens: names of the columns of tokens.
      dense: names of the columns of numbers.
      log1p: those of them of which the model reads log(1 + x).
      time: computes the moment of a row; None splits at random.
      add: adds columns to the file's; it gets a function that reads further files of the repository.
    """

    source: tuple[str, str, str]
    label: Callable[[Frame], pandas.Series]
    tokens: str
    dense: str = ""
    log1p: str = ""
    time: Callable[[Frame], pandas.Series] | None = None
    add: Callable[[Frame, Callable[[str], Frame]], Frame] = lambda rows, read: rows


def _git_file(clones: pathlib.Path, repository: str, commit: str, path: str) -> bytes:
    command = ["git", "-C", str(clones / repository), "show", f"{commit}:{path}"]
    return subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout


def _parsed(path: str, data: bytes) -> Frame:
    if path.endswith(".parquet"):
        return pandas.read_parquet(io.BytesIO(data))
    if path.endswith(".zip"):
        archive = zipfile.ZipFile(io.BytesIO(data))
        data = archive.read(archive.namelist()[0])
    separator = "," if path.endswith((".csv", ".zip")) else "\t"
    return pandas.read_csv(
        io.BytesIO(data), sep=separator, encoding="utf-8-sig", low_memory=False, skipinitialspace=True
    )


def read_table(name: str, clones: pathlib.Path, rows: int, seed: int = 0) -> tuple[Frame, Frame]:
    """Return the train rows, at most `rows` drawn at random, and the eval rows, which are the same for each number.

    Columns of tokens are texts, None if missing; columns of numbers are float64. The last column is "label".
    """
    table = {**DEVELOPMENT, **HELD_BACK}[name]
    repository, commit, path = table.source

    def read(file: str) -> Frame:
        return _parsed(file, _git_file(clones, repository, commit, file))

    whole = table.add(read(path), read)
    label = table.label(whole).astype(float)
    chosen = {column: _texts(whole[column]) for column in table.tokens.split()}
    numbers = {column: pandas.to_numeric(whole[column], errors="coerce") for column in table.dense.split()}
    made = pandas.DataFrame({**chosen, **numbers, "label": label})
    generator = np.random.default_rng(42)
    order = generator.permutation(len(made))
    if table.time is not None:
        order = order[np.argsort(table.time(whole).to_numpy()[order], kind="stable")]
    order = order[~np.isnan(label.to_numpy()[order])]
    held_out = min(_MOST_EVAL, int(len(order) * _EVAL))
    train, judged = order[:-held_out], order[-held_out:]
    train = np.random.default_rng([seed, 1]).permutation(train)[:rows]
    return made.iloc[train].reset_index(drop=True), made.iloc[judged].reset_index(drop=True)


def _texts(column: pandas.Series) -> pandas.Series:
    texts = column.map(lambda value: f"{value:g}" if isinstance(value, float) else str(value))
    return texts.where(column.notna(), None)


def _stops(rows: Frame, read: Callable[[str], Frame]) -> Frame:
    moments = pandas.to_datetime(rows["date"])
    return rows.assign(hour=moments.dt.hour, month=moments.dt.month, moment=moments.astype("int64"))


def _movielens(rows: Frame, read: Callable[[str], Frame]) -> Frame:
    for key, path in (("user", "user"), ("item", "item")):
        rows = rows.merge(read(f"dataset/ml-100k/ml-100k.{path}"), on=f"{key}_id:token", how="left")
    return rows.rename(columns=lambda name: name.split(":")[0])


def _hotels(rows: Frame, read: Callable[[str], Frame]) -> Frame:
    texts = [rows[f"arrival_date_{part}"].astype(str) for part in ("year", "month", "day_of_month")]
    return rows.assign(moment=pandas.to_datetime(texts[0] + " " + texts[1] + " " + texts[2], format="%Y %B %d"))


_DRUGS = (
    "metformin repaglinide nateglinide chlorpropamide glimepiride acetohexamide glipizide glyburide tolbutamide "
    "pioglitazone rosiglitazone acarbose miglitol troglitazone tolazamide insulin glyburide-metformin "
    "glipizide-metformin change diabetesMed"
)

DEVELOPMENT: dict[str, PublicTable] = {
    "app usage (Frappe)": PublicTable(
        (
            "wsdm23-495/Strong-Improvements-or-Weak-Baselines-An-Empirical-Study-on-CTR-Prediction",
            "c3a3b8e0681e065a02fcd68d8c40970c49e0bb16",
            "data/Frappe/valid.csv",
        ),
        lambda rows: rows["label"],
        "user item daytime weekday isweekend homework cost weather country city",
    ),
    "census (Adult)": PublicTable(
        ("selva86/datasets", "c943fa8851270387c44d26efb0f9c0aac1559e11", "adult_train.csv"),
        lambda rows: rows["class"].str.startswith(">50K"),
        "workclass education marital_status occupation relationship race sex native_country",
        "age education_num capital_gain capital_loss hours_per_week",
        "capital_gain capital_loss",
    ),
    "employee access": PublicTable(
        ("pyduan/amazonaccess", "f8addfefcee80f0ca15e416954af3926f3007d16", "data/train.csv"),
        lambda rows: rows["ACTION"],
        "RESOURCE MGR_ID ROLE_ROLLUP_1 ROLE_ROLLUP_2 ROLE_DEPTNAME ROLE_TITLE ROLE_FAMILY_DESC ROLE_FAMILY ROLE_CODE",
    ),
    "films (MovieLens 100K)": PublicTable(
        ("RUCAIBox/RecBole", "7b02be5ec80a88310f2d04a27a82adfcbb5dc211", "dataset/ml-100k/ml-100k.inter"),
        lambda rows: rows["rating"] >= 4,
        "user_id item_id age gender occupation zip_code release_year class",
        time=lambda rows: rows["timestamp"],
        add=_movielens,
    ),
    "hotel bookings": PublicTable(
        (
            "TraceGrain1/si618_final_project",
            "9b56fab9eb6661dc264d4e1482460874f23b0193",
            "data/hotel_bookings.csv.zip",
        ),
        lambda rows: rows["is_canceled"],
        "hotel arrival_date_month meal country market_segment distribution_channel is_repeated_guest "
        "reserved_room_type deposit_type agent company customer_type",
        "lead_time stays_in_weekend_nights stays_in_week_nights adults children babies previous_cancellations "
        "previous_bookings_not_canceled days_in_waiting_list adr total_of_special_requests",
        "lead_time previous_cancellations previous_bookings_not_canceled days_in_waiting_list",
        time=lambda rows: rows["moment"],
        add=_hotels,
    ),
    "change of job": PublicTable(
        ("RRbenitez77/HR-AnalyticsJob-Change-DS", "68913428c0dd1ba64c2091482b21759d7ce8e6c1", "aug_train.csv"),
        lambda rows: rows["target"],
        "city gender relevent_experience enrolled_university education_level major_discipline experience company_size "
        "company_type last_new_job",
        "city_development_index training_hours",
    ),
    "card default": PublicTable(
        ("fju155447/uci", "84670e783ab9fd2459b7096d82965f28dafb66b2", "UCI_Credit_Card.csv"),
        lambda rows: rows["Y"],
        "X2 X3 X4 X6 X7 X8 X9 X10 X11",
        "X1 X5 X12 X13 X14 X15 X16 X17 X18 X19 X20 X21 X22 X23",
        "X18 X19 X20 X21 X22 X23",
    ),
    "mushrooms": PublicTable(
        (
            "stedy/Machine-Learning-with-R-datasets",
            "ff933238d9c30da179b7e3ad4b6ca938d67efc53",
            "mushrooms.csv",
        ),
        lambda rows: rows["type"] == "p",
        "cap_shape cap_surface cap_color bruises odor gill_attachment gill_spacing gill_size gill_color stalk_shape "
        "stalk_root stalk_surface_above_ring stalk_surface_below_ring stalk_color_above_ring stalk_color_below_ring "
        "veil_color ring_number ring_type spore_print_color population habitat",
    ),
}
HELD_BACK: dict[str, PublicTable] = {
    "bank marketing": PublicTable(
        ("pycaret/pycaret", "14fe5a8e56ab8f217b5a91ef8d5d88f2fd7eafce", "datasets/bank.csv"),
        lambda rows: rows["deposit"] == "yes",
        "job marital education default housing loan contact day month poutcome",
        "age balance campaign pdays previous",
        "campaign previous",
    ),
    "readmissions": PublicTable(
        ("okanina/Hospital_readmission", "d055ccd484159fbbd654a2c2451c33e3d1fdc8d3", "diabetic_data.zip"),
        lambda rows: rows["readmitted"] == "<30",
        "race gender age admission_type_id discharge_disposition_id admission_source_id payer_code medical_specialty "
        f"diag_1 diag_2 diag_3 max_glu_serum A1Cresult {_DRUGS}",
        "time_in_hospital num_lab_procedures num_procedures num_medications number_outpatient number_emergency "
        "number_inpatient number_diagnoses",
        "number_outpatient number_emergency number_inpatient",
    ),
    "tags of films (MovieLens)": PublicTable(
        (
            "wsdm23-495/Strong-Improvements-or-Weak-Baselines-An-Empirical-Study-on-CTR-Prediction",
            "c3a3b8e0681e065a02fcd68d8c40970c49e0bb16",
            "data/Movielens/test.csv",
        ),
        lambda rows: rows["label"],
        "user_id item_id tag_id",
    ),
    "late flights": PublicTable(
        (
            "vincentarelbundock/Rdatasets",
            "1dcc2bf5f955cc1224a3e1307256e1fe86b68dae",
            "parquet/openintro/nycflights.parquet",
        ),
        lambda rows: rows["dep_delay"] > 15,
        "month day carrier tailnum flight origin dest",
        "distance",
    ),
    "searches by the police": PublicTable(
        (
            "vincentarelbundock/Rdatasets",
            "1dcc2bf5f955cc1224a3e1307256e1fe86b68dae",
            "parquet/carData/MplsStops.parquet",
        ),
        lambda rows: rows["personSearch"].map({"YES": 1.0, "NO": 0.0}),
        "problem MDC preRace race gender policePrecinct neighborhood hour month",
        "lat long",
        time=lambda rows: rows["moment"],
        add=_stops,
    ),
    "visits of a shop": PublicTable(
        ("insaid2018/Term-2", "298f8317a0da5bb1ba7adbe703f76487c02cb4a1", "Data/online_shoppers_intention.csv"),
        lambda rows: rows["Revenue"],
        "Month OperatingSystems Browser Region TrafficType VisitorType Weekend SpecialDay",
        "Administrative Administrative_Duration Informational Informational_Duration ProductRelated "
        "ProductRelated_Duration BounceRates ExitRates PageValues",
        "Administrative_Duration Informational_Duration ProductRelated ProductRelated_Duration PageValues",
    ),
    "churn (Telco)": PublicTable(
        (
            "treselle-systems/customer_churn_analysis",
            "6cac1315cf324030e0715ce7391097a9bf97195f",
            "WA_Fn-UseC_-Telco-Customer-Churn.csv",
        ),
        lambda rows: rows["Churn"] == "Yes",
        "gender SeniorCitizen Partner Dependents PhoneService MultipleLines InternetService OnlineSecurity "
        "OnlineBackup DeviceProtection TechSupport StreamingTV StreamingMovies Contract PaperlessBilling PaymentMethod",
        "tenure MonthlyCharges TotalCharges",
    ),
}
