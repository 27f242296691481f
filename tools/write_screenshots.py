"""Write the pictures of the live page in the documentation: `python tools/write_screenshots.py docs/figures`.

Trains the small transformer of `examples/track_a_training.py` on its task with several learning rates, stops one run in
the middle and leaves one running, and photographs `rankrise serve` with the chromium of the system.
"""

import argparse
import contextlib
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn

import rankrise as rr

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Page

TOKENS, LENGTH, WIDTH, LAYERS = 16, 8, 32, 4
SERVE = [sys.executable, "-c", "from rankrise.cli import main; main()", "serve"]


def train(out: Path, *, rate: float, steps: int, scale: float) -> rr.RankTracker:
    """Train a model to reverse a sequence, and return its tracker, which is still open."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(WIDTH, 4, dim_feedforward=64, dropout=0.0, batch_first=True, norm_first=True)
    encoder = nn.TransformerEncoder(layer, num_layers=LAYERS, enable_nested_tensor=False)
    model = nn.ModuleDict({"embed": nn.Embedding(TOKENS, WIDTH), "encoder": encoder, "head": nn.Linear(WIDTH, TOKENS)})
    position = 0.5 * torch.randn(LENGTH, WIDTH)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "self_attn" in name:
                weight.mul_(scale)
    optimiser = torch.optim.Adam(model.parameters(), lr=rate)
    tracker = rr.RankTracker(model, out=out, every=5, spectra=25, config={"rate": rate, "init_scale": scale})
    for step in range(1, steps + 1):
        x = torch.randint(TOKENS, (64, LENGTH))
        logits = model["head"](model["encoder"](model["embed"](x) + position))
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), x.flip(1).flatten())
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()
        tracker.step(step, loss=loss)
    tracker.flush()
    return tracker


@contextlib.contextmanager
def serving(folder: Path) -> "Iterator[str]":
    """Run `rankrise serve`; give the address of its page."""
    with subprocess.Popen([*SERVE, str(folder)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().decode().strip()
        finally:
            process.kill()


def photograph(page: "Page", out: Path) -> None:
    """Write the list, one run and two runs over each other."""
    page.locator(".spark").nth(7).wait_for()
    page.mouse.move(0, 0)
    page.screenshot(path=out / "live-list.png")
    page.get_by_role("link", name="reverse/rate-0.002", exact=True).click()
    page.locator(".stages li, .stage").first.wait_for(state="attached")
    page.get_by_label("Step of training").wait_for()
    page.wait_for_timeout(500)
    page.screenshot(path=out / "live-run.png", full_page=True)
    page.keyboard.press("Escape")
    for name in ("reverse/rate-0.001", "reverse/rate-0.002"):
        page.get_by_label(f"Compare {name}").check()
    page.get_by_role("button", name="Compare 2 runs").click()
    page.locator("tbody tr").nth(1).wait_for()
    page.wait_for_timeout(300)
    page.screenshot(path=out / "live-compare.png", full_page=True)


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description="Write the pictures of the live page.")
    parser.add_argument("out", type=Path)
    options = parser.parse_args()
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as folder:
        runs = Path(folder) / "runs"
        train(runs / "reverse" / "rate-0.001", rate=1e-3, steps=600, scale=0.1).close()
        train(runs / "reverse" / "rate-0.0005", rate=5e-4, steps=150, scale=0.1).close(seal=False)
        train(runs / "reverse" / "large-weights", rate=2e-3, steps=300, scale=1.0).close()
        running = train(runs / "reverse" / "rate-0.002", rate=2e-3, steps=500, scale=0.1)
        with serving(runs) as url, sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
            page = browser.new_page(viewport={"width": 1200, "height": 420})
            page.goto(url)
            photograph(page, options.out)
            browser.close()
        running.close()
    sys.stderr.write(f"wrote {options.out}/live-list.png, live-run.png, live-compare.png\n")


if __name__ == "__main__":
    main()
