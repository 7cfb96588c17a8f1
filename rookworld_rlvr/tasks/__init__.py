"""What is asked, what is right and how it is scored; no torch."""
