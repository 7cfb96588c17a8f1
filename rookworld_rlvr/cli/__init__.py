"""The command line: parser, dry run, how a script runs and ends."""
