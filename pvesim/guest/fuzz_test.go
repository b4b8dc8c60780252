// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"bytes"
	"maps"
	"path"
	"slices"
	"strings"
	"testing"
)

// maxFuzzDisk limits what boot data of a few kilobytes may write to the disk.
const maxFuzzDisk = 64 << 20

// A guest boots with any boot data: it writes only absolute paths and a bounded amount, and
// reads the settings of its kubelet or reports why it cannot.
func FuzzBootData(f *testing.F) {
	for _, userData := range []string{
		"#cloud-config\nhostname: a.b\nwrite_files:\n- {path: /etc/x, content: aGk=, encoding: b64, permissions: '0600', append: true}\nruncmd:\n- [systemctl, enable, --now, kubelet]\n",
		"#cloud-config\nwrite_files:\n- {path: /etc/rancher/k3s/config.yaml, content: \"server: https://a:6443\\ntoken: abcdef.0123456789abcdef\\nkubelet-arg: [max-pods=10]\\n\"}\nruncmd: [systemctl start k3s-agent]\n",
		"#cloud-config\nwrite_files:\n- {path: /etc/default/kubelet, content: 'KUBELET_EXTRA_ARGS=\"--node-ip=10.0.0.1,::1 --node-labels=a=b --register-with-taints=a=b:NoSchedule\"'}\n",
		"#cloud-config\nwrite_files:\n- {path: /var/lib/kubelet/config.yaml, content: \"apiVersion: kubelet.config.k8s.io/v1beta1\\nkind: KubeletConfiguration\\nmaxPods: 5\\n\"}\n",
		"#!/bin/sh\necho \"$(cat /etc/hostname) $(sed 's/a/b/' /sys/class/dmi/id/product_serial)\" >> /etc/x; mv /etc/x /etc/y; touch ../z\nsh -c 'systemctl start kubelet'\n",
		`{"ignition":{"version":"3.4.0"},"storage":{"files":[{"path":"/etc/hostname","contents":{"source":"data:,worker"}}]},"systemd":{"units":[{"name":"kubelet.service","enabled":true,"contents":"[Service]\nExecStart=/bin/kubelet\n"}]}}`,
		"version: v1alpha1\nmachine: {type: worker, token: a, ca: {crt: YQ==}, kubelet: {extraArgs: {node-labels: a=b}}, network: {interfaces: [{interface: eth0, addresses: [10.0.0.2/24]}]}}\ncluster: {token: a.b, ca: {crt: YQ==}, controlPlane: {endpoint: 'https://a'}}\n",
	} {
		f.Add([]byte(userData), []byte("#cloud-config\nruncmd: [a]\n"), []byte("instance-id: i\nlocal-hostname: h\n"))
	}
	f.Fuzz(func(t *testing.T, userData, vendorData, metaData []byte) {
		disk := newDisk(nil)
		vm := newGuest(disk)
		vm.bootFrom(seed{userData: userData, vendorData: vendorData, metaData: metaData}, true)
		for _, s := range []service{kubeletService, k3sService, rke2Service, talosService} {
			if settings, err := vm.nodeSettings(system{service: s, hostname: "h"}); err == nil && len(settings.nodeIPs) > 2 {
				t.Errorf("a kubelet started with the addresses %v", settings.nodeIPs)
			}
		}
		written := 0
		for _, name := range disk.Names() {
			written += len(disk.text(name))
			if !path.IsAbs(name) || path.Clean(name) != name {
				t.Errorf("the file %q was written", name)
			}
		}
		if written > maxFuzzDisk {
			t.Errorf("%d bytes of boot data wrote %d bytes", len(userData)+len(vendorData), written)
		}
	})
}

// A network config of either version is read as valid addresses, or refused.
func FuzzNetworkConfig(f *testing.F) {
	f.Add([]byte("version: 2\nethernets:\n  eth0: {match: {macaddress: 'bc:24:11:00:00:01'}, dhcp4: true, addresses: [10.0.0.2/24, {'2001:db8::2/64': {lifetime: 0}}]}\n"))
	f.Add([]byte("network:\n  version: 1\n  config:\n  - {type: physical, name: ens18, subnets: [{type: dhcp}, {type: static, address: 10.0.0.2, netmask: 255.255.255.0}, {type: static6, address: 'fe80::1%eth0'}]}\n"))
	f.Add([]byte("network: &a {network: *a}\n"))
	f.Add([]byte("version: 2\nethernets: {'enp99999999999999999999s18': {addresses: [[]]}, '[': {}}\n"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		vm := newGuest(newDisk(nil))
		addresses, err := vm.configureNetwork(raw)
		if err == nil && len(addresses) == 0 {
			t.Error("no address and no error")
		}
		for _, a := range addresses {
			if !a.IsValid() || a.card < 0 || a.card >= len(vm.macs) {
				t.Errorf("the address %s of card %d was read", a.Prefix, a.card)
			}
		}
	})
}

// Flags of a kubelet are read again from what they mean.
func FuzzKubeletFlags(f *testing.F) {
	f.Add("a=b,karpenter.sh/nodepool=default", "karpenter.sh/unregistered=:NoExecute,a:NoSchedule", "10.0.0.1,fd00::1")
	f.Add("kubernetes.io/x=y, ,=", "a=b=c:NoSchedule", "0.0.0.0,::")
	f.Add("node.kubernetes.io/instance-type=t1", "", "fe80::1%eth0")
	f.Fuzz(func(t *testing.T, labels, taints, ips string) {
		if read, err := parseNodeLabels(labels); err == nil {
			var pairs []string
			for _, key := range slices.Sorted(maps.Keys(read)) {
				pairs = append(pairs, key+"="+read[key])
			}
			if again, err := parseNodeLabels(strings.Join(pairs, ",")); err != nil || !maps.Equal(read, again) {
				t.Errorf("%q was read as %q, then as %q (%v)", labels, read, again, err)
			}
		}
		if read, err := parseTaints(taints); err == nil {
			var words []string
			for _, taint := range read {
				words = append(words, taint.Key+"="+taint.Value+":"+string(taint.Effect))
			}
			if again, err := parseTaints(strings.Join(words, ",")); err != nil || !slices.Equal(read, again) {
				t.Errorf("%q was read as %v, then as %v (%v)", taints, read, again, err)
			}
		}
		if read, err := parseNodeIPs(ips); err == nil {
			if again, err := parseNodeIPs(joinAddresses(read)); err != nil || !slices.Equal(read, again) {
				t.Errorf("%q was read as %v, then as %v (%v)", ips, read, again, err)
			}
		}
	})
}

// A corrupt drive is an unreadable drive.
func FuzzReadSeed(f *testing.F) {
	image := seedWith(f, "i-1", "#cloud-config\n")
	f.Add(image, 16*2048+158, byte(0xff))
	f.Add(image[:17*2048], 0, byte(0))
	f.Add(bytes.Repeat([]byte{0xff}, 20*2048), 16*2048+1, byte('C'))
	f.Fuzz(func(_ *testing.T, image []byte, at int, value byte) {
		image = bytes.Clone(image)
		if at >= 0 && at < len(image) {
			image[at] = value // a mutation in the middle of a large input is otherwise rare
		}
		findSeed([][]byte{image}, &console{})
	})
}
