# karpenter-provider-proxmox. Run "make help" for the targets.
# Requirements: Linux, Go 1.21 or newer (it downloads the version below), make, gcc (for -race), git and a Go module proxy.

SHELL := /bin/bash -o pipefail
.DEFAULT_GOAL := help

# The toolchain is set here as well as in go.mod, because an environment with GOTOOLCHAIN=local overrides go.mod.
export GOTOOLCHAIN := go1.26.10
# The same flags for everything, so all builds share Go's cache. Only the race detector needs cgo. Debugging information
# costs a tenth of the time to compile; all binaries are linked without it.
export CGO_ENABLED := 0
export GOFLAGS := -buildvcs=false -trimpath -gcflags=all=-dwarf=false
# RACE=1 runs unit tests with the race detector; CI=true prints the times of "make test" with those of the rest.
RACE ?=
CI ?=
# On a busy machine gomega's default timeout of one second is too short.
export GOMEGA_DEFAULT_EVENTUALLY_TIMEOUT := 60s

CACHE := $(CURDIR)/.cache
BIN := $(CACHE)/bin
# The Kubernetes version of the control plane in tests and in the demo: the newest, or one with its own module file in kubeplane.
NEWEST_KUBERNETES := $(shell sed -nE 's|^\tk8s.io/kubernetes v(1\.[0-9]+).*|\1|p' kubeplane/go.mod)
KUBERNETES ?= $(NEWEST_KUBERNETES)
KUBERNETES_VERSIONS := $(NEWEST_KUBERNETES) $(patsubst kubeplane/go.%.mod,%,$(wildcard kubeplane/go.*.mod))
ifeq ($(filter $(KUBERNETES),$(KUBERNETES_VERSIONS)),)
$(error KUBERNETES is "$(KUBERNETES)"; it must be one of: $(KUBERNETES_VERSIONS))
endif
OLDER_KUBERNETES := $(filter-out $(NEWEST_KUBERNETES),$(KUBERNETES))
KUBEPLANE := $(BIN)/kubeplane$(addprefix -,$(OLDER_KUBERNETES))
KUBEPLANE_MODULE := go$(addprefix .,$(OLDER_KUBERNETES))
CONTROLLER := $(BIN)/controller
CLOUD_CONTROLLER := $(BIN)/cloud-controller-manager
DEMO := $(BIN)/demo
E2E = KUBEPLANE=$(KUBEPLANE) HELM=$(HELM) CONTROLLER=$(CONTROLLER) MANIFEST=$(CACHE)/install.yaml \
	CLOUD_CONTROLLER=$(CLOUD_CONTROLLER) go test -count=1
ifdef E2E_PROXMOX_CONFIG
# Tests run in the directory of their package, so the path must be absolute.
override E2E_PROXMOX_CONFIG := $(abspath $(E2E_PROXMOX_CONFIG))
export E2E_PROXMOX_CONFIG
endif
# Of Debian's package, which is extracted and not installed.
PROMETHEUS := $(CACHE)/prometheus/usr/bin/prometheus
# Links to kubeplane with the file names that envtest expects.
ENVTEST := $(CACHE)/envtest$(addprefix -,$(OLDER_KUBERNETES))

IMAGE ?= ghcr.io/karpenter-proxmox/karpenter-provider-proxmox
VERSION ?= dev
comma := ,
# Charts need a semantic version.
CHART_VERSION := $(if $(filter dev,$(VERSION)),0.0.0-dev,$(VERSION:v%=%))
# Architectures of a release, separated by commas.
ARCHES = $(if $(ARCH),$(ARCH),amd64$(comma)arm64)
RELEASE := $(CACHE)/release
# Flags of "helm push" and of cosign, for another registry or key.
HELM_FLAGS ?=
COSIGN_FLAGS ?=
CRANE := $(BIN)/crane
COSIGN := $(BIN)/cosign
# The Debian release of the guest image.
SUITE ?= trixie
# All files in the image have the time of the source.
export SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct 2>/dev/null || echo 0)

TOOL := go tool -modfile=$(CURDIR)/go.tools.mod
LINTER := go tool -modfile=$(CURDIR)/go.lint.mod golangci-lint
HELM := $(BIN)/helm
HELM_DOCS := $(BIN)/helm-docs
CHARTS ?= oci://ghcr.io/karpenter-proxmox/charts
CHART := charts/karpenter-provider-proxmox
CHART_CRDS := $(CHART)/crds
# A separate chart of the CRDs, which Helm upgrades.
CRD_CHART := charts/karpenter-provider-proxmox-crd
# Files that "make generate" writes and "make verify" compares.
GENERATED := api/v1alpha1/zz_generated.deepcopy.go api/crds docs/reference docs/performance.md \
	$(CHART_CRDS) $(CRD_CHART)/templates $(CHART)/templates/_settings.tpl $(CHART)/values.schema.json $(CHART)/README.md

GOVULNCHECK := v1.9.0

# log prints what a long step does and how long it takes.
log = @printf '\033[1m==> %s\033[0m\n' $(1)

##@ General

.PHONY: help
help: ## Show the targets
	@awk 'BEGIN {FS = ":.*## "} \
		/^##@/ {printf "\n\033[1m%s\033[0m\n", substr($$0, 5)} \
		/^[a-z0-9-]+:.*## / {printf "  \033[36m%-15s\033[0m %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# GUESTS=qemu runs real Linux VMs in the demo.
GUESTS ?= simulated
DEMO_FLAGS = --kubeplane $(KUBEPLANE) --controller $(CONTROLLER) --guests $(GUESTS) --images $(CACHE)/guest

.PHONY: demo
demo: $(KUBEPLANE) demo-programs $(if $(filter qemu,$(GUESTS)),guest-image) ## Run the demo: Karpenter creates and deletes VMs on a simulated Proxmox VE; GUESTS=qemu boots real Linux VMs
	@$(DEMO) $(DEMO_FLAGS)

.PHONY: playground
playground: $(KUBEPLANE) demo-programs plugin $(if $(filter qemu,$(GUESTS)),guest-image) ## Start the demo's environment and keep it running; GUESTS=qemu boots real Linux VMs
	@$(DEMO) $(DEMO_FLAGS) --playground

.PHONY: clean
clean: ## Delete everything that was built, except for Go's own cache
	rm -rf $(CACHE)

##@ Tests

# What a newcomer runs before a pull request, and CI before CI_CHECKS.
.PHONY: test
test: ## Build everything, run the unit tests and a short end-to-end run, and check generated files; RACE=1 uses the race detector
	@mkdir -p $(CACHE) && rm -f $(CACHE)/times
	@$(MAKE) --no-print-directory timed-build
	@$(MAKE) --no-print-directory --keep-going --jobs=2 timed-verify timed-unit
	@$(MAKE) --no-print-directory timed-e2e-short
	@test -n '$(CI)' || cat $(CACHE)/times
	@echo 'CI also runs: $(CI_CHECKS). "make ci" runs everything.'

# The first two compile, and the others of a group mostly wait.
CI_CHECKS := verify-modules lint recipes unit-rest e2e kubeplane-test clients reproducible

.PHONY: ci
ci: ## Run "make test" with the race detector and then the rest of CI; show all failures and the time of each step
	@.ci/run

.PHONY: ci-checks
ci-checks:
	@$(MAKE) --no-print-directory --keep-going --jobs=2 timed-verify-modules timed-lint timed-recipes; lint=$$?; \
	$(MAKE) --no-print-directory timed-unit-rest; unit=$$?; \
	$(MAKE) --no-print-directory --keep-going --jobs=2 timed-e2e timed-kubeplane-test timed-clients timed-reproducible; exit $$((lint + unit + $$?))

# Wall time and CPU time. The jobserver of make uses the descriptors 3 and 4.
timed-%:
	@exec 8>&1 9>&2; failed= TIMEFORMAT='%0R %0U %0S'; \
	times=$$({ time $(MAKE) --no-print-directory $* 1>&8 2>&9; } 2>&1) || failed=', failed'; \
	printf '%-15s %4d s, CPU %4d s + %d s system%s\n' $* $$times "$$failed" >> $(CACHE)/times; test -z "$$failed"

.PHONY: build
build: $(KUBEPLANE) $(HELM) controller pvesim manifest

# test/e2e has its own targets.
packages = $$(go list $(1) | grep -v /test/e2e)
# Lint includes vet. Less garbage collection saves time of the tests and the linker, which needs no debugging information.
# The race detector waits for a second at the end of each process by default. Go reuses results of tests only in a fixed order.
GO_TEST = GOGC=300 KUBEBUILDER_ASSETS=$(ENVTEST) KUBEPLANE=$(KUBEPLANE) HELM=$(HELM) go run ./hack/testserver env \
	$(if $(RACE),GORACE=atexit_sleep_ms=100 CGO_ENABLED=1) go test $(if $(RACE),-race) -ldflags '-s -w' -vet=off -timeout 20m

.PHONY: unit
unit: $(ENVTEST)/kube-apiserver ## Run the unit tests of the controller, nearly all in virtual time; RACE=1 uses the race detector
	$(call log,"testing the controller (a minute; first time minutes of compiling)")
	@$(GO_TEST) $(if $(RACE),-shuffle=on) ./internal/controllers ./internal/instance ./internal/template $(call packages,./api/... ./internal/... ./hack/...)

.PHONY: unit-rest
unit-rest: $(ENVTEST)/kube-apiserver $(HELM) ## Run the other unit tests: simulator, programs, chart, documentation, faults at every call
	$(call log,"testing the simulator and the programs (minutes)")
	@$(GO_TEST) ./test/chaos ./cmd/kubectl-proxmox $(call packages,./pvesim/... ./cmd/... ./examples ./test/...)

.PHONY: recipes
recipes: ## Check the rendered recipes with cloud-init's schemas, the loader of Talos, and Ignition
	$(call log,"checking the recipes with the parsers of cloud-init and Talos and with Ignition (first time: several minutes of compiling)")
	cd examples/verify && go vet ./... && go test -timeout 30m -shuffle=on ./...

.PHONY: clients
clients: pvesim ## Run Proxmox clients of other projects against the simulator
	$(call log,"testing the simulator with other clients (about 2 minutes; mostly waiting)")
	cd test/clients && PVESIM=$(BIN)/pvesim go test -count=1 ./...

.PHONY: kubeplane-test
kubeplane-test: $(KUBEPLANE) ## Test the Kubernetes control plane binary
	$(call log,"testing kubeplane (about 30 seconds)")
	cd kubeplane && KUBEPLANE=$(KUBEPLANE) go test -modfile=$(KUBEPLANE_MODULE).mod -shuffle=on -timeout 10m ./internal/...

# It needs seconds for each Node, and shows that the parts work together: the unit tests are fakes and simulations.
.PHONY: e2e-short
e2e-short: $(KUBEPLANE) $(HELM) controller manifest ## Run the end-to-end tests that show most in the shortest time
	$(call log,"testing end to end with Kubernetes $(KUBERNETES) (a minute)")
	$(E2E) -short -timeout 10m ./test/e2e

.PHONY: e2e
e2e: $(KUBEPLANE) $(HELM) controller cloud-controller manifest ## Run end-to-end tests with a simulated Proxmox; E2E_PROXMOX_CONFIG=file uses your own, KUBERNETES=1.30 another version (docs/e2e.md)
ifdef E2E_PROXMOX_CONFIG
	$(call log,"testing end to end with the Proxmox of $(E2E_PROXMOX_CONFIG) (the duration depends on its VMs)")
	$(E2E) -v -timeout 4h ./test/e2e | grep --line-buffered -v -e '^=== '
else
	$(call log,"testing end to end with Kubernetes $(KUBERNETES) (about 4 minutes on 2 cores)")
	$(E2E) -timeout 60m ./test/e2e/...
endif

# The commit that e2e-upgrade upgrades from.
PREVIOUS ?= HEAD^

.PHONY: e2e-upgrade
e2e-upgrade: $(KUBEPLANE) $(HELM) controller ## Upgrade a release of the commit PREVIOUS (HEAD^) with a running Node
	$(call log,"building the controller of $(PREVIOUS)")
	@rm -rf $(CACHE)/previous && mkdir -p $(CACHE)/previous && git archive $(PREVIOUS) | tar -xf - -C $(CACHE)/previous
	cd $(CACHE)/previous && go build -o controller ./cmd/controller
	$(call log,"upgrading from $(PREVIOUS) (a minute)")
	PREVIOUS=$(CACHE)/previous $(E2E) -v -run TestUpgradeFromPrevious ./test/e2e | grep --line-buffered -v -e '^=== '

.PHONY: monitoring
monitoring: $(PROMETHEUS) $(HELM) ## Test alerts and dashboard with promtool
	$(call log,"testing dashboard and alerts")
	PATH=$(dir $(PROMETHEUS)):$$PATH HELM=$(HELM) go test -count=1 -run 'Alert|Dashboard' ./test/chart

.PHONY: e2e-clean
e2e-clean: ## Delete objects of aborted end-to-end tests from your own Proxmox; E2E_CLUSTER_ID=id includes those of that run
	@: $${E2E_PROXMOX_CONFIG:?e2e-clean needs E2E_PROXMOX_CONFIG=file, the description of your Proxmox}
	go test -v -count=1 -run '^$$' ./test/e2e

.PHONY: e2e-guest
e2e-guest: $(KUBEPLANE) controller guest-image$(if $(CASE),$(if $(findstring debian-12,$(CASE)),s),s) $(if $(findstring plain,$(CASE))$(findstring prepared,$(CASE)),guest-image-plain) ## Boot real Linux VMs under QEMU as Nodes and check them from inside; CASE=name,... runs these cases (docs/real-guests.md)
	$(call log,"booting real guests (without KVM 3-5 minutes for each case on 2 idle cores; logs in .cache/guest-logs)")
	@rm -rf $(CACHE)/guest-logs
	KUBEPLANE=$(KUBEPLANE) CONTROLLER=$(CONTROLLER) GUEST_IMAGES=$(CACHE)/guest GUEST_LOGS=$(CACHE)/guest-logs CASE=$(CASE) \
		go test -v -count=1 -timeout 4h ./test/guest | grep --line-buffered -v -e '^=== '

# An image without containerd and Kubernetes, for CASE=plain,prepared.
.PHONY: guest-image-plain
guest-image-plain:
	go run ./hack/guestimage --plain --out $(CACHE)/guest

# The images of all cases.
.PHONY: guest-images
guest-images:
	$(MAKE) guest-image SUITE=trixie
	$(MAKE) guest-image SUITE=bookworm

CHROMIUM ?= chromium

.PHONY: screenshots
screenshots: $(ENVTEST)/kube-apiserver ## Test the web page in headless Chromium (Debian package chromium) and write the screenshots of the documentation
	$(call log,"opening the web page in Chromium (first time: several minutes of compiling)")
	KUBEBUILDER_ASSETS=$(ENVTEST) CHROMIUM=$(CHROMIUM) SCREENSHOTS=$(CURDIR)/docs/images go test -count=1 -run TestBrowser ./cmd/kubectl-proxmox

.PHONY: chaos
chaos: ## Inject every fault into launches, deletions and prepared templates, then random faults; CHAOS_SEED=n repeats a run
	$(call log,"injecting every fault at every call and then random rounds (about 20 minutes; mostly waiting)")
	CHAOS=long go test -v -count=1 -parallel 8 -timeout 90m ./test/chaos \
		| grep --line-buffered -v -e '^=== ' -e '^    --- PASS'

# How long the soak test runs, and the seed of its decisions.
SOAK ?= 1h
SOAK_SEED ?=

.PHONY: soak
soak: controller $(KUBEPLANE) ## Run random workloads with random failures for SOAK=1h and check invariants; SOAK_SEED=n repeats a run
	$(call log,"running random workloads and failures for $(SOAK)")
	KUBEPLANE=$(KUBEPLANE) CONTROLLER=$(CONTROLLER) SOAK=$(SOAK) SOAK_SEED=$(SOAK_SEED) \
		go test -v -count=1 -timeout 0 ./test/soak | grep --line-buffered -v -e '^=== '

# Time for each fuzz target: 10 minutes for all of them.
FUZZTIME ?= 10s

.PHONY: fuzz
fuzz: ## Fuzz every parser of external text, each target for FUZZTIME (10s); RUN=pattern selects targets
	$(call log,"fuzzing each target for $(FUZZTIME) (with 10s about 10 minutes; the first time it also compiles everything with instrumentation)")
	@targets=$$(grep -rEo --include='*_test.go' --exclude-dir=.cache '^func Fuzz\w+' . | sed -E 's#^\./(.*)/[^/]+:func #\1 #' | grep -E '$(RUN)' | sort) && \
	total=$$(wc -l <<< "$$targets") count=0 failed= && \
	while read -r directory name; do \
		count=$$((count + 1)); printf '[%d/%d] %s %s: ' $$count $$total $$directory $$name; \
		if out=$$(cd $$directory && go test -run '^$$' -fuzz "^$$name\$$" -fuzztime $(FUZZTIME) . 2>&1 < /dev/null); \
		then sed -n 's/^fuzz: elapsed: //p' <<< "$$out" | tail -n 1; \
		else printf 'FAILED\n%s\n' "$$out"; failed="$$failed $$directory/$$name"; fi; \
	done <<< "$$targets"; \
	if [ -n "$$failed" ]; then echo "fuzz: failed:$$failed: commit the inputs in testdata/fuzz with the fix" >&2; exit 1; fi

# BENCH=TestBurst measures only the figures of the tests that match.
BENCH ?= .

.PHONY: bench
bench: controller $(KUBEPLANE) ## Measure calls, launches, bursts, scheduling and cost; write test/perf/figures.yaml; BENCH=TestBurst measures only one test
	$(call log,"comparing figures with test/perf/figures.yaml (about 50 minutes; mostly waiting)")
	KUBEPLANE=$(KUBEPLANE) CONTROLLER=$(CONTROLLER) PERF=long \
		PERF_FIGURES=$(CURDIR)/test/perf/figures.yaml \
		go test -v -count=1 -run '$(BENCH)' -parallel 12 -timeout 100m ./test/perf | grep --line-buffered -v -e '^=== '

CONFORMANCE := $(CACHE)/conformance$(addprefix -,$(OLDER_KUBERNETES))
SUITES ?= regression,disruption
# The figures of the performance suite depend on the load of the machine.
WORLDS ?= $(if $(findstring performance,$(SUITES)),1,2)

.PHONY: conformance
conformance: $(KUBEPLANE) $(HELM) controller ## Run Karpenter core's own suites; SPECS=representative runs a selection, SUITES=performance another suite, FOCUS=regexp some specs, FRESH=1 repeats all (docs/conformance.md)
	$(call log,"building the suites of Karpenter core (first time: 2-3 minutes)")
	@mkdir -p $(CONFORMANCE)
	go build -o $(BIN)/conformance ./test/conformance && \
	for suite in $$(echo $(SUITES) | tr , ' '); do go test -c -o $(CONFORMANCE)/$$suite.test sigs.k8s.io/karpenter/test/suites/$$suite || exit 1; done
	$(call log,"running $(SUITES) in $(WORLDS) worlds (everything takes hours; repeat the command to continue after an interruption)")
	$(BIN)/conformance --dir $(CONFORMANCE) --kubeplane $(KUBEPLANE) --controller $(CONTROLLER) --helm $(HELM) --chart $(CHART) \
		--core $$(go list -m -f '{{.Dir}}' sigs.k8s.io/karpenter) --suites $(SUITES) --worlds $(WORLDS) \
		$(if $(filter representative,$(SPECS)),--representative) $(if $(FOCUS),--focus '$(FOCUS)') $(if $(FRESH),--fresh)

##@ Code

.PHONY: generate
generate: $(HELM_DOCS) ## Generate deep copies, CRDs, the charts' copies of them, the chart's settings and the reference pages
	@$(call generate-into,.)

.PHONY: verify
verify: $(HELM_DOCS) ## Check that go.mod and generated files are up to date, without changing anything
	$(call log,"verifying go.mod and generated files (seconds; first time a minute to build controller-gen)")
	@go mod tidy -diff || { echo 'verify: go.mod or go.sum is stale: run "go mod tidy"' >&2; exit 1; }
	@stale= fresh=$$(mktemp -d) && trap 'rm -rf "$$fresh"' EXIT && \
	$(call generate-into,$$fresh) && \
	for path in $(GENERATED); do \
		diff -ru --exclude='*.go' --exclude=testdata "$$path" "$$fresh/$$path" || stale="$$stale $$path"; \
	done && \
	if [ -n "$$stale" ]; then echo "verify: generated files are stale:$$stale: run \"make generate\"" >&2; exit 1; fi

# Modules whose dependencies only some targets need.
MODULES := examples/verify test/cloudcontroller test/clients

.PHONY: verify-modules
verify-modules: ## Check that the other modules are up to date
	$(call log,"verifying the other modules (seconds; first time minutes to download their dependencies)")
	@for module in $(MODULES); do (cd $$module && go mod tidy -diff) || \
		{ echo "verify-modules: $$module/go.mod or go.sum is stale: run \"go mod tidy\" there" >&2; exit 1; }; done
	@cd kubeplane && go mod tidy -modfile=$(KUBEPLANE_MODULE).mod -diff || \
		{ echo 'verify-modules: kubeplane/$(KUBEPLANE_MODULE).mod or .sum is stale: run "go mod tidy -modfile=$(KUBEPLANE_MODULE).mod" there' >&2; exit 1; }

.PHONY: lint
lint: ## Run the linters, including the import rules
	$(call log,"linting (first time: 5 to 12 minutes to build golangci-lint and its cache; then seconds)")
	$(LINTER) run --allow-serial-runners ./...
	cd kubeplane && $(LINTER) run --allow-serial-runners ./internal/...
	cd test/clients && go vet ./...

.PHONY: vulncheck
vulncheck: ## Check the dependencies for known vulnerabilities (needs vuln.go.dev)
	$(call log,"checking for known vulnerabilities (needs vuln.go.dev; about a minute)")
	go run golang.org/x/vuln/cmd/govulncheck@$(GOVULNCHECK) ./...

.PHONY: fix
fix: ## Apply the fixes of the linters: formatting, imports, outdated idioms
	$(LINTER) run --allow-serial-runners --fix ./...

##@ Binaries

.PHONY: controller
controller: ## Build the controller into .cache/bin
	@hack/build.sh controller -o $(CONTROLLER) ./cmd/controller

.PHONY: plugin
plugin: ## Build the kubectl plugin into .cache/bin; add it to your PATH and run "kubectl proxmox"
	@hack/build.sh plugin -o $(BIN)/kubectl-proxmox ./cmd/kubectl-proxmox

.PHONY: pvesim
pvesim: ## Build the Proxmox VE simulator into .cache/bin
	go build -o $(BIN)/pvesim ./cmd/pvesim

.PHONY: cloud-controller
cloud-controller: ## Build the Proxmox cloud controller manager for the end-to-end tests into .cache/bin
	cd test/cloudcontroller && go build -ldflags '-s -w' -o $(CLOUD_CONTROLLER) \
		github.com/sergelogvinov/proxmox-cloud-controller-manager/cmd/proxmox-cloud-controller-manager

.PHONY: prometheus
prometheus: $(PROMETHEUS) ## Download Prometheus and promtool for make monitoring into .cache, from the packages of Debian or Ubuntu

$(PROMETHEUS):
	@mkdir -p $(CACHE)/prometheus
	cd $(CACHE)/prometheus && apt-get download prometheus && dpkg-deb -x prometheus_*.deb . && rm prometheus_*.deb

.PHONY: image
image: ## Build the image as VERSION into .cache/image, as an OCI layout, without container tools; ARCH=amd64 builds only one
	$(call log,"building the image (first time: a few minutes of compiling for each architecture; then 30 seconds)")
	go run ./hack/release image --out $(CACHE)/image --version $(VERSION) --arch $(ARCHES)

.PHONY: image-push
image-push: check-version image $(CRANE) ## Push the image as VERSION to the registry IMAGE
	$(CRANE) push $(CACHE)/image $(IMAGE):$(VERSION)

.PHONY: guest-image
guest-image: ## Build a Debian 13 image for real guests into .cache/guest, from Debian's packages; SUITE=bookworm builds Debian 12
	@test -z '$(OLDER_KUBERNETES)' || { echo 'guest-image: KUBERNETES is $(KUBERNETES); the kubelet of the image is $(NEWEST_KUBERNETES), which must not be newer than the control plane' >&2; exit 1; }
	$(call log,"building the guest image (first time: 10 minutes on 2 cores; then 3 minutes; seconds if nothing changed)")
	go run ./hack/guestimage --suite $(SUITE) --out $(CACHE)/guest

.PHONY: reproducible
reproducible: ## Build the image in two directories and compare every byte
	$(call log,"building the image in two directories (30 seconds)")
	@dir=$$(mktemp -d) && trap 'rm -rf "$$dir"' EXIT && mkdir "$$dir/source" && \
	tar --exclude=./.cache --exclude=./.git -cf - . | tar -xf - -C "$$dir/source" && arch=$$(go env GOARCH) && \
	go run ./hack/release image --arch $$arch --out "$$dir/one" && \
	(cd "$$dir/source" && go run ./hack/release image --arch $$arch --out "$$dir/two") && diff -r "$$dir/one" "$$dir/two"

.PHONY: charts
charts: $(HELM) ## Package both charts as VERSION into .cache/charts
	@mkdir -p $(CACHE)/charts && rm -f $(CACHE)/charts/*
	@for chart in $(CHART) $(CRD_CHART); do \
		$(HELM) package $$chart --version $(CHART_VERSION) --app-version v$(CHART_VERSION) --destination $(CACHE)/charts || exit 1; done

.PHONY: charts-push
charts-push: check-version charts ## Push both charts as VERSION to the registry CHARTS
	@for package in $(CACHE)/charts/*.tgz; do $(HELM) push $(HELM_FLAGS) $$package $(CHARTS) || exit 1; done

.PHONY: manifest
manifest: charts ## Render the charts into .cache/install.yaml, for an installation without Helm
	@$(HELM) template karpenter-provider-proxmox $(CACHE)/charts/karpenter-provider-proxmox-$(CHART_VERSION).tgz --namespace kube-system --include-crds \
		| sed -e '/^ *helm\.sh\/chart:/d' -e '/^ *app\.kubernetes\.io\/managed-by: Helm$$/d' > $(CACHE)/install.yaml

##@ Releases

# The chart VERSION without v installs the image VERSION.
.PHONY: check-version
check-version:
	@case '$(VERSION)' in v[0-9]*) ;; *) echo 'VERSION is "$(VERSION)"; it must be a tag, for example v0.13.0' >&2; exit 1 ;; esac

.PHONY: release-files
release-files: manifest ## Build the files of the release page as VERSION into .cache/release
	$(call log,"building the files of the release page (first time: minutes of compiling for each platform)")
	@go run ./hack/release notes --out $(CACHE) --version $(VERSION)
	@rm -rf $(RELEASE) && mkdir -p $(RELEASE) && cp $(CACHE)/install.yaml $(CACHE)/charts/*.tgz $(RELEASE)
	@go run ./hack/release archives --out $(RELEASE) --version $(VERSION) --arch $(ARCHES) $(if $(SYSTEMS),--os $(SYSTEMS))
	@go run ./hack/release provenance --out $(RELEASE) --version $(VERSION)
	@cd $(RELEASE) && sha256sum * > checksums.txt

.PHONY: release
release: check-version release-files image-push charts-push $(COSIGN) ## Build the files of the release page, publish image and charts as VERSION, and sign everything
	$(call log,"signing $(VERSION)")
	@VERSION=$(VERSION) CHART_VERSION=$(CHART_VERSION) ARCHES=$(ARCHES) IMAGE=$(IMAGE) CHARTS=$(CHARTS) DIR=$(RELEASE) \
		COSIGN=$(COSIGN) COSIGN_FLAGS='$(COSIGN_FLAGS)' CRANE=$(CRANE) hack/release/sign.sh

.PHONY: release-dry-run
release-dry-run: $(HELM) $(KUBEPLANE) $(CRANE) $(COSIGN) pvesim ## Publish a release to a local registry, verify its signatures, and follow the documentation with it; ARCH=amd64 and SYSTEMS=linux build less
	$(call log,"releasing to a registry on this machine (first time: 20 minutes of compiling; then minutes)")
	@VERSION=$(if $(filter dev,$(VERSION)),v0.0.1-dry-run,$(VERSION)) ARCHES=$(ARCHES) DIR=$(RELEASE) COSIGN=$(COSIGN) CRANE=$(CRANE) \
		HELM=$(HELM) KUBEPLANE=$(KUBEPLANE) PVESIM=$(BIN)/pvesim hack/release/dry-run.sh

##@ Tools

# Programs of other projects, built from their modules. Go verifies them with its checksum database.
$(CRANE):
	GOBIN=$(BIN) go install github.com/google/go-containerregistry/cmd/crane@v0.22.1

$(COSIGN):
	$(call log,"building cosign (first time: 5 minutes)")
	GOBIN=$(BIN) go install github.com/sigstore/cosign/v3/cmd/cosign@v3.1.3

# One build compiles both at the same time.
.PHONY: demo-programs
demo-programs:
	@hack/build.sh 'controller and demo' -o $(BIN)/ ./cmd/controller ./cmd/demo

.PHONY: kubeplane
kubeplane: $(KUBEPLANE) ## Build the Kubernetes control plane into .cache/bin; KUBERNETES=1.30 builds another version

$(KUBEPLANE): $(shell find kubeplane -name '*.go' ! -name '*_test.go') kubeplane/$(KUBEPLANE_MODULE).mod kubeplane/$(KUBEPLANE_MODULE).sum
	$(call log,"building the Kubernetes $(KUBERNETES) control plane (first time: 6–9 minutes on 2 cores; cached afterwards)")
	@mkdir -p $(@D)
	@cd kubeplane && flags= && \
	version=$$(go list -modfile=$(KUBEPLANE_MODULE).mod -m -f '{{.Version}}' k8s.io/kubernetes) && minor=$${version#v1.} && minor=$${minor%%.*} && \
	for package in k8s.io/component-base/version k8s.io/client-go/pkg/version; do \
		flags="$$flags -X $$package.gitVersion=$$version -X $$package.gitMajor=1 -X $$package.gitMinor=$$minor"; \
		flags="$$flags -X $$package.gitTreeState=clean"; \
	done && \
	../hack/build.sh kubeplane -modfile=$(KUBEPLANE_MODULE).mod -ldflags "-s -w$$flags" -o $@ .
	@touch $@

# Without these flags helm assumes Kubernetes 1.20.
$(HELM): go.tools.mod go.tools.sum
	$(call log,"building helm (first time: 2–3 minutes)")
	@mkdir -p $(@D)
	@go build -modfile=go.tools.mod -o $@ \
		-ldflags '-X helm.sh/helm/v3/pkg/chartutil.k8sVersionMajor=1 -X helm.sh/helm/v3/pkg/chartutil.k8sVersionMinor=36' helm.sh/helm/v3/cmd/helm
	@touch $@

$(HELM_DOCS): go.tools.mod go.tools.sum
	@mkdir -p $(@D)
	@go build -modfile=go.tools.mod -o $@ github.com/norwoodj/helm-docs/cmd/helm-docs
	@touch $@

$(ENVTEST)/kube-apiserver: $(KUBEPLANE)
	@$(KUBEPLANE) link $(ENVTEST) > /dev/null

# generate-into writes all generated files to a directory.
define generate-into
mkdir -p $(1)/api/v1alpha1 && \
$(TOOL) controller-gen object:headerFile=hack/header.go.txt crd paths=./api/v1alpha1 \
	output:object:dir=$(1)/api/v1alpha1 output:crd:dir=$(1)/api/crds && \
go run ./hack/crds $(1)/api/crds $(1)/$(CHART_CRDS) $(1)/$(CRD_CHART)/templates && \
go run ./hack/chart $(1)/$(CHART) && \
go run ./hack/docs $(1)/docs && \
$(HELM_DOCS) --chart-search-root $(CHART) --sort-values-order file --log-level warning --dry-run > $(1)/$(CHART)/README.md
endef
