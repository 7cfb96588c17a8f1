"""GRPO with verifiable chess rewards for RookWorld-LM, on TRL."""

__version__ = "0.1.0"
