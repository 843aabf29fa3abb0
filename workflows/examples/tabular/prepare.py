"""Generate one CSV file per region: parcels, and whether each arrived late.

    python prepare.py

writes data/lyon.csv and so on, always with the same rows, as an example for your own files. The
study itself doesn't need this program.
"""

from __future__ import annotations

import csv
import math
import random
from datetime import date, time, timedelta
from pathlib import Path

ROWS = 2000
FIRST_DAY = date(2026, 1, 1)
CARRIERS = ("bike", "van", "partner")
# Increase of the log-odds of being late by each reason, by region.
REASONS = {
    "lyon": {"far": 2.5, "heavy on a bike": 3.0, "partner": 0.5, "rush hour": 1.0},
    "porto": {"far": 1.0, "heavy on a bike": 1.5, "partner": 2.0, "rush hour": 2.0},
    "turin": {"far": 1.5, "heavy on a bike": 2.0, "partner": -1.0, "rush hour": 3.0},
}


def main() -> None:
    """Write the files."""
    folder = Path(__file__).with_name("data")
    folder.mkdir(exist_ok=True)
    for region, reasons in REASONS.items():
        with (folder / f"{region}.csv").open("w", encoding="utf-8", newline="") as file:
            rows = parcels(region, reasons)
            writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
    print(f"{len(REASONS)} files of {ROWS} parcels in {folder}")


def parcels(region: str, reasons: dict[str, float]) -> list[dict[str, object]]:
    """Return a region's parcels, ordered by day.

    `reasons` has the effect of each reason for delay on the log-odds of being late.
    """
    dealt = random.Random(region)  # noqa: S311 - the same rows each time
    rows: list[dict[str, object]] = []
    for number in range(ROWS):
        day = FIRST_DAY + timedelta(days=number * 365 // ROWS)
        hour = dealt.randrange(7, 22)
        km, kg = dealt.gammavariate(2, 6), dealt.lognormvariate(0.5, 0.8)
        carrier = dealt.choice(CARRIERS)
        found = {
            "far": km > 18,
            "heavy on a bike": kg > 2.5 and carrier == "bike",
            "partner": carrier == "partner",
            "rush hour": hour in {8, 9, 17, 18, 19},
        }
        odds = -2.0 + sum(reasons[name] for name, holds in found.items() if holds)
        late = dealt.random() < 1 / (1 + math.exp(-odds))
        rows.append(
            {
                "parcel": f"{region[:2].upper()}-{number:05}",
                "day": day.isoformat(),
                "collected": time(hour, dealt.randrange(60)).isoformat("minutes"),
                "km": f"{km:.1f}",
                "kg": f"{kg:.2f}" if dealt.random() > 0.05 else "",  # not every parcel is weighed
                "carrier": carrier,
                "signed": str(dealt.random() < 0.3).lower(),
                "late": "yes" if late else "no",
            }
        )
    return rows


if __name__ == "__main__":
    main()
