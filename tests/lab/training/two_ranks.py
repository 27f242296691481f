"""One process of a distributed training: torchrun -m tests.lab.training.two_ranks FOLDER [KIND].

KIND `killed`: the second process kills itself, once, before its 8th batch; `term`: the second one gets SIGTERM there;
`nan`: its 8th batch is not finite.
"""

import dataclasses
import os
import signal
import sys
import warnings
from pathlib import Path

from tests.lab.training.tasks import RECIPE, BreaksAt, tiny_data, train_tiny

CONFIG = dataclasses.replace(RECIPE, accumulate=2, epochs=5)  # 25 steps


class Troubled(BreaksAt):
    def __init__(self, data, kind, marker):
        super().__init__(data, 8)
        self._kind, self._marker = kind, marker

    def train_batches(self, **options):
        for batch in self._data.train_batches(**options):
            self._left -= 1
            if self._left == 0 and os.environ["RANK"] == "1" and not self._marker.exists():
                if self._kind == "nan":
                    batch = batch._replace(inputs=batch.inputs * float("nan"))
                else:
                    self._marker.touch()
                    os.kill(os.getpid(), signal.SIGKILL if self._kind == "killed" else signal.SIGTERM)
            yield batch


def main(folder, kind):
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", ".*is started over")
    data = Troubled(tiny_data(augment=("crop",)), kind, folder / "marker") if kind else tiny_data(augment=("crop",))
    result = train_tiny(folder / "run", CONFIG, data=data, checkpoint_every=4)
    (folder / f"result-{os.environ['RANK']}").write_text(f"{result.status} {result.step} {result.message}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else None)
