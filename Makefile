# weir: `make` lists the targets.
.DEFAULT_GOAL := help
.SUFFIXES:
MAKEFLAGS += --no-builtin-rules

PREFIX  ?= /usr/local
DESTDIR ?=
# Options for every cargo call. --locked: what is built has the versions of Cargo.lock, or does not build.
CARGO_FLAGS ?= --locked
# Options for the lab's demo, as DEMO_FLAGS='--out /tmp/demo'.
DEMO_FLAGS ?=
# Options for the fuzzer.
FUZZ_FLAGS ?=

# The kernel of the judges: Debian's newest, which has qdiscs in BPF.
JUDGE_KERNEL ?= trixie-backports/linux-binary-[0-9.]+(\+deb[0-9]+)?-amd64

export CARGO_FLAGS
# A fresh rustup is not in the PATH of the shell that installed it.
export PATH := $(PATH):$(HOME)/.cargo/bin

RELEASE := $(or $(CARGO_TARGET_DIR),target)/release

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: demo
demo: ## see a server drown in a flash crowd, then kept at its peak (root; 3 minutes)
	@scripts/setup build demo
	@$(MAKE) --no-print-directory build
	scripts/as-root $(RELEASE)/weir-lab demo $(DEMO_FLAGS)

.PHONY: test
test: ## every test; those with the kernel run as root, through sudo if need be
	@scripts/setup build test
	@scripts/test

.PHONY: build
build: ## release binaries in target/release
	@scripts/setup build
	scripts/release build --release --workspace

.PHONY: fuzz
fuzz: ## fuzz everything that reads foreign bytes, a minute each (FUZZ_FLAGS='--seconds 10 config')
	@scripts/setup build fuzz
	@scripts/fuzz $(FUZZ_FLAGS)

.PHONY: test-vm
test-vm: ## tests with the kernel on other kernels, of Debian and Ubuntu, in QEMU
	@scripts/setup build test-vm
	@scripts/test-vm

.PHONY: qualify
qualify: ## each mechanism once on other kernels, to the end, in QEMU
	@scripts/setup build test-vm
	@scripts/test-vm --qualify

.PHONY: judges
judges: ## the simulator of links beside ns-3, and beside the kernel's qdiscs in QEMU (half an hour)
	@scripts/setup build judges
	@$(MAKE) --no-print-directory build
	$(RELEASE)/weir-lab run judge-ns3
	scripts/lab-vm "$(JUDGE_KERNEL)" out/judge-linux judge-linux --what queue --seconds 30 --rounds 2
	scripts/lab-vm "$(JUDGE_KERNEL)" out/judge-linux-10m judge-linux --what queue-10m --seconds 20 --rounds 2
	scripts/lab-vm "$(JUDGE_KERNEL)" out/judge-linux-tcp judge-linux --what tcp --seconds 30 --rounds 4
	scripts/lab-vm "$(JUDGE_KERNEL)" out/shape-contest shape-contest --traffic real --uploads no --seconds 40 --rounds 2
	scripts/lab-vm "$(JUDGE_KERNEL)" out/shape-instructions shape-instructions --links free

.PHONY: bench
bench: ## ns per packet and the other figures of the README (root)
	@scripts/setup build
	@scripts/bench

.PHONY: lint
lint: ## formatting, lints and warnings of Rust, BPF C and shell; dependencies and circles of imports
	@scripts/setup build lint
	@scripts/lint

.PHONY: docs
docs: ## the pages of docs and experiments as a site with a search, in target/book
	@scripts/setup docs
	@scripts/pages book

.PHONY: fmt
fmt: ## format the Rust sources
	cargo fmt --all

.PHONY: install
install: ## install what `make build` made, under DESTDIR and PREFIX=/usr/local
	@scripts/install "$(DESTDIR)" "$(PREFIX)"

.PHONY: uninstall
uninstall: ## remove what `make install` installed
	@scripts/install --remove "$(DESTDIR)" "$(PREFIX)"

.PHONY: deb
deb: ## Debian package in target/deb
	@scripts/setup build deb
	@$(MAKE) --no-print-directory build
	@packaging/deb/build

.PHONY: arm64
arm64: ## Debian package for 64-bit ARM in target/arm64/deb, which a kernel of that architecture has loaded, in QEMU
	@scripts/setup build arm64
	@$(MAKE) --no-print-directory build
	@scripts/arm64 build
	@scripts/arm64 deb
	@scripts/arm64 try

.PHONY: dist
dist: ## what a release hands out, in target/dist: packages, image, SBOM, licences, checksums
	@scripts/setup build deb dist
	@$(MAKE) --no-print-directory build
	@packaging/deb/build
	@scripts/dist

.PHONY: test-deb
test-deb: ## install, run, upgrade and remove the package on Debian and Ubuntu; lintian (root; 20 minutes)
	@scripts/setup build test-deb
	@$(MAKE) --no-print-directory build
	@scripts/test-deb

.PHONY: clean
clean: ## remove everything that was built
	cargo clean
