"""The command line: parser, dry run, sweeps."""
