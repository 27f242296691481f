"""Do ranks that are advised early help a LoRA training that comes after?

    python studies/lora_prediction.py --data DIR

A GPT is trained on WikiText-2 and then tuned to the source text of Python's library: as a whole, with LoRA of the ranks
that `rankrise.checkpoints.advise` reads from the first tenth of the whole fine-tune, with LoRA of one rank everywhere
and as many parameters, and with AdaLoRA. docs/checkpoints.md says what came out. The same command goes on with a run
that was cut off. `write_prediction.py` publishes a run.
"""

import argparse
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[1]
_NO_PEFT = "Adapters are trained with the package peft, which is not installed: pip install 'rankrise[peft]'."


def main(arguments: list[str] | None = None) -> None:
    """Run the command."""
    if str(_ROOT) not in sys.path:
        sys.path.insert(0, str(_ROOT))  # the files beside this one are imported as `studies`
    from studies.prediction_result import prediction_lines, read_prediction
    from studies.prediction_run import run_prediction
    from studies.prediction_spec import SCALES

    from rankrise.lab.training import choose_device, show_progress

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", choices=SCALES, default="paper", help="smoke: seconds on synthetic text")
    parser.add_argument("--data", type=Path, help="folder with wikitext-2 and gpt2-bpe; `data` unless given")
    parser.add_argument("--out", type=Path, help="folder of the run; runs/lora-prediction/SCALE-SEED unless given")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", help="cpu, cuda, mps; the best there is unless given")
    options = parser.parse_args(arguments)
    if find_spec("peft") is None:
        parser.error(_NO_PEFT)
    spec = replace(SCALES[options.scale], seed=options.seed)
    folder = options.out or Path("runs", "lora-prediction", f"{options.scale}-{options.seed}")
    progress = show_progress()
    try:
        run_prediction(spec, folder, root=options.data, device=choose_device(options.device), progress=progress)
    except (OSError, ValueError) as error:
        parser.exit(1, f"{error}\n")
    finally:
        progress.close()
    print("\n".join(prediction_lines(read_prediction(folder))))
    print(f"wrote {folder}", file=sys.stderr)


if __name__ == "__main__":
    main()
