"""The verbs of the command line, one module each: they read files, call one method of `Fitted`, and write files."""
