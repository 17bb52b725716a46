# Everything is run through .venv, which is made from requirements.lock when it is missing or old.
#   make setup PYTHON=python3.12     choose the Python
#   make setup COURSE_TORCH=cuda     choose the build of PyTorch (cpu, cuda; default: by the GPU)

SHELL := /bin/bash
PYTHON ?=
export COURSE_TORCH ?= auto
PY := .venv/bin/python
READY := .venv/installed.json
SUBMISSIONS ?=
REPOSITORY ?=
OUT ?=
SITE_READY := .venv/requirements-site.lock
BROWSER_READY := .venv/requirements-browser.lock
ARGS ?=
# All tests run in several workers, one more than cores; a choice of them in one process, unless asked for.
WORKERS := -n auto --max-worker-restart=0

.PHONY: help setup grade check test test-all test-hosts test-browser lab formgrader bench notebooks site lock doctor gpu \
  clean clean-grades

help: ## this list
	@echo "usage: make COMMAND"
	@sed -nE 's/^([a-z-]+):.*## (.*)/  \1\t\2/p' $(MAKEFILE_LIST) | expand -t 16

setup: $(READY) ## make .venv from requirements.lock (the others do it by themselves)
	@echo ".venv is ready; $(READY) says what is in it"

# Named on the command line, a Python or a build of PyTorch is compared with what .venv has.
ifneq ($(filter command,$(word 1,$(origin PYTHON)) $(word 1,$(origin COURSE_TORCH))),)
.PHONY: $(READY)
endif

$(READY): requirements.lock pyproject.toml tools/make_venv.py
	@launcher="$$(command -v python3 || command -v $(or $(PYTHON),python) || true)"; \
	if [ -z "$$launcher" ]; then \
	  echo "Set-up stopped: no Python was found. On Debian and Ubuntu:"; \
	  echo "    sudo apt-get update && sudo apt-get install python3 python3-venv"; exit 1; \
	fi; \
	"$$launcher" tools/make_venv.py $(if $(PYTHON),--python "$(PYTHON)")

define REFUSED
ifeq ($$(origin $(1)),command line)
$$(error $(1) has no meaning here. Did you mean SUBMISSIONS=$$($(1))?)
endif
endef
$(foreach name,SUBMISSION submissions submission,$(eval $(call REFUSED,$(name))))

grade: $(READY) ## grade the sample class, or a real one: make grade SUBMISSIONS=folder
	@$(PY) -m autograder grade $(if $(SUBMISSIONS),--submissions "$(SUBMISSIONS)") $(ARGS)

# Compiled once: where Python may not write it (PYTHONDONTWRITEBYTECODE), every rank would compile what it imports.
COMPILED := $(PY) -m compileall -q -x 'tests/(mutants|outside)' course_lib autograder tests

check: $(READY) ## lint, types, drift and the tests that start no ranks: some minutes
	@$(COMPILED)
	@COURSE_QUICK=1 $(PY) -m pytest $(or $(ARGS),$(WORKERS))

test: $(READY) ## run every test (some of them: make test ARGS="tests/runtime/test_doctor.py -x")
	@$(COMPILED)
	@$(PY) -m pytest $(or $(ARGS),$(WORKERS))

test-all: $(READY) ## the same, with the tests that take long run whole and not in part
	@$(COMPILED)
	@COURSE_ALL_TESTS=1 $(PY) -m pytest $(or $(ARGS),$(WORKERS))

test-hosts: $(READY) ## run all notebooks with each host's versions: Colab, Kaggle, Runpod and others (hours)
	@$(PY) tools/try_hosts.py $(ARGS)

# Without a network the packages are not there, and the next line says what to install.
$(BROWSER_READY): requirements-browser.lock $(READY)
	@$(PY) -m pip install --quiet --disable-pip-version-check --no-deps -r $< && cp $< $@ || true

test-browser: $(SITE_READY) $(BROWSER_READY) ## drive JupyterLab, formgrader and the site in Chromium: some minutes
	@$(PY) -m tests.browser $(ARGS)

lab: $(READY) ## open JupyterLab on the notebooks, in a copy of your own: work/
	@$(PY) tools/make_work.py
	@$(PY) tools/open_lab.py $(ARGS)

formgrader: $(READY) ## open formgrader, to grade by hand (another folder than autograder/out: OUT=folder)
	@test -z "$(OUT)" || test -f "$(OUT)/gradebook.db" || \
	  { echo "$(OUT) holds no gradebook.db. Name the folder that make grade wrote."; exit 2; }
	@COURSE_OUT="$(OUT)" $(PY) -m jupyterlab $(if $(filter 0,$(shell id -u)),--allow-root) \
	  --ServerApp.root_dir=. --LabApp.default_url=/formgrader $(ARGS)

bench: $(READY) ## measure launch, collectives and ledger against what else there is
	@$(PY) -m benchmarks $(ARGS)

notebooks: $(READY) ## build the notebooks from their text twins
	@$(PY) -m autograder build $(ARGS)

$(SITE_READY): requirements-site.lock $(READY)
	@$(PY) -m pip install --quiet --disable-pip-version-check --no-deps -r $<
	@cp $< $@

site: $(SITE_READY) ## build the web pages into build/site/html (make site REPOSITORY=owner/name)
	@$(PY) tools/make_site.py $(if $(REPOSITORY),--repository "$(REPOSITORY)") $(ARGS)

lock: $(READY) ## remake the lock files and environment.yml (newest versions: make lock ARGS=--upgrade)
	@$(PY) tools/make_lock.py $(ARGS)

doctor: $(READY) ## say what this machine can do and what is wrong with it
	@$(PY) -m course_lib.doctor $(ARGS)

gpu: $(READY) ## prove that the course works on this machine's GPUs; without one, say so
	@$(COMPILED)
	@$(PY) tools/gpu_session.py $(ARGS)

# A report of `make gpu` stays: the GPUs were rented.
clean: ## remove what was built; .venv, grades and your work stay
	@rm -rf build/site build/browser build/lib build/bdist.* *.egg-info .pytest_cache .ruff_cache
	@rm -f dist/course_lib-*.whl dist/course_lib-*.tar.gz
	@rmdir build dist 2>/dev/null || true
	@find . -path ./.venv -prune -o -type d -name __pycache__ -print0 | xargs -0 rm -rf
	@echo "Removed what was built; .venv, grades and all that you typed stay."

clean-grades: $(READY) ## delete grades, gradebook and secret, after a question
	@$(PY) -m autograder clean $(ARGS)
