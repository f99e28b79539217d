"""New parts of a project, written from templates: runs, filter rules, steps, tasks, platforms and architectures."""
