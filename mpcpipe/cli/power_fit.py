"""`mpcpipe power fit`: how well a measured grid can be predicted."""

from __future__ import annotations

from typing import Any

import click

from mpcpipe.cli import console
from mpcpipe.cli.options import with_json


@click.command(epilog="Example:  mpcpipe power fit resnet50.csv densenet201.csv     errors on clocks never seen")
@click.argument("grids", nargs=-1, required=True, metavar="CSV...")
@click.option("--papers", is_flag=True, help="Also boosted trees and a Gaussian process (needs scikit-learn).")
@with_json
def fit(grids: tuple[str, ...], papers: bool, json_file: str | None) -> None:
    """Fit physics to measured grids, and say how wrong it is on clocks and batch sizes held out whole."""
    from dataclasses import asdict

    from mpcpipe.services.power import fit as fitting
    from mpcpipe.services.power import predictors
    from mpcpipe.services.power.grid import load
    from mpcpipe.services.power.heldout import held_out

    console.check_json(json_file)
    learners: dict[str, Any] = {
        "physics alone": lambda grid: fitting.fit(grid, residuals=False),
        "physics and residual": fitting.fit,
    }
    if papers:
        learners |= {"boosted trees": predictors.boosted_trees, "Gaussian process": predictors.gaussian_process}
    said: dict[str, Any] = {}
    for file in grids:
        grid = load(file)
        said[grid.name] = {name: [asdict(row) for row in held_out(grid, learn)] for name, learn in learners.items()}
        if json_file != "-":
            for name, rows in said[grid.name].items():
                console.table(
                    f"{grid.name}: {name}",
                    ("held out", "points", "latency MAPE", "energy MAPE", "worst latency", "worst energy"),
                    [
                        (
                            row["what"],
                            str(row["points"]),
                            *(f"{100 * row[key]:.2f} %" for key in ("latency_mape", "energy_mape")),
                            *(f"{100 * row[key]:.1f} %" for key in ("latency_worst", "energy_worst")),
                        )
                        for row in rows
                    ],
                )
                console.blank()
    console.write_json(json_file, said)
