"""What everything else stands on: errors, proportions and intervals, files, hashing, the machine."""
