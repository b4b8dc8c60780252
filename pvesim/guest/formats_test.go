// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
)

const (
	joinToken     = "abcdef.0123456789abcdef"
	kubeletConfig = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nproviderID: proxmox://region/100\n"
)

var clusterCA = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("root")})

// reboot returns the guest of the next boot of the same machine, with these drives.
func reboot(vm *guest, images ...[]byte) *guest {
	again := *vm
	again.drives = func() [][]byte { return images }
	return &again
}

func ignitionConfig(files map[string]string, units ...string) string {
	var list []string
	for name, content := range files {
		source := "data:;base64," + base64.StdEncoding.EncodeToString([]byte(content))
		if strings.HasPrefix(content, "https:") {
			source = content
		}
		list = append(list, fmt.Sprintf(`{"path":%q,"contents":{"source":%q}}`, name, source))
	}
	return fmt.Sprintf(`{"ignition":{"version":"3.4.0"},"storage":{"files":[%s]},"systemd":{"units":[%s]}}`, strings.Join(list, ","), strings.Join(units, ","))
}

const kubeletUnit = `{"name":"kubelet.service","enabled":true,"contents":"[Service]\nExecStart=/opt/bin/kubelet \\\n  --config=/etc/kubelet.yaml --node-labels=a=b\n"}`

func TestIgnitionRunsOnce(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	vm := newGuest(newDisk(nil), seedWith(t, "i-1", ignitionConfig(map[string]string{
		"/etc/hostname":                     "Flat-1\n",
		"/etc/systemd/network/00-a.network": "[Match]\nMACAddress=bc:24:11:00:00:01\n[Network]\nDHCP=no\nAddress=10.1.2.3/24\nAddress=2001:db8::3/64\n",
		"/etc/kubelet.yaml":                 kubeletConfig,
		"/opt/bin/kubelet":                  "https://example.com/kubelet",
	}, kubeletUnit)))

	for _, boot := range []*guest{vm, reboot(vm), reboot(vm, seedWith(t, "i-2", ignitionConfig(map[string]string{"/etc/hostname": "other"})))} {
		s, ok := boot.configure()
		g.Expect(ok).To(BeTrue())
		g.Expect(s.hostname).To(Equal("flat-1"))
		g.Expect(s.service).To(Equal(kubeletService))
		g.Expect(fmt.Sprint(s.addresses)).To(ContainSubstring("10.1.2.3/24"))
		settings, err := boot.nodeSettings(s)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(settings.providerID).To(Equal("proxmox://region/100"))
		g.Expect(settings.labels).To(Equal(map[string]string{"a": "b"}))
	}
}

func TestIgnitionFromVendorData(t *testing.T) {
	t.Parallel()
	vm := newGuest(newDisk(nil), newSeed(t, "cidata", map[string]string{
		"user-data": "#cloud-config\n", "meta-data": "instance-id: i-1\n",
		"vendor-data": ignitionConfig(map[string]string{"/etc/hostname": "vendor", "/etc/NetworkManager/system-connections/a.nmconnection": "[ethernet]\nmac-address=BC:24:11:00:00:01\n[ipv4]\nmethod=manual\naddress1=10.1.2.4/24,10.1.2.1\n"}),
	}))
	s, ok := vm.configure()
	NewWithT(t).Expect(ok).To(BeTrue())
	NewWithT(t).Expect(s.hostname).To(Equal("vendor"))
	NewWithT(t).Expect(s.service).To(BeEmpty())
	NewWithT(t).Expect(fmt.Sprint(s.addresses)).To(ContainSubstring("10.1.2.4/24"))
}

func TestIgnitionInvalid(t *testing.T) {
	t.Parallel()
	for want, config := range map[string]string{
		"failed to parse config":             `{"ignition":{"version":"3.4.0"},"storage":{"files":[{"path":"relative"}]}}`,
		"failed to execute /opt/bin/kubelet": ignitionConfig(map[string]string{"/etc/hostname": "a"}, kubeletUnit),
		"failed to execute kubelet":          ignitionConfig(nil, `{"name":"kubelet.service","enabled":true}`),
		"":                                   ignitionConfig(nil, `{"name":"kubelet.service","enabled":true,"mask":true}`),
	} {
		vm := newGuest(newDisk(nil), seedWith(t, "i-1", config))
		s, _ := vm.configure()
		NewWithT(t).Expect(s.service).To(BeEmpty())
		NewWithT(t).Expect(vm.console.String()).To(ContainSubstring(want))
	}
}

func talosMachine(extra string) string {
	return lines("version: v1alpha1", "machine:", "  type: worker", "  token: t", "  ca: {crt: Y2E=}", "  network:", "    hostname: Tal-1",
		"    interfaces: [{deviceSelector: {hardwareAddr: 'bc:24:11:00:00:01'}, addresses: [10.1.2.5/24]}]",
		"  kubelet:", "    extraArgs: {node-labels: a=b}", "    extraConfig: {providerID: 'proxmox://region/100'"+extra+"}",
		"cluster:", "  controlPlane: {endpoint: 'https://api:6443'}", "  token: "+joinToken, "  ca: {crt: "+base64.StdEncoding.EncodeToString(clusterCA)+"}")
}

func TestTalosKeepsItsConfig(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	vm := newGuest(newDisk(nil), seedWith(t, "i-1", talosMachine("")))
	for _, boot := range []*guest{vm, reboot(vm), reboot(vm, seedWith(t, "i-2", strings.Replace(talosMachine(""), "Tal-1", "other", 1)))} {
		s, ok := boot.configure()
		g.Expect(ok).To(BeTrue())
		g.Expect(s.hostname).To(Equal("tal-1"))
		g.Expect(fmt.Sprint(s.addresses)).To(ContainSubstring("10.1.2.5/24"))
		settings, err := boot.nodeSettings(s)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(settings.providerID).To(Equal("proxmox://region/100"))
		g.Expect(settings.labels).To(HaveKeyWithValue("a", "b"))
		g.Expect(settings.bootstrap()).To(Equal(apiAccess{server: "https://api:6443", ca: clusterCA, token: joinToken}))
	}
}

func TestTalosMaintenanceMode(t *testing.T) {
	t.Parallel()
	for want, config := range map[string]string{
		`kubelet configuration field "kind" can't be overridden`: talosMachine(", kind: KubeletConfiguration"),
		"lacks cluster.token":                 strings.Replace(talosMachine(""), "  token: "+joinToken+"\n", "", 1),
		"no document with machine":            "apiVersion: v1alpha1\nkind: HostnameConfig\n",
		"failed to decode the machine config": "machine: [\n",
	} {
		vm := newGuest(newDisk(nil), seedWith(t, "i-1", config))
		_, ok := vm.configure()
		NewWithT(t).Expect(ok).To(BeFalse())
		NewWithT(t).Expect(vm.console.String()).To(And(ContainSubstring("maintenance mode"), ContainSubstring(want)))
	}
}

func agentGuest(config string) *guest {
	vm := newGuest(newDisk(map[string]string{"/etc/rancher/k3s/config.yaml": config, "/k.yaml": kubeletConfig}))
	vm.runtime.options.CACerts = clusterCA
	return vm
}

func TestRancherAgents(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	hash := fmt.Sprintf("%x", sha256.Sum256(clusterCA))
	vm := agentGuest(lines("server: https://k3s:6443", "token: K10"+hash+"::"+joinToken, "node-name: Agent-1",
		"node-label: [a=b, c=d]", "node-taint: ['x=y:NoSchedule']", "kubelet-arg: [config=/k.yaml, cloud-provider=external]"))
	s, err := vm.nodeSettings(system{service: k3sService, hostname: "host"})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect([]any{s.nodeName, s.providerID, s.externalProvider}).To(Equal([]any{"agent-1", "proxmox://region/100", true}))
	g.Expect(s.labels).To(Equal(map[string]string{"a": "b", "c": "d"}))
	g.Expect(s.taints).To(Equal([]corev1.Taint{{Key: "x", Value: "y", Effect: corev1.TaintEffectNoSchedule}}))
	g.Expect(s.bootstrap()).To(Equal(apiAccess{server: "https://k3s:6443", ca: clusterCA, token: joinToken}))

	plain, err := agentGuest("server: https://k3s:6443\ntoken: " + joinToken).nodeSettings(system{service: k3sService, hostname: "host"})
	g.Expect(err).NotTo(HaveOccurred(), "an agent needs no config file of a kubelet")
	g.Expect(plain.bootstrap()).Error().NotTo(HaveOccurred())
}

func TestRancherAgentsInvalid(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	for token, want := range map[string]string{
		"K1000::" + joinToken: "token CA hash does not match the Cluster CA certificate hash",
		"K10abc":              "invalid token format",
		"hunter2":             "the token is not a bootstrap token",
	} {
		s, err := agentGuest("server: https://k3s:6443\ntoken: " + token).nodeSettings(system{service: k3sService})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(s.bootstrap()).Error().To(MatchError(ContainSubstring(want)))
	}
	g.Expect(agentGuest("server: https://k3s:6443").nodeSettings(system{service: k3sService})).Error().
		To(MatchError(ContainSubstring("--server and --token are required")))
	g.Expect(agentGuest("").nodeSettings(system{service: rke2Service})).Error().To(MatchError(ContainSubstring("rke2 has no configuration")))

	intermediate := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("intermediate")})
	g.Expect(caHash(append(intermediate, clusterCA...))).To(Equal(fmt.Sprintf("%x", sha256.Sum256([]byte("root")))))
	g.Expect(caHash([]byte("none"))).Error().To(MatchError(ContainSubstring("no certificates")))
}
