"""What `rookworld grpo` does not need: a folder a piece, named after its command.

Nothing outside of this folder imports it; what offers a piece's service asks `common.extras.extra`, as
one piece does for another. To remove a piece, delete its folder, ``recipes/NAME.py``,
``recipes/*NAME*.yaml`` and ``tests/extras/NAME``.
"""
