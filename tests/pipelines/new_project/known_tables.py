"""Makes rows like those of well-known public tables, with the role that each column has in a configuration by hand.

`python tests/pipelines/new_project/known_tables.py FILE...` prints the guesses for any files, such as the real tables.
"""

import sys

import numpy as np

from pipelines.new_project.column_guess import guess_columns, guess_label, read_by_towers
from pipelines.new_project.data_look import look_at

# A column is `name=role:values`. Roles: T tokens, D dense, L label, t time, X left out. Values: code<n>, n codes of
# which some are frequent, without order; even<n>, the same, equally frequent; tail<n>, a quantity with a long tail;
# bell<n>, one around n; float; hex<n>, text; once, another number in every row; unix;
# date; sorted<n>, codes of which each has a run of rows; 0/1, a flag; words; one of the values that are listed by "|".
TABLES = {
    "movielens": "userId=T:sorted80 movieId=T:code900 rating=L:stars timestamp=t:unix",
    "events": "user=T:even90 item=T:code300 time=t:unix",
    "gowalla": "=T:sorted70 =t:date =X:float =X:float =T:code600",
    "criteo": "=L:0/1 =D:tail90 =D:tail900 =D:tail300 =T:hex20 =T:hex900 =T:hex80",
    "avazu": "id=X:once click=L:0/1 hour=T:hex9 C1=T:code7 banner_pos=T:code5 site_id=T:hex90 device_type=T:code4 "
    "C14=T:code400 C17=T:code150 C20=T:code90",
    "adult": "age=D:bell38 workclass=T:hex8 fnlwgt=D:big education=T:hex16 capital-gain=D:tail80 "
    "hours-per-week=D:bell40 native-country=T:hex40 income=L:<=50K|>50K",
    "bank": "age=D:bell41 job=T:hex12 balance=D:signed duration=D:tail900 pdays=D:tail99 y=L:yes|no",
    "employee_access": "ACTION=L:0/1 RESOURCE=T:code600 MGR_ID=T:code500 ROLE_TITLE=T:code90 ROLE_FAMILY=T:code60",
    "online_retail": "StockCode=T:hex600 Quantity=X:tail99 InvoiceDate=t:date UnitPrice=X:float CustomerID=T:even300 "
    "Country=X:hex12",
    "groceries": "Member_number=T:even300 Date=X:dash itemDescription=T:hex90",
    "groceries_with_more": "Category=X:hex9 memberno=T:even300 Quantity=X:tail9 Date=X:dash ProductName=T:hex90",
    "unnamed_events": "Who=T:hex300 When=X:dash What=T:hex90 Quantity=X:tail9",
    "user_country_first": "user_country=X:hex9 userID=T:even300 item_category=X:hex9 item=T:code90",
    "book_crossing": "User-ID=T:sorted300 ISBN=T:hex900 Book-Rating=L:ten",
    "kdd_2012": "click=L:0/1 adID=T:code700 advertiserID=T:code300 depth=T:code3 position=T:code3 queryID=T:code900 "
    "userID=T:code800",
    "flights": "Month=T:code12 DayOfWeek=T:code7 FlightNum=T:code700 UniqueCarrier=T:hex20 Distance=D:tail900 "
    "DepTime=D:bell900 ArrDelay=L:signed",
    "talking_data": "ip=T:code900 app=T:code90 device=T:code40 os=T:code60 channel=T:code99 is_attributed=L:0/1",
    "rossmann": "Store=T:code800 DayOfWeek=T:code7 Customers=D:bell600 Promo=T:code2 Sales=L:bell5000",
    "issue_39": "user=T:even90 item=T:even300 country=T:even60 city=T:code200 price=D:float bought=L:0/1",
    "unnamed": "a=T:code200 b=D:tail200 c=D:bell300 d=T:even70 label=L:0/1",
    "reviews": "text=T:words label=L:0/1",
    "people": "name=X:words city=T:hex20 alive=L:yes|no",
    "churn": "CreditScore=D:bell650 Geography=T:hex3 HasCard=T:code2 Balance=D:tail900 Exited=L:0/1",
    "card_churn": "Flag=L:kept|left MonthsOnBook=D:bell36 Gender=T:hex2 Card=T:hex4",
    "juice": "Purchase=L:CH|MM WeekOfPurchase=T:bell250 StoreID=T:code5 Store7=T:hex2",
    "rooms": "avg_price_per_room=L:bell5000 a=D:wave300 visit=X:slash near_christmas=T:code2 meal=T:hex4 b=D:float",
    "stones": "carat=D:float y=D:float x=D:float price=L:bell5000 cut=T:hex5",
    "wages": "year=T:code9 leagueID=T:hex2 salary=L:bell5000",
    "credit": "Status=L:good|bad Home=T:hex6 Price=D:tail900",
    "credit_card": "X6=T:code10 X7=T:code10 X8=T:code11 X9=T:code11 y=L:0/1",
    "hashed_ids": "USER_ID=T:minus300 AD=T:minus900 not_canceled=D:tail99 clicked_here=L:0/1",
}
ROWS = 6_000


def roles_by_hand(table):
    """Return the role of each column, in order."""
    return "".join(column.split("=", 1)[1][0] for column in TABLES[table].split())


def write_table(path, table, rows=ROWS):
    """Write a table's rows; tokens and quantities both move the label."""
    random = np.random.default_rng(abs(hash_of(table)))
    columns = [column.split("=", 1) for column in TABLES[table].split()]
    score, texts = random.normal(0, 0.5, rows), {}
    for at, (_, values) in enumerate(columns):
        if values[0] != "L":
            texts[at], effect = made(values[2:], rows, random)
            score += effect
    for at, (_, values) in enumerate(columns):
        if values[0] == "L":
            texts[at] = labels(values[2:], score, random)
    header = [",".join(name for name, _ in columns)] if columns[0][0] else []
    lines = [",".join(row) for row in zip(*(texts[at] for at in range(len(columns))), strict=True)]
    path.write_text("\n".join([*header, *lines]) + "\n")


def hash_of(text):
    return int.from_bytes(text.encode()[:7], "big")


def made(kind, rows, random):
    """Return a column's texts, and what each adds to the label's score."""
    name = kind.rstrip("0123456789")
    number = int(kind[len(name) :] or 0)
    if name in ("code", "even", "hex", "sorted", "minus"):
        shares = np.ones(number) if name == "even" else 1 / np.arange(1, number + 1)
        places = random.choice(number, rows, p=random.permutation(shares) / shares.sum())
        places = np.sort(places) if name == "sorted" else places
        codes = np.sort(random.choice(40 * number, number, replace=False)) if number > 12 else np.arange(number)
        codes = codes - 20 * number if name == "minus" else codes
        return [f"{codes[at]:x}x" if name == "hex" else str(codes[at]) for at in places], random.normal(0, 1, number)[
            places
        ]
    if name == "tail":
        values = np.floor(random.lognormal(np.log(number) / 2, 1.2, rows))
        return [f"{value:.0f}" for value in values], np.log1p(values) / 3
    if name == "wave":
        values = random.integers(0, number, rows)
        return [str(value) for value in values], np.sin(50 * values / number)
    if name in ("bell", "signed", "big"):
        center, wide = {"bell": (number, number / 4), "signed": (300, 900), "big": (190_000, 60_000)}[name]
        values = np.round(random.normal(center, wide, rows))
        values = values if name == "signed" else np.abs(values)
        return [f"{value:.0f}" for value in values], (values - center) / wide / 2
    nothing = np.zeros(rows)
    if name == "float":
        return [f"{value:.2f}" for value in random.lognormal(2, 1, rows)], nothing
    if name == "unix":
        return [str(1_600_000_000 + 977 * row) for row in range(rows)], nothing
    if name == "date":
        return [f"2026-{row % 12 + 1:02d}-{row % 28 + 1:02d} 10:00:00" for row in range(rows)], nothing
    if name in ("slash", "dash"):
        sign = "/" if name == "slash" else "-"
        return [f"{row % 28 + 1}{sign}{row % 12 + 1}{sign}2026" for row in range(rows)], nothing
    if name == "words":
        choices = random.choice(200, (rows, 6))
        return [" ".join(f"w{word}" for word in row) for row in choices], nothing
    return [str(2**61 + 7919 * row) for row in range(rows)], nothing


def labels(kind, score, random):
    """Return the label's texts."""
    score = (score - score.mean()) / score.std()
    if kind == "stars":
        return [f"{value / 2:.1f}" for value in np.clip(np.round(2 * score + 7), 1, 10)]
    if kind in ("ten", "signed", "bell5000"):
        center, wide = {"ten": (5, 2), "signed": (9, 40), "bell5000": (5000, 900)}[kind]
        return [f"{value:.0f}" for value in np.maximum(np.round(center + wide * score), 0 if kind == "ten" else -999)]
    names = kind.replace("0/1", "0|1").split("|")
    return [names[int(value)] for value in random.random(len(score)) < 1 / (1 + np.exp(1.5 - 2 * score))]


def guessed(path, label=None):
    """Return the guesses for a file, and the guessed label: what `init` writes, as values."""
    look = look_at(str(path))
    label = guess_label(look.columns, guess_columns(look.columns, whole=look.whole), label)
    target = None if label.column is None else look.columns[label.column]
    return read_by_towers(guess_columns(look.columns, target, whole=look.whole), label), label


def guessed_roles(path):
    """Return the guessed role of each column, in order."""
    letters = {"categorical": "T", "dense": "D", "time": "t", "left_out": "X"}
    guesses, label = guessed(path)
    return "".join("L" if guess.column == label.column else letters[guess.role] for guess in guesses)


if __name__ == "__main__":
    for file in sys.argv[1:]:
        guesses, label = guessed(file)
        lines = [f"{guess.column}: {guess.role} {dict(guess.options)} ({guess.why})" for guess in guesses]
        sys.stdout.write("\n  ".join([file, f"label: {dict(label.label)} ({label.why})", *lines]) + "\n")
