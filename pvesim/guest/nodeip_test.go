// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"net/netip"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
)

// withAddresses returns a guest with these addresses on its first network card.
func withAddresses(disk *memoryDisk, addresses ...string) *guest {
	g := newGuest(disk)
	for _, text := range addresses {
		g.addresses = append(g.addresses, address{Prefix: netip.MustParsePrefix(text)})
	}
	return g
}

func TestNodeAddresses(t *testing.T) {
	t.Parallel()
	const v4, other4, v6 = "10.0.0.9/24", "10.0.0.10/24", "2001:db8::9/64"
	for name, test := range map[string]struct {
		flags     string
		addresses []string
		// want are the internal addresses, separated by commas.
		want, wantAnnotation string
	}{
		"default":                         {"", []string{v6, v4, other4}, "10.0.0.9", ""},
		"default_IPv6":                    {"", []string{v6}, "2001:db8::9", ""},
		"unspecified_IPv6":                {"--node-ip=::", []string{v4, v6}, "2001:db8::9", ""},
		"one":                             {"--node-ip=10.0.0.10", []string{v4, other4}, "10.0.0.10", ""},
		"dual_stack":                      {"--node-ip=10.0.0.9,2001:db8::9", []string{v4, v6}, "10.0.0.9,2001:db8::9", ""},
		"invalid":                         {"--node-ip=none", []string{v4}, "10.0.0.9", ""},
		"external_provider":               {"--cloud-provider=external", []string{v4}, "", ""},
		"external_provider_one":           {"--cloud-provider=external --node-ip=10.0.0.9", []string{v4, v6}, "10.0.0.9", "10.0.0.9"},
		"external_provider_dual_stack":    {"--cloud-provider=external --node-ip=10.0.0.9,2001:db8::9", []string{v4, v6}, "10.0.0.9,2001:db8::9", "10.0.0.9,2001:db8::9"},
		"external_provider_unspecified":   {"--cloud-provider=external --node-ip=0.0.0.0", []string{v4, v6}, "10.0.0.9", ""},
		"external_provider_empty_node_ip": {"--cloud-provider=external --node-ip=", []string{v4}, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := NewWithT(t)
			disk := newDisk(map[string]string{
				"/var/lib/kubelet/config.yaml": configHeader,
				"/etc/default/kubelet":         "KUBELET_EXTRA_ARGS=\"" + test.flags + "\"\n",
			})
			vm := withAddresses(disk, test.addresses...)
			settings, err := vm.nodeSettings(system{service: kubeletService, hostname: "worker"})
			g.Expect(err).NotTo(HaveOccurred())
			node := (&kubelet{guest: vm, settings: settings}).newNode()
			g.Expect(node.Annotations["alpha.kubernetes.io/provided-node-ip"]).To(Equal(test.wantAnnotation))
			g.Expect(internalIPs(node)).To(Equal(test.want))
			g.Expect(node.Status.Addresses).To(ContainElement(corev1.NodeAddress{Type: corev1.NodeHostName, Address: "worker"}))
		})
	}
}

// internalIPs returns the internal addresses of a Node, separated by commas.
func internalIPs(node *corev1.Node) string {
	var out []string
	for _, a := range node.Status.Addresses {
		if a.Type == corev1.NodeInternalIP {
			out = append(out, a.Address)
		}
	}
	return strings.Join(out, ",")
}

func TestNodeAddressesNotOfThisHost(t *testing.T) {
	t.Parallel()
	vm := withAddresses(newDisk(nil), "10.0.0.9/24")
	k := &kubelet{guest: vm, settings: kubeletSettings{nodeIPs: []netip.Addr{netip.MustParseAddr("10.0.0.1")}}}
	NewWithT(t).Expect(k.newNode().Status.Addresses).To(BeEmpty())
	NewWithT(t).Expect(consoleText(vm)).To(ContainSubstring(`node IP: "10.0.0.1" not found in the host's network interfaces`))
}

func TestNodeAddressesAgents(t *testing.T) {
	t.Parallel()
	const agent = "server: https://k3s:6443\ntoken: t\n"
	for name, test := range map[string]struct {
		service   service
		config    string
		addresses []string
		want      string
	}{
		"k3s":            {k3sService, agent, []string{"10.0.0.9/24"}, "10.0.0.9"},
		"k3s_node_ip":    {k3sService, agent + "node-ip: 10.0.0.10\n", []string{"10.0.0.9/24"}, "10.0.0.10"},
		"k3s_dual_stack": {k3sService, agent, []string{"10.0.0.9/24", "2001:db8::9/64"}, ""},
		"k3s_dual_stack_argument": {k3sService, agent + "kubelet-arg: ['node-ip=10.0.0.9,2001:db8::9']\n",
			[]string{"10.0.0.9/24", "2001:db8::9/64"}, "10.0.0.9,2001:db8::9"},
		"talos":            {talosService, talosMachine(""), []string{"10.0.0.9/24", "2001:db8::9/64"}, "10.0.0.9"},
		"talos_dual_stack": {talosService, talosMachine("") + "  network: {serviceSubnets: [10.96.0.0/12, 'fd00::/112']}\n", []string{"10.0.0.9/24", "2001:db8::9/64"}, "10.0.0.9,2001:db8::9"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			disk := newDisk(map[string]string{"/etc/rancher/k3s/config.yaml": test.config, talosConfigFile: test.config})
			s, err := withAddresses(disk, test.addresses...).nodeSettings(system{service: test.service, hostname: "host"})
			NewWithT(t).Expect(err).NotTo(HaveOccurred())
			NewWithT(t).Expect(joinAddresses(s.nodeIPs)).To(Equal(test.want))
		})
	}
}

func TestKubeletStartPre(t *testing.T) {
	t.Parallel()
	disk := newDisk(map[string]string{
		"/var/lib/kubelet/config.yaml":                       configHeader,
		"/etc/systemd/system/kubelet.service.d/20-node.conf": "[Service]\nExecStartPre=-/usr/local/bin/node-ip\n",
		"/usr/local/bin/node-ip": lines("#!/bin/sh", `echo "KUBELET_KUBEADM_ARGS=--node-ip=$(`,
			`  { ip -4 route get 192.0.2.1; ip -6 route get 2001:db8::1; } 2>/dev/null | sed -n 's/.* src \([^ ]*\).*/\1/p'`,
			`)" > /var/lib/kubelet/kubeadm-flags.env`),
	})
	for _, addresses := range [][]string{{"2001:db8::9/64", "10.0.0.9/24"}, {"10.0.0.10/24"}} {
		vm := withAddresses(disk, addresses...)
		s, err := vm.nodeSettings(system{service: kubeletService, hostname: "worker"})
		NewWithT(t).Expect(err).NotTo(HaveOccurred())
		NewWithT(t).Expect(s.nodeIPs).To(Equal(vm.firstAddresses(ipv4, ipv6)), "the address may change at each start")
	}
}
