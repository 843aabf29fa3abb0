"""The program of a region's publish node: copying and hashing a model takes no time of others'.

`python -m trialfleet.workflows.publish_node RUN SLUG`, by DAGMan's PRE script. Doing it twice is
doing it once. Exits 0, or as the region's graph is told to stop.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from trialfleet.errors import InputError
from trialfleet.files import write_json
from trialfleet.workflows.folder import RunFolder
from trialfleet.workflows.plan import EXITS
from trialfleet.workflows.publish import publish
from trialfleet.workflows.status import open_run
from trialfleet.workflows.study_file import load_frozen


def publish_region(folder: RunFolder, slug: str) -> int:
    """Publish a region's model; return the script's exit code, `stop` with the reason stored."""
    files, frozen = folder.region(slug), load_frozen(folder.study)
    try:
        published = publish(frozen.run, frozen.study, slug, files.best)
    except (InputError, OSError) as error:
        reason = f"the model can't be published: {error}"
        write_json(files.stopped, {"reason": reason})
        print(f"{slug}: stopped: {reason}")
        return EXITS["stop"]
    write_json(files.published, {"path": str(published)})
    print(f"{slug}: published {published}")
    return EXITS["done"]


def main() -> None:
    """Publish a region's model."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("run", type=Path, help="the run's folder")
    parser.add_argument("slug", help="the region's name in its folder")
    arguments = parser.parse_args()
    sys.exit(publish_region(open_run(arguments.run), arguments.slug))


if __name__ == "__main__":
    main()
