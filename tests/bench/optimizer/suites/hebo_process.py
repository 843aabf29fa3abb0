"""HEBO's ask and tell by lines of JSON, run by the Python of HEBO's environment.

The first input line has the space and a seed. Then `{"tell": [point, loss]}` has no reply, and the
reply to `{"ask": true}` is a point.
"""

from __future__ import annotations

import json
import random
import sys
import warnings


def main() -> None:
    """Answer until the input ends."""
    warnings.simplefilter("ignore")
    import numpy as np
    import pandas as pd
    import torch
    from hebo.design_space.design_space import DesignSpace
    from hebo.optimizers.hebo import HEBO

    answers, sys.stdout = sys.stdout, sys.stderr  # libraries print other text to stdout
    begin = json.loads(sys.stdin.readline())
    for seeded in (random.seed, np.random.seed, torch.manual_seed):
        seeded(begin["seed"])
    torch.set_num_threads(1)
    optimizer = HEBO(DesignSpace().parse(begin["space"]), scramble_seed=begin["seed"])
    for line in sys.stdin:
        message = json.loads(line)
        if "tell" in message:
            point, loss = message["tell"]
            optimizer.observe(pd.DataFrame([point]), np.array([[loss]]))
            continue
        found = optimizer.suggest(n_suggestions=1).iloc[0].to_dict()
        plain = {name: x.item() if hasattr(x, "item") else x for name, x in found.items()}
        answers.write(json.dumps(plain) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
