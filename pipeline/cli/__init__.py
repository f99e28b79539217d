"""The command line `polder`: commands in four groups. Each imports what it needs when it is called."""
