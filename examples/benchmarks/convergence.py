"""Does async converge as the exact schedules do? The loss of every step, and the accuracy, on real digits.

    python examples/benchmarks/convergence.py --images t10k-images-idx3-ubyte.gz --labels t10k-labels-idx1-ubyte.gz \
        --json convergence.json --svg docs/async-convergence.svg

Trains LeNet of examples/lenet_mnist.toml sequentially, and with `async` for each `--stages`, whose gradients are of
weights up to stages - 1 steps old; momentum multiplies what such a gradient does wrong, so the learning rate should be
small. All see the same batches in the same order, start with the same weights, and open the loss of every step, which
a real job would not do. What FILE of --json has already for the same settings is not trained again.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import mpcpipe
from mpcpipe.job.load import load

HERE = Path(__file__).parent
COLORS = ("#1f6feb", "#d1570a", "#2da44e", "#8250df")
WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 640, 300, 50, 40, 30


def losses(schedule: str, stages: list[int], args: argparse.Namespace) -> dict[str, Any]:
    """One training: its losses by step, right answers, seconds a step."""
    changes = {
        "data.features.path": json.dumps(args.images),
        "data.labels.path": json.dumps(args.labels),
        "train.epochs": args.epochs,
        "train.learning_rate": args.learning_rate,
        "train.momentum": args.momentum,
        "reveal.loss_every": 1,
        "evaluate.every": args.epochs,
        "evaluate.clear_twin": "false",
        "pipeline.schedule": json.dumps(schedule),
        "pipeline.stages": stages,
    }
    job = load(HERE.parent / "lenet_mnist.toml", [f"{key}={value}" for key, value in changes.items()])
    result = mpcpipe.train(job)
    return {
        "stages": stages,
        "losses": result["losses"],
        "accuracy": result["accuracy"],
        "step_s": result["step_s"],
    }


def smoothed(values: list[float], over: int) -> list[float]:
    """Means of the last `over` values."""
    return [sum(values[max(0, i - over + 1) : i + 1]) / min(over, i + 1) for i in range(len(values))]


def picture(curves: dict[str, dict[str, Any]]) -> str:
    """Both losses over the steps, means of five, as SVG."""
    most = max(max(smoothed(curve["losses"], 5)) for curve in curves.values())
    count = max(len(curve["losses"]) for curve in curves.values())
    across, down = (WIDTH - LEFT - 15) / max(1, count - 1), (HEIGHT - TOP - BOTTOM) / most
    base = HEIGHT - BOTTOM
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        'font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<path d="M{LEFT} {TOP}V{base}H{WIDTH - 15}" fill="none" stroke="#888"/>',
        f'<text x="{WIDTH / 2:.0f}" y="{HEIGHT - 8}" text-anchor="middle">step ({count} in all)</text>',
    ]
    for value in (0.0, 0.5, 1.0, 1.5, 2.0):
        if value <= most:
            lines.append(f'<text x="{LEFT - 6}" y="{base - value * down + 4:.1f}" text-anchor="end">{value}</text>')
    for number, (name, curve) in enumerate(curves.items()):
        color = COLORS[number % len(COLORS)]
        points = " ".join(
            f"{LEFT + i * across:.1f},{base - y * down:.1f}" for i, y in enumerate(smoothed(curve["losses"], 5))
        )
        lines.append(f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="1.5"/>')
        text = f"{name}: {curve['accuracy']:.2%} right"
        lines.append(f'<text x="{LEFT + 190}" y="{TOP + 16 * number}" fill="{color}">{text}</text>')
    return "\n".join([*lines, "</svg>", ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", required=True, help="pictures in MNIST's format")
    parser.add_argument("--labels", required=True, help="their labels")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--learning-rate", type=float, default=0.03)
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument(
        "--stages", type=int, nargs="+", action="append", help="of async; may be given again (default: 0 2)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--svg", type=Path, metavar="FILE")
    args = parser.parse_args()
    args.images, args.labels = str(Path(args.images).resolve()), str(Path(args.labels).resolve())
    settings = {"epochs": args.epochs, "learning_rate": args.learning_rate, "momentum": args.momentum}
    known = json.loads(args.json.read_text()) if args.json and args.json.exists() else {}
    curves: dict[str, dict[str, Any]] = known.get("curves", {}) if known.get("settings") == settings else {}
    wanted = [("sequential", "sequential", [0])]
    wanted += [(f"async, stages {stages}", "async", stages) for stages in args.stages or [[0, 2]]]
    for name, schedule, stages in wanted:
        if name not in curves:
            curves[name] = losses(schedule, stages, args)
        curve = curves[name]
        last = curve["losses"][-10:]
        print(
            f"{name}: {curve['accuracy']:.2%} right, mean loss of the last ten steps {sum(last) / len(last):.4f}, "
            f"{curve['step_s']:.2f} s a step",
            flush=True,
        )
        if args.json:
            args.json.write_text(json.dumps({"settings": settings, "curves": curves}, indent=1) + "\n")
    if args.svg:
        args.svg.write_text(picture(curves))


if __name__ == "__main__":
    main()
