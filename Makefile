# Two commands for a fresh machine: `make demo` and `make test`. Both install what is missing into .venv first; `make
# install` does nothing else, for a login node. `make quick` is for a person between two edits.
SHELL := /bin/bash
PYTHON ?= python3
LOCK ?= cpu
VENV := .venv
BIN := $(VENV)/bin
MARKS = not demo and not thorough
# With bytecode a process of the tests need not compile the package again.
unexport PYTHONDONTWRITEBYTECODE
export DS_ACCELERATOR ?= $(if $(filter cpu,$(LOCK)),cpu)

.PHONY: install demo docs test test-all test-slurm test-this-slurm test-other-slurm test-changed quick check release lock wheels clean
.DEFAULT_GOAL := demo

$(VENV)/installed-$(LOCK): envs/$(LOCK).lock envs/setup.sh pyproject.toml
	@PYTHON=$(PYTHON) sh envs/setup.sh $(VENV) envs/$(LOCK).lock
	@touch $@

install: $(VENV)/installed-$(LOCK)

# The tools of others that the tests check records and papers with.
$(VENV)-auditors/installed: tests/auditors/requirements.lock tests/auditors/readers.lock envs/setup.sh
	@PYTHON=$(PYTHON) sh envs/setup.sh $(VENV)-auditors tests/auditors/requirements.lock
	@$(VENV)-auditors/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --ignore-requires-python \
	    --requirement tests/auditors/readers.lock
	@touch $@

# The generator of the documentation site, which is not part of a run.
$(VENV)-docs/installed: docs/requirements.lock envs/setup.sh
	@PYTHON=$(PYTHON) sh envs/setup.sh $(VENV)-docs docs/requirements.lock
	@touch $@

# Builds docs/_build/html without network; a warning is an error.
docs: $(VENV)/installed-$(LOCK) $(VENV)-docs/installed
	@$(BIN)/python docs/generate.py docs/reference/generated
	@$(VENV)-docs/bin/sphinx-build -q -W --keep-going -b html docs docs/_build/html
	@echo "documentation: docs/_build/html/index.html"

demo: $(VENV)/installed-$(LOCK)
	@$(BIN)/snakemake --profile local
	@$(BIN)/polder verify results/demo

check: $(VENV)/installed-$(LOCK)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/snakefmt --check Snakefile rules
	$(BIN)/snakemake --profile local --lint
	$(BIN)/python -m pytest -p no:xdist tests/test_unused.py
	make --no-print-directory docs

# Three jobs at once: the tests of Slurm, which wait more than they compute, on two clusters; the checks of `check`; and
# the other tests. The output of the first two is shown at the end. All share one finished micro run and one warm Python
# (tests/warm_python.py). `test-all` adds the tests marked thorough, for the end of a larger piece of work.
test-all: MARKS = not demo
test-all: MORE = --hypothesis-profile thorough
test test-all: $(VENV)/installed-$(LOCK) $(VENV)-auditors/installed
	@shared=$$(mktemp -d); export POLDER_FINISHED=$$shared/finished WARM_PYTHON_SHARED=$$shared/warm; \
	$(BIN)/python tests/warm_python.py & warm=$$!; \
	make --no-print-directory check >$$shared/check 2>&1 & check=$$!; \
	make --no-print-directory --keep-going MARKS="$(MARKS)" test-slurm >$$shared/slurm 2>&1 & slurm=$$!; \
	trap "kill $$check $$slurm $$warm" INT TERM; \
	$(BIN)/python -m pytest --ignore tests/slurm -m "$(MARKS)" $(MORE) --numprocesses 2 --dist loadfile \
	    --no-loadscope-reorder; others=$$?; \
	wait $$slurm; alone=$$?; wait $$check; checked=$$?; kill $$warm; \
	cat $$shared/slurm $$shared/check; rm -r $$shared; exit $$((others + alone + checked))

# Within a minute on two cores, once mypy has its cache. It leaves out snakefmt, `snakemake --lint`, all tests marked
# slow, slurm or demo, those of a whole run, and each file of tests that itself starts processes, trains, or imports
# PyTorch, datatrove or spaCy (LONG in tests/conftest.py): the model, parallel training, checkpoints, comparisons.
quick: $(VENV)/installed-$(LOCK)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest --quick --numprocesses 2 --dist loadfile

# On this machine's Slurm; the tests marked versions also on that of POLDER_OTHER_RELEASE, a folder that
# `python -m tests.other_release FOLDER` makes.
test-slurm: test-this-slurm test-other-slurm
SLURM_TESTS = $(BIN)/python -m pytest tests/slurm --numprocesses 2 --dist loadfile --no-loadscope-reorder
test-this-slurm:
	@$(SLURM_TESTS) -m "$(MARKS)"
test-other-slurm:
	@$(if $(POLDER_OTHER_RELEASE),POLDER_SLURM=$(POLDER_OTHER_RELEASE) $(SLURM_TESTS) -m "versions and $(MARKS)")

# The tests that import what was edited since the last commit, directly or not; none of a whole run.
test-changed: $(VENV)/installed-$(LOCK)
	$(BIN)/python -m pytest --changed --numprocesses 2 --dist loadfile || [ $$? = 5 ]  # 5: there are none

# dist/: wheel, source archive, SBOM of each lock, section of the change log (CONTRIBUTING.md, Release).
release: $(VENV)/installed-$(LOCK)
	$(BIN)/python envs/release.py

lock:
	sh envs/lock.sh

# For a machine without internet: docs/howto/work-offline.md.
wheels:
	@PYTHON=$(PYTHON) sh envs/wheels.sh pack envs/$(LOCK).lock wheels-$(LOCK)

clean:
	rm -rf $(VENV) $(VENV)-auditors $(VENV)-docs docs/_build .snakemake dist results
