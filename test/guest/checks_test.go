// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
)

// checkAll checks a Node from outside and inside.
func (n *node) checkAll(t testing.TB) {
	t.Helper()
	n.checkPods(t)
	t.Logf("guest: %s", n.run(t, `. /etc/os-release; echo "$PRETTY_NAME, Linux $(uname -r), $(cloud-init --version 2>&1), $(containerd --version), $(kubelet --version)"`))
	n.checkNode(t)
	n.checkCapacity(t)
	n.checkCloudInit(t)
	n.checkPodNetwork(t)
	n.checkKubelet(t)
	n.checkAgent(t)
	if n.c.check != nil {
		n.c.check(t, n)
	}
}

// checkNode checks identity, labels, taints and addresses of the Node.
func (n *node) checkNode(t testing.TB) {
	t.Helper()
	if n.node.Spec.ProviderID != n.claim.Status.ProviderID {
		t.Errorf("provider ID of the Node is %q, want the NodeClaim's %q", n.node.Spec.ProviderID, n.claim.Status.ProviderID)
	}
	if got := n.node.Status.NodeInfo.SystemUUID; !strings.EqualFold(got, string(n.claim.UID)) {
		t.Errorf("the Node's system UUID is %s, want the NodeClaim's UID %s", got, n.claim.UID)
	}
	for key, want := range map[string]string{
		"team": "blue", corev1.LabelHostname: n.claim.Name, corev1.LabelTopologyZone: n.vm.Host, corev1.LabelTopologyRegion: region,
		karpv1.NodePoolLabelKey: n.c.name, corev1.LabelInstanceTypeStable: instanceType, karpv1.CapacityTypeLabelKey: karpv1.CapacityTypeOnDemand,
	} {
		if got := n.node.Labels[key]; got != want {
			t.Errorf("label %s of the Node is %q, want %q", key, got, want)
		}
	}
	if taints := n.node.Spec.Taints; len(taints) != 1 || !taints[0].MatchTaint(&teamTaint) || taints[0].Value != teamTaint.Value {
		t.Errorf("the Node has taints %v, want %v", taints, teamTaint)
	}
	want := []netip.Prefix{netip.MustParsePrefix("10.10.0.0/16")}
	if n.c.bridge == staticBridge {
		want = []netip.Prefix{netip.MustParsePrefix("10.20.0.0/27"), netip.MustParsePrefix("fd10:20::/123")} // the pools' ranges
	}
	for _, ip := range internalIPs(n.node) {
		if !slices.ContainsFunc(want, func(p netip.Prefix) bool { return p.Contains(netip.MustParseAddr(ip)) }) {
			t.Errorf("the Node has address %s, want one of %v", ip, want)
		}
	}
}

// maxExtraMemory is how much more memory a Node may have than promised: the rest could not be used for pods.
const maxExtraMemory = 0.03

// checkCapacity compares what the Node has with what the NodeClaim promised to Karpenter's scheduler.
func (n *node) checkCapacity(t testing.TB) {
	t.Helper()
	for what, lists := range map[string][2]corev1.ResourceList{
		"capacity":    {n.claim.Status.Capacity, n.node.Status.Capacity},
		"allocatable": {n.claim.Status.Allocatable, n.node.Status.Allocatable},
	} {
		for name, promised := range lists[0] {
			actual := lists[1][name]
			t.Logf("%s %s: promised %s, real %s", what, name, promised.String(), actual.String())
			if actual.Cmp(promised) < 0 {
				t.Errorf("the Node's %s of %s is %s, less than the promised %s", what, name, actual.String(), promised.String())
			}
		}
	}
	promised, actual := n.claim.Status.Capacity.Memory().AsApproximateFloat64(), n.node.Status.Capacity.Memory().AsApproximateFloat64()
	if extra := actual/promised - 1; extra > maxExtraMemory {
		t.Errorf("the Node has %.1f %% more memory than promised, want at most %.0f %%", extra*100, maxExtraMemory*100)
	}
}

// checkCloudInit checks the result of cloud-init.
func (n *node) checkCloudInit(t testing.TB) {
	t.Helper()
	var result struct {
		V1 struct {
			Datasource string
			Errors     []string
		}
	}
	must(t, json.Unmarshal([]byte(n.run(t, "cat /var/lib/cloud/data/result.json")), &result))
	if len(result.V1.Errors) > 0 || !strings.Contains(result.V1.Datasource, "NoCloud") {
		t.Errorf("cloud-init reports data source %q and errors %v", result.V1.Datasource, result.V1.Errors)
	}
	if failed := n.run(t, "systemctl --failed --no-legend --plain"); failed != "" {
		t.Errorf("failed units:\n%s", failed)
	}
}

// readPods prints the cgroup of each process of a pod, an empty line, and the resolv.conf of a container. It waits until a
// container runs: with a wrong configuration, the kubelet stops it after a few seconds and restarts it later.
const readPods = `for _ in $(seq 300); do
  cgroups=$(for pid in $(pgrep -x 'pause|guest-test'); do sed -n "s/^0::/$(cat /proc/$pid/comm) /p" /proc/$pid/cgroup || true; done 2> /dev/null)
  if resolv=$(cat "/proc/$(pgrep -x guest-test | head -n1)/root/etc/resolv.conf" 2> /dev/null); then
    case "$cgroups" in *"pause /"*"guest-test /"*) printf '%s\n\n%s' "$cgroups" "$resolv"; exit;; esac
  fi
  sleep 0.2
done
echo "no container of a pod was running; processes: $cgroups" >&2
exit 1`

// checkPods checks that the processes of pods are in the cgroups of their pods, where their limits apply, and that pods with
// dnsPolicy Default get DNS servers that they can reach.
func (n *node) checkPods(t testing.TB) {
	t.Helper()
	processes, resolvConf, _ := strings.Cut(n.run(t, readPods), "\n\n")
	for line := range strings.Lines(processes) {
		if _, path, _ := strings.Cut(line, " "); !strings.HasPrefix(path, "/kubepods.slice/") {
			t.Errorf("a process of a pod is not in kubepods.slice: %s", line)
		}
	}
	for line := range strings.Lines(resolvConf) {
		if server, ok := strings.CutPrefix(strings.TrimSpace(line), "nameserver "); ok && netip.MustParseAddr(server).IsLoopback() {
			t.Errorf("a pod with dnsPolicy Default has nameserver %s, the Node's own loopback address", server)
		}
	}
}

// checkAgent checks that Proxmox shows the addresses of the Node.
func (n *node) checkAgent(t testing.TB) {
	t.Helper()
	var answer struct {
		Result []struct {
			IPs []struct {
				Address string `json:"ip-address"`
			} `json:"ip-addresses"`
		} `json:"result"`
	}
	must(t, n.proxmox.API.Call(t.Context(), "GET", fmt.Sprintf("/nodes/%s/qemu/%d/agent/network-get-interfaces", n.vm.Host, n.vm.VMID), nil, &answer))
	var shown []string
	for _, card := range answer.Result {
		for _, ip := range card.IPs {
			shown = append(shown, ip.Address)
		}
	}
	for _, ip := range internalIPs(n.node) {
		if !slices.Contains(shown, ip) {
			t.Errorf("Proxmox shows addresses %v, want %s among them", shown, ip)
		}
	}
}
