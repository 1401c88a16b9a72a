# Herd. Every word installs what it lacks (as root) or says what to install.
#
#   make run      build, start a herd of three, copy a real tree into it and back, leave it serving (DIR=, PORT=, ONCE=1)
#   make test     all tests; what continuous integration runs
#   make bench    measure beside memcached, Redis and others (MEMCACHED=path, POGOCACHE=path, ROUNDS=7, LINES=c,d)
#   make figures  measure and draw the papers' figures again on pretend networks (ROUNDS=3, FULL=1: every cell)
#   make histories  have clients ask real nodes that stop and lose their links, and judge each answer (HISTORIES=100 NODES=3)
#   make faults   kill, stop and cut off nodes with writes under way, and look for what was acknowledged (FAULTS=200 SEED=1 ETCD=path)
#   make failover  measure how long writes stay away when nodes fall, and what fails (ROUNDS=30 IDLE_MINUTES=10)
#   make check    measure whether the lab's pretend networks do what they say
#   make fuzz     fuzz every parser and session (FUZZ_SECONDS=600 of CPU each, FUZZ_JOBS=1 at once)
#   make bugs     plant bugs, one at a time, and have the simulator find each
#   make shuttle  run the store's threads in many orders under a model checker (SCHEDULES=100000 of each kind: minutes)
#   make lint     format, clippy, house rules, and a check for the other systems whose targets are installed
#   make install  PREFIX=/usr/local DESTDIR=

PREFIX ?= /usr/local
PORT ?= 7700
ROUNDS ?= 7
LINES ?= c,d,e,f,g
FUZZ_SECONDS ?= 600
IDLE_MINUTES ?= 10
SCHEDULES ?= 100000
FUZZ_JOBS ?= 1
HISTORIES ?= 100
NODES ?= 3
FAULTS ?= 200
SEED ?= 1
HERD := target/release/herd
# Where the crates others build on must check (docs/portability.md).
TARGETS := aarch64-unknown-linux-gnu aarch64-apple-darwin x86_64-unknown-freebsd
PORTABLE := -p herd-core -p herd-store -p herd-net -p herd-client --features herd-client/async

.PHONY: help run test bench figures histories faults failover check fuzz bugs shuttle lint install build

help:
	@sed -n 's/^#   //p' Makefile

build:
	@scripts/toolchain
	cargo build --release --locked

run: build
	@cargo xtask tour

test:
	@scripts/toolchain
	@scripts/need memcached=memcached redis-server=redis-server iperf3=iperf3 libmemcached-tools=memccapable curl=curl \
	    nginx-light=nginx etcd-server=etcd iproute2=ip nftables=nft iputils-ping=ping golang-go=go python3-venv="python3 -m ensurepip --version"
	cargo xtask test

bench: build
	@scripts/need memcached=memcached redis-server=redis-server iperf3=iperf3 librsvg2-bin=rsvg-convert
	target/release/herd-lab bench --herd $(HERD) --rounds $(ROUNDS) --lines $(LINES) \
	    $(if $(MEMCACHED),--memcached $(MEMCACHED)) $(if $(POGOCACHE),--pogocache $(POGOCACHE))

figures: build
	@scripts/need memcached=memcached redis-server=redis-server nginx-light=nginx iproute2=ip nftables=nft \
	    iperf3=iperf3 librsvg2-bin=rsvg-convert
	@for figure in hoc-throughput hoc-speedup hoc-mixed adhoc-spread adhoc-array herd-elastic; do target/release/herd-lab figure $$figure --herd $(HERD) \
	    --rounds $(if $(filter file,$(origin ROUNDS)),3,$(ROUNDS)) $(if $(FULL),--full) || exit 1; done

histories: build
	@scripts/need golang-go=go iproute2=ip nftables=nft
	cd lab/histories && go build -mod=readonly -buildvcs=false -trimpath -o ../../target/release/herd-histories .
	target/release/herd-lab histories --herd $(HERD) --nodes $(NODES) --histories $(HISTORIES)

faults: build
	@scripts/need golang-go=go iproute2=ip nftables=nft redis-server=redis-server
	cd lab/histories && go build -mod=readonly -buildvcs=false -trimpath -o ../../target/release/herd-histories .
	target/release/herd-lab faults --herd $(HERD) --faults $(FAULTS) --seed $(SEED) --beside $(if $(ETCD),--etcd $(ETCD))

failover: build
	@scripts/need iproute2=ip nftables=nft
	target/release/herd-lab failover --herd $(HERD) --rounds $(if $(filter file,$(origin ROUNDS)),30,$(ROUNDS)) \
	    --idle-minutes $(IDLE_MINUTES)

check: build
	@scripts/need iproute2=ip nftables=nft iperf3=iperf3
	target/release/herd-lab check

# One process a target, so that each has its own watchdog and its own count of CPU time.
fuzz:
	@scripts/toolchain
	cargo build --release --locked -p herd-fuzz
	@if cargo fuzz --version >/dev/null 2>&1 && cargo +nightly --version >/dev/null 2>&1; then \
	    echo "fuzz: libFuzzer"; scripts/libfuzzer $(FUZZ_SECONDS); \
	else \
	    echo "fuzz: the built-in driver (cargo-fuzz with a nightly compiler would give coverage-guided libFuzzer)"; fi
	@target/release/herd-fuzz --list | xargs -P $(FUZZ_JOBS) -n 1 target/release/herd-fuzz --seconds $(FUZZ_SECONDS)

# A target directory of its own, as below. Assertions of a debug build are on: some bugs show there first.
bugs:
	@scripts/toolchain
	RUSTFLAGS=--cfg=herd_bugs CARGO_TARGET_DIR=target/bugs CARGO_PROFILE_DEV_OPT_LEVEL=1 \
	    cargo run --locked -p herd-sim -- bugs

# A target directory of its own, since all it builds is built with another configuration.
shuttle:
	@scripts/toolchain
	SCHEDULES=$(SCHEDULES) RUSTFLAGS=--cfg=herd_shuttle CARGO_TARGET_DIR=target/shuttle \
	    cargo test --release --locked -p herd-store model

lint:
	@scripts/toolchain
	cargo fmt --all --check
	cargo clippy --release --workspace --all-targets -- -D warnings
	cargo xtask tidy
	@for target in $(TARGETS); do if rustup target list --installed 2>/dev/null | grep -qx $$target; then \
	    echo "checking for $$target"; cargo check --locked --target $$target $(PORTABLE) || exit 1; \
	else echo "not checked: $$target (rustup target add $$target)"; fi; done

install: build
	install -s -D -m 755 $(HERD) $(DESTDIR)$(PREFIX)/bin/herd
	install -d $(DESTDIR)$(PREFIX)/share/man/man1 $(DESTDIR)$(PREFIX)/share/bash-completion/completions \
	    $(DESTDIR)$(PREFIX)/share/zsh/site-functions $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d
	$(HERD) man > $(DESTDIR)$(PREFIX)/share/man/man1/herd.1
	$(HERD) completion bash > $(DESTDIR)$(PREFIX)/share/bash-completion/completions/herd
	$(HERD) completion zsh > $(DESTDIR)$(PREFIX)/share/zsh/site-functions/_herd
	$(HERD) completion fish > $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/herd.fish
