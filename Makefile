GO ?= go
# Flags for `make run` and `make bench`, for instance: make run ARGS="--ephemeral --http 127.0.0.1:0"
ARGS ?=
# What runs beside the tests: a private PostgreSQL and a Temporal development server.
WITH_STACK = $(GO) run ./internal/devstack/withstack --
TOOL = $(GO) tool -modfile=tools/go.mod
# Packages whose tests start whole servers, kill them and wait for them.
SLOW_PACKAGES = /(cmd/termkeeper|e2e|internal/devstack)$$
# Packages where goroutines meet over shared memory. The race detector makes everything some five times slower.
RACE_PACKAGES = ./internal/access/... ./internal/intake/... ./internal/simulator/... ./api/...

.DEFAULT_GOAL := help
.PHONY: help run build test test-short race lint tctl-check generate fuzz bench vuln

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: build ## start the whole system on this machine; installs what is missing
	$(GO) run ./internal/devstack/ensure
	exec bin/termkeeper dev $(ARGS)

build: ## build bin/termkeeper
	$(GO) build -o bin/termkeeper ./cmd/termkeeper

# One package at a time: several at once starve the servers that they start, and tests that wait for them fail.
test: ## run every test, with real PostgreSQL and Temporal
	$(WITH_STACK) sh -c '$(GO) test -p 1 -timeout 20m ./... && $(GO) test -C deploy -timeout 10m ./...'

test-short: ## run the quick tests: none that starts or kills whole servers
	$(WITH_STACK) $(GO) test -short -timeout 5m $$($(GO) list ./... | grep -v -E '$(SLOW_PACKAGES)')

race: ## run the tests of the concurrent packages under the race detector (needs a C compiler)
	$(WITH_STACK) $(GO) test -race -timeout 20m $(RACE_PACKAGES)

lint: ## check format, house rules and determinism of the workflows
	@unformatted="$$(gofmt -l deploy $$($(GO) list -f '{{.Dir}}' ./...))"; \
	if [ -n "$$unformatted" ]; then echo "run gofmt on:"; echo "$$unformatted"; exit 1; fi
	$(GO) vet ./...
	$(GO) vet -C deploy ./...
	GOOS=darwin $(GO) vet ./internal/devstack/...
	$(TOOL) golangci-lint run
	cd deploy && $(GO) tool -modfile=../tools/go.mod golangci-lint run
	$(TOOL) workflowcheck ./workflows/...

tctl-check: ## build the old CLI tctl (minutes) and run its part of docs/operations.md
	$(GO) build -C tools/tctl -o ../../bin/tctl tool
	TERMKEEPER_TCTL_BINARY=$(CURDIR)/bin/tctl $(WITH_STACK) $(GO) test -timeout 10m ./e2e -run TestCookbook

generate: ## write the Go client from api/openapi.yaml
	$(TOOL) oapi-codegen -config client/codegen/config.yaml api/openapi.yaml

fuzz: ## send 100,000 random requests to the API; FUZZ_REQUESTS and FUZZ_SEED change that
	$(WITH_STACK) env FUZZ_REQUESTS=$${FUZZ_REQUESTS:-100000} $(GO) test -timeout 60m -count 1 -v -run TestNonsenseBreaksNothing ./api

bench: ## measure against the limits of this machine; prints one table
	$(GO) run ./bench $(ARGS)

vuln: ## look for known vulnerabilities in what the program calls (needs the network)
	$(TOOL) govulncheck ./...
