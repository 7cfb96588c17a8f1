"""The diagnosis reads one private name of TRL's, as `test_canary.py` says of the trainer."""

from ...training.test_canary import READ, all_foreign, taken_from_metrics, trees

TREES = trees("extras/diagnose")


def test_nothing_else_is_read_and_no_metric_is_taken() -> None:
    assert all_foreign(TREES) == {"extras/diagnose/step.py": {"_buffered_inputs"}}
    assert "_buffered_inputs" in READ["training/checkpoints.py"], "where it is known to be there"
    assert not any(any(taken_from_metrics(tree)) for tree in TREES.values())
