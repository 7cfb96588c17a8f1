"""The tests; before anything is imported, the Hub is put out of reach: it is read at import."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"
