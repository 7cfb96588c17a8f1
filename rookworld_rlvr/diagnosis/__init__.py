"""One optimiser step of the real trainer on a fixed seed, taken apart in ten parts."""

from .run import (
    PARTS,
    DiagnoseArguments,
    Diagnosis,
    choose_heldout,
    output_folder,
    run_diagnosis,
    split_compare,
)
from .text import print_report, write_reports
from .trainer import DiagnosedTrainer

__all__ = [
    "PARTS",
    "DiagnoseArguments",
    "DiagnosedTrainer",
    "Diagnosis",
    "choose_heldout",
    "output_folder",
    "print_report",
    "run_diagnosis",
    "split_compare",
    "write_reports",
]
