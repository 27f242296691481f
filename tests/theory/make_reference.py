"""Write data/leave_and_return.json, the path of a head in which a coordinate leaves the support and returns.

    python -m tests.theory.make_reference

Seed 459 was found by a search over 600 heads with 4 samples of 3 tokens of dimension 4: coordinate 3 activates at
rescaled time 0.43 with a negative sign, leaves at 0.96 and returns at 1.67 with the positive one. It takes
minutes.
"""

import json
from pathlib import Path

import numpy as np
from tests.theory.oracles import Head, draw_head, multiprecision_flow

PATH = Path(__file__).parent / "data" / "leave_and_return.json"
SETTINGS = {"log10_alpha": -32, "digits": 90, "rtol": 1e-12}
RETURNING = 3


def load_reference() -> tuple[Head, np.ndarray, np.ndarray]:
    """Read the head, the rescaled times (T,) and the products (T, 8)."""
    record = json.loads(PATH.read_text())
    head = Head(**{name: np.array(values) for name, values in record["head"].items()})
    return head, np.array(record["times"]), np.array(record["products"])


def main() -> None:
    head = draw_head(samples=4, tokens=3, dim=4, seed=459)
    times = np.linspace(0, 2, 201)
    record = {
        "what": "products u * v of the (u, v) gradient flow of an 8-weight attention head in 90-digit arithmetic",
        "command": "python -m tests.theory.make_reference",
        "settings": SETTINGS,
        "head": {name: values.tolist() for name, values in head._asdict().items()},
        "times": times.tolist(),
        "products": multiprecision_flow(head, times=times, **SETTINGS).tolist(),
    }
    PATH.write_text(json.dumps(record) + "\n")


if __name__ == "__main__":
    main()
