"""What every other room builds on: errors, settings, statistics, files, hashing, the machine, HTML."""
