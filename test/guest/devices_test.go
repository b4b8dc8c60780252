// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"strings"
	"testing"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/test/harness"
)

// disksAndInterfaces adds disks on two buses, one of them for the kubelet, and a second interface with a static address and
// a route.
func disksAndInterfaces(_ *testing.T, _ *env, kit *harness.Kit) {
	kit.Class.Spec.Disks = []v1alpha1.Disk{
		{Name: "kubelet", Size: "6Gi", MountPath: "/var/lib/kubelet"},
		{Name: "scratch", Size: "1Gi", Bus: v1alpha1.DiskBusVirtIO, MountPath: "/mnt/scratch"},
	}
	second := v1alpha1.VMInterface{Name: "net1", Address4: &v1alpha1.AddressSource{CIDR: pool4.CIDR, Ranges: pool4.Ranges}}
	second.Bridge, second.MTU, second.DefaultRoute = staticBridge, new(int32(1400)), new(false)
	second.Routes = []v1alpha1.InterfaceRoute{{To: "10.99.0.0/16", Via: pool4.Gateway}}
	kit.Class.Spec.Network = &v1alpha1.Network{Interfaces: []v1alpha1.VMInterface{{Name: "net0"}, second}}
}

// hasDisksAndInterfaces checks what the guest made of them.
func hasDisksAndInterfaces(t testing.TB, n *node) {
	t.Helper()
	for path, want := range map[string]string{"/var/lib/kubelet": "6442450944 ext4", "/mnt/scratch": "1073741824 ext4"} {
		if found := n.run(t, `lsblk --nodeps --noheadings --bytes --raw --output SIZE,FSTYPE "$(findmnt --noheadings --output SOURCE `+path+`)"`); found != want {
			t.Errorf("%s is on a disk with %q, want %q", path, found, want)
		}
	}
	if address := n.run(t, "ip -brief -4 address show dev eth1"); !strings.Contains(address, " 10.20.0.1") || !strings.Contains(address, "/16") {
		t.Errorf("eth1 has %q, want an address of %v", address, pool4.Ranges)
	}
	if mtu := n.run(t, "cat /sys/class/net/eth1/mtu"); mtu != "1400" {
		t.Errorf("eth1 has MTU %s, want 1400", mtu)
	}
	if route := n.run(t, "ip route get 10.99.0.1"); !strings.Contains(route, "via 10.20.0.1 dev eth1") {
		t.Errorf("the route to 10.99.0.1 is %q, want the one of eth1", route)
	}
	if routes := n.run(t, "ip route show default"); strings.Contains(routes, "eth1") || !strings.Contains(routes, "eth0") {
		t.Errorf("the default routes are %q, want one of eth0", routes)
	}
	server, err := n.guests.Server(n.plane, staticBridge, false)
	must(t, err)
	n.run(t, "bash -c 'exec 3<> /dev/tcp/"+strings.Replace(strings.TrimPrefix(server, "https://"), ":", "/", 1)+"'")
}
