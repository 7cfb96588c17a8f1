"""The command line: parser, checks across arguments, dry run, sweeps."""
