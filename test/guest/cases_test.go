// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/test/harness"
)

// testCase is a combination of image, hardware, addresses and recipe.
type testCase struct {
	name string
	// image is the cloud image of the template; Debian 13 if empty.
	image string
	// machine and bios are those of the template. Empty means the defaults of ProxmoxTemplate, q35 and SeaBIOS.
	machine, bios string
	// template is an existing template that is used instead of a new one.
	template string
	// builder means that a builder VM prepares the template.
	builder bool
	// bridge is the network of the VMs; the one with DHCP if empty.
	bridge string
	// ipv6 selects the gateway's IPv6 address for the API server.
	ipv6 bool
	// nodes is the number of Nodes; 1 if zero.
	nodes int
	// optional cases run only if CASE contains them.
	optional bool
	// change adapts the recipe's objects.
	change func(t *testing.T, e *env, kit *harness.Kit)
	// prepare runs in a registered Node, before it gets pods.
	prepare func(t testing.TB, n *node)
	// check runs additional checks.
	check func(t testing.TB, n *node)
	// failures are parts of what the checks must report, for a recipe that is known not to work.
	failures []string
	// hardStop deletes the VM without a shutdown of the guest.
	hardStop bool
	// withoutKubeletConfiguration is a recipe that does not pass the provider's kubelet configuration on.
	withoutKubeletConfiguration bool
	// reset restarts the VM without boot data.
	reset bool
}

var cases = []testCase{
	{name: "getting-started", reset: true, check: hasHardware("Q35", "BIOS")},
	{name: "pc", machine: "pc", check: hasHardware("i440FX", "BIOS")},
	{name: "ovmf", bios: "ovmf", check: hasHardware("Q35", "UEFI")},
	// Its kernel has no driver for the IDE slots of q35.
	{name: "debian-12", image: debian12, check: hasHardware("Q35", "BIOS")},
	{name: "static-ipv4", bridge: staticBridge, change: addresses(true, false)},
	{name: "static-ipv6", bridge: staticBridge, ipv6: true, change: addresses(false, true)},
	{name: "dual-stack", bridge: staticBridge, change: addresses(true, true), check: hasBothFamilies},
	{name: "cloudinit", change: proxmoxCloudInit, withoutKubeletConfiguration: true},
	{name: "extra-disk", template: templateWithDisk, check: hasExtraDisk},
	{name: "disks-and-interfaces", change: disksAndInterfaces, check: hasDisksAndInterfaces},
	{name: "virtiofs", change: virtiofsShare, check: hasShare},
	{name: "two-nodes", nodes: 2},
	// The checks must fail without what the recipe does for pods.
	{name: "old-recipe", change: oldRecipe, failures: oldRecipeFailures, hardStop: true},
	// It downloads packages from Debian, and needs twice as long as the others.
	{name: "plain", image: plainImage, change: installPackages, prepare: loadImages, optional: true},
	// It compares with plain: the packages are installed once, by a builder VM.
	{name: "prepared", image: plainImage, builder: true, change: requirePreparation, check: isPrepared, optional: true},
}

// TestGuests boots the guests of each case and checks them from inside.
func TestGuests(t *testing.T) {
	selected := selectCases(t, os.Getenv("CASE"))
	e := newEnv(t)
	for _, c := range selected {
		t.Run(c.name, func(t *testing.T) { e.run(t, c) })
	}
}

// selectCases returns the cases with the given names, which are separated by commas, or all that are not optional.
func selectCases(t *testing.T, names string) (selected []testCase) {
	t.Helper()
	if names == "" {
		return slices.DeleteFunc(slices.Clone(cases), func(c testCase) bool { return c.optional })
	}
	var all []string
	for _, c := range cases {
		all = append(all, c.name)
	}
	for name := range strings.SplitSeq(names, ",") {
		i := slices.Index(all, name)
		if i < 0 {
			t.Fatalf("CASE: found %q, want one of %s", name, strings.Join(all, ", "))
		}
		selected = append(selected, cases[i])
	}
	return selected
}

// Pools of static addresses in the network without DHCP.
var (
	pool4 = v1alpha1.AddressSource{CIDR: "10.20.0.0/16", Ranges: []string{"10.20.0.10-10.20.0.19"}, Gateway: "10.20.0.1"}
	pool6 = v1alpha1.AddressSource{CIDR: "fd10:20::/64", Ranges: []string{"fd10:20::10-fd10:20::19"}, Gateway: "fd10:20::1"}
)

// addresses assigns addresses of the pools.
func addresses(v4, v6 bool) func(*testing.T, *env, *harness.Kit) {
	return func(_ *testing.T, _ *env, kit *harness.Kit) {
		card := v1alpha1.VMInterface{Name: "net0"}
		if v4 {
			card.Address4 = &pool4
		}
		if v6 {
			card.Address6 = &pool6
		}
		kit.Class.Spec.Network = &v1alpha1.Network{Interfaces: []v1alpha1.VMInterface{card}}
	}
}

// hasHardware checks machine type and firmware.
func hasHardware(machine, firmware string) func(testing.TB, *node) {
	return func(t testing.TB, n *node) {
		t.Helper()
		n.expect(t, "machine", "cat /sys/class/dmi/id/product_name", machine)
		n.expect(t, "firmware", "if [ -d /sys/firmware/efi ]; then echo UEFI; else echo BIOS; fi", "^"+firmware+"$")
	}
}

// hasBothFamilies checks that the Node has an IPv4 and an IPv6 address.
func hasBothFamilies(t testing.TB, n *node) {
	t.Helper()
	ips := internalIPs(n.node)
	if len(ips) != 2 || strings.Contains(ips[0], ":") || !strings.Contains(ips[1], ":") {
		t.Errorf("the Node has addresses %v, want an IPv4 and an IPv6 address", ips)
	}
}

// hasExtraDisk checks that the guest has the template's second disk.
func hasExtraDisk(t testing.TB, n *node) {
	t.Helper()
	n.expect(t, "sizes of the disks", "lsblk --nodeps --noheadings --bytes --output SIZE", `(?m)^\s*2147483648$`)
}
