"""The tasks: what is asked, what is right and how answers are scored. This room does not use torch."""
