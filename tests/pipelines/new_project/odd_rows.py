"""Writes a CSV file with everything that a CSV file can have: a dialect of its own, odd names, gaps, broken rows."""

import random

NAMES = [
    "Lfd. Nr",
    "kunde_id",
    "Straße",
    "Preis (€)",
    "menge",
    "tags",
    "erstellt",
    "leer",
    "konstant",
    "e-mail",
    "gekauft?",
]
ROWS = 1_500


def write_odd_csv(path, rows=ROWS):
    """Write semicolons, cp1252, decimal commas, marks for missing values, two broken rows; a label of ja and nein."""
    random_ = random.Random(5)
    lines = [";".join(NAMES)]
    for row in range(rows):
        price = (
            "k.A." if row % 50 == 0 else "NA" if row % 40 == 1 else f"{random_.uniform(1, 90):.2f}".replace(".", ",")
        )
        tags = "|".join(random_.sample(["neu", "rot", "groß", "billig"], random_.randint(0, 3)))
        bought = "ja" if random_.random() < 0.2 + 0.5 * ("rot" in tags) else "nein"
        street = random_.choice(["Hauptstraße", "Gasse 3; Hof", "Weg"])
        lines.append(
            f'{row + 1};{random_.randint(1, 60)};"{street}";{price};{random_.randint(1, 400)};{tags};'
            f"2026-01-{row % 28 + 1:02d} 10:00;;x;person{row % 70}@example.org;{bought}"
        )
    lines[7] = lines[7] + ";one field more"
    lines[11] = "cut off"
    path.write_bytes(("\r\n".join(lines) + "\r\n").encode("cp1252"))
