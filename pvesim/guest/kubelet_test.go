// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"
)

const configHeader = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"

func settingsOf(files map[string]string) (kubeletSettings, string, error) {
	c := &console{}
	s, err := readKubeletSettings(newDisk(files), "Worker", c.printf)
	return s, c.String(), err
}

func TestKubeletConfigAndFlags(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	s, warnings, err := settingsOf(map[string]string{
		"/var/lib/kubelet/config.yaml": configHeader + "providerID: proxmox://r/1\nmaxPods: 20\nshutdownGracePeriod: 30s\n" +
			"registerWithTaints: [{key: a, effect: NoExecute}]\n",
		"/etc/default/kubelet": "# comment\nKUBELET_EXTRA_ARGS=\"--node-labels=a=b,node.kubernetes.io/instance-type=t1 --node-ip 10.0.0.9 --cloud-provider=external\"\n",
	})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect([]any{warnings, s.nodeName, s.providerID, joinAddresses(s.nodeIPs), s.externalProvider}).
		To(Equal([]any{"", "worker", "proxmox://r/1", "10.0.0.9", true}))
	g.Expect(s.labels).To(Equal(map[string]string{"a": "b", "node.kubernetes.io/instance-type": "t1"}))
	g.Expect(s.taints).To(Equal([]corev1.Taint{{Key: "a", Effect: corev1.TaintEffectNoExecute}}))
	g.Expect(s.config.ShutdownGracePeriod.Seconds()).To(BeEquivalentTo(30))
	g.Expect(s.bootstrap()).Error().To(MatchError(ContainSubstring("stat /etc/kubernetes/bootstrap-kubelet.conf: no such file")))
}

func TestKubeletFlags(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	s, _, err := settingsOf(map[string]string{
		"/opt/config.yaml":                                configHeader + "providerID: proxmox://r/1\n",
		"/etc/systemd/system/kubelet.service":             "[Service]\nExecStart=/usr/bin/kubelet --config=/opt/config.yaml \\\n  --provider-id=proxmox://r/2\n",
		"/etc/systemd/system/kubelet.service.d/10-x.conf": "[Service]\nEnvironment=\"KUBELET_EXTRA_ARGS=--hostname-override=Other\"\n",
		"/etc/sysconfig/kubelet":                          "KUBELET_EXTRA_ARGS=--register-with-taints=k=v:NoSchedule,x:NoExecute --bootstrap-kubeconfig=/opt/b.conf\n",
	})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect([]string{s.nodeName, s.providerID}).To(Equal([]string{"other", "proxmox://r/2"}))
	g.Expect(s.bootstrap()).Error().To(MatchError(ContainSubstring("stat /opt/b.conf: no such file")))
	g.Expect(s.taints).To(Equal([]corev1.Taint{
		{Key: "k", Value: "v", Effect: corev1.TaintEffectNoSchedule}, {Key: "x", Effect: corev1.TaintEffectNoExecute},
	}))
}

func TestKubeletConfigInvalid(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ config, flags, wantErr string }{
		"no config":           {"", "", "open /var/lib/kubelet/config.yaml: no such file"},
		"no kind":             {"maxPods: 3\n", "", "Object 'Kind' is missing"},
		"a duration as a map": {configHeader + "shutdownGracePeriod: {duration: 30s}\n", "", "failed to load kubelet config file"},
		"forbidden label":     {configHeader, "--node-labels=node-role.kubernetes.io/worker=x", "[node-role.kubernetes.io/worker]"},
		"bad node IP":         {configHeader, "--node-ip=10.0.0.1,10.0.0.2", `bad --node-ip "10.0.0.1,10.0.0.2": must contain either a single IP or a dual-stack pair`},
		"bad taint":           {configHeader, "--register-with-taints=a=b:Never", `invalid taint spec "a=b:Never"`},
	} {
		files := map[string]string{"/etc/default/kubelet": "KUBELET_EXTRA_ARGS=" + test.flags + "\n"}
		if test.config != "" {
			files["/var/lib/kubelet/config.yaml"] = test.config
		}
		_, _, err := settingsOf(files)
		NewWithT(t).Expect(err).To(MatchError(ContainSubstring(test.wantErr)), name)
	}
	s, warnings, err := settingsOf(map[string]string{"/var/lib/kubelet/config.yaml": configHeader + "maxPods: 7\nnoSuchField: 1\n"})
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	NewWithT(t).Expect(s.config.MaxPods).To(BeEquivalentTo(7))
	NewWithT(t).Expect(warnings).To(ContainSubstring(`unknown field "noSuchField"`))
}

func TestBootstrapKubeconfig(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	kubeconfig := func(cluster, user string) string {
		return lines("apiVersion: v1", "kind: Config", "current-context: c",
			"contexts: [{name: c, context: {cluster: k, user: u}}]",
			"clusters: [{name: k, cluster: "+cluster+"}]", "users: [{name: u, user: "+user+"}]")
	}
	const server = "server: 'https://10.0.0.1:6443'"
	for want, test := range map[string]string{
		"certificate-authority /no.crt: no such file": kubeconfig("{"+server+", certificate-authority: /no.crt}", "{token: t}"),
		"tokenFile /no: no such file":                 kubeconfig("{"+server+"}", "{tokenFile: /no}"),
		"has no server or no user":                    kubeconfig("{}", "{token: t}"),
		"no current context":                          "apiVersion: v1\nkind: Config\n",
		"unable to load kubeconfig":                   "{",
	} {
		g.Expect(readKubeconfig(newDisk(map[string]string{"/b": test}), "/b")).Error().To(MatchError(ContainSubstring(want)))
	}
	disk := newDisk(map[string]string{
		"/b": kubeconfig("{"+server+", certificate-authority: /ca.crt}", "{tokenFile: /token}"), "/ca.crt": "pem", "/token": "id.secret\n",
	})
	g.Expect(readKubeconfig(disk, "/b")).To(Equal(apiAccess{server: "https://10.0.0.1:6443", ca: []byte("pem"), token: "id.secret"}))
}

func TestAllocatable(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	k := &kubelet{guest: newGuest(newDisk(nil))}
	k.settings.config = kubeletconfig.KubeletConfiguration{
		MaxPods:        25,
		KubeReserved:   map[string]string{"cpu": "100m", "memory": "384Mi"},
		SystemReserved: map[string]string{"cpu": "10m", "memory": "64Mi", "pid": "100"},
		EvictionHard:   map[string]string{"memory.available": "100Mi", "nodefs.available": "10%"},
	}
	capacity := k.capacity()
	free := allocatable(capacity, k.settings.config)

	g.Expect(capacity.Memory().Value() / mebibyte).To(BeEquivalentTo(3914))
	g.Expect(free.Cpu().MilliValue()).To(BeEquivalentTo(1890))
	g.Expect(capacity.Memory().Value() - free.Memory().Value()).To(BeEquivalentTo((384 + 64 + 100) * mebibyte))
	g.Expect(free.Pods().Value()).To(BeEquivalentTo(25))
	storage := capacity.StorageEphemeral().Value()
	g.Expect(free.StorageEphemeral().Value()).To(BeNumerically("~", storage*9/10, 1))

	k.settings.config.KubeReserved["memory"] = "100Gi"
	free = allocatable(capacity, k.settings.config)
	g.Expect(free.Memory().IsZero()).To(BeTrue(), "never less than nothing")

	k.settings.config.PodsPerCore = 10
	k.settings.config.EvictionHard["nodefs.available"] = "100%"
	capacity = k.capacity()
	free = allocatable(capacity, k.settings.config)
	g.Expect(capacity.Pods().Value()).To(BeEquivalentTo(20), "2 cores")
	g.Expect(free.StorageEphemeral()).To(Equal(capacity.StorageEphemeral()), "100% disables the threshold")
}

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
		flags                string
		addresses            []string
		want, wantAnnotation string // the internal addresses
	}{
		"default":                         {"", []string{v6, v4, other4}, "10.0.0.9", ""},
		"default_IPv6":                    {"", []string{v6}, "2001:db8::9", ""},
		"unspecified_IPv6":                {"--node-ip=::", []string{v4, v6}, "2001:db8::9", ""},
		"one":                             {"--node-ip=10.0.0.10", []string{v4, other4}, "10.0.0.10", ""},
		"dual_stack":                      {"--node-ip=10.0.0.9,2001:db8::9", []string{v4, v6}, "10.0.0.9 2001:db8::9", ""},
		"invalid":                         {"--node-ip=none", []string{v4}, "10.0.0.9", ""},
		"external_provider":               {"--cloud-provider=external", []string{v4}, "", ""},
		"external_provider_one":           {"--cloud-provider=external --node-ip=10.0.0.9", []string{v4, v6}, "10.0.0.9", "10.0.0.9"},
		"external_provider_dual_stack":    {"--cloud-provider=external --node-ip=10.0.0.9,2001:db8::9", []string{v4, v6}, "10.0.0.9 2001:db8::9", "10.0.0.9,2001:db8::9"},
		"external_provider_unspecified":   {"--cloud-provider=external --node-ip=0.0.0.0", []string{v4, v6}, "10.0.0.9", ""},
		"external_provider_empty_node_ip": {"--cloud-provider=external --node-ip=", []string{v4}, "", ""},
	} {
		g := NewWithT(t)
		disk := newDisk(map[string]string{
			"/var/lib/kubelet/config.yaml": configHeader,
			"/etc/default/kubelet":         "KUBELET_EXTRA_ARGS=\"" + test.flags + "\"\n",
		})
		vm := withAddresses(disk, test.addresses...)
		settings, err := vm.nodeSettings(system{service: kubeletService, hostname: "worker"})
		g.Expect(err).NotTo(HaveOccurred(), name)
		node := (&kubelet{guest: vm, settings: settings}).newNode()
		g.Expect(node.Annotations["alpha.kubernetes.io/provided-node-ip"]).To(Equal(test.wantAnnotation), name)
		var want []corev1.NodeAddress
		for ip := range strings.FieldsSeq(test.want) {
			want = append(want, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: ip})
		}
		g.Expect(node.Status.Addresses).To(Equal(append(want, corev1.NodeAddress{Type: corev1.NodeHostName, Address: "worker"})), name)
	}
}

func TestNodeAddressesNotOfThisHost(t *testing.T) {
	t.Parallel()
	vm := withAddresses(newDisk(nil), "10.0.0.9/24")
	k := &kubelet{guest: vm, settings: kubeletSettings{nodeIPs: []netip.Addr{netip.MustParseAddr("10.0.0.1")}}}
	NewWithT(t).Expect(k.newNode().Status.Addresses).To(BeEmpty())
	NewWithT(t).Expect(vm.console.String()).To(ContainSubstring(`node IP: "10.0.0.1" not found in the host's network interfaces`))
}

func TestNodeAddressesAgents(t *testing.T) {
	t.Parallel()
	const agent = "server: https://k3s:6443\ntoken: t\n"
	single, dual := []string{"10.0.0.9/24"}, []string{"10.0.0.9/24", "2001:db8::9/64"}
	for name, test := range map[string]struct {
		service   service
		config    string
		addresses []string
		want      string
	}{
		"k3s":                     {k3sService, agent, single, "10.0.0.9"},
		"k3s_node_ip":             {k3sService, agent + "node-ip: 10.0.0.10\n", single, "10.0.0.10"},
		"k3s_dual_stack":          {k3sService, agent, dual, ""},
		"k3s_dual_stack_argument": {k3sService, agent + "kubelet-arg: ['node-ip=10.0.0.9,2001:db8::9']\n", dual, "10.0.0.9,2001:db8::9"},
		"talos":                   {talosService, talosMachine(""), dual, "10.0.0.9"},
		"talos_dual_stack":        {talosService, talosMachine("") + "  network: {serviceSubnets: [10.96.0.0/12, 'fd00::/112']}\n", dual, "10.0.0.9,2001:db8::9"},
	} {
		disk := newDisk(map[string]string{"/etc/rancher/k3s/config.yaml": test.config, talosConfigFile: test.config})
		s, err := withAddresses(disk, test.addresses...).nodeSettings(system{service: test.service, hostname: "host"})
		NewWithT(t).Expect(err).NotTo(HaveOccurred(), name)
		NewWithT(t).Expect(joinAddresses(s.nodeIPs)).To(Equal(test.want), name)
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

var deleted = time.Date(2026, 11, 16, 2, 0, 0, 0, time.UTC)

func seconds(n int64) time.Duration { return time.Duration(n) * time.Second }

func deletedPod(grace int64, containers ...corev1.Container) *corev1.Pod {
	pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: containers}}
	pod.DeletionGracePeriodSeconds, pod.DeletionTimestamp = new(grace), &metav1.Time{Time: deleted.Add(seconds(grace))}
	return pod
}

func TestTerminationEnd(t *testing.T) {
	t.Parallel()
	hook := func(h corev1.LifecycleHandler) corev1.Container {
		return corev1.Container{Lifecycle: &corev1.Lifecycle{PreStop: &h}}
	}
	exec := func(command ...string) corev1.Container {
		return hook(corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: command}})
	}
	sleep := corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: 20}}
	sleeping := hook(sleep)
	sleeping.Command = []string{"/bin/sh", "-c", "sleep 1000"}
	for name, c := range map[string]struct {
		containers         []corev1.Container
		grace, limit, want int64 // seconds
	}{
		"ends_on_SIGTERM":           {[]corev1.Container{{Image: "pause"}}, 30, 0, 0},
		"ignores_SIGTERM":           {[]corev1.Container{{Command: []string{"sleep"}, Args: []string{"infinity"}}}, 30, 0, 30},
		"sleep_hook":                {[]corev1.Container{hook(sleep)}, 30, 0, 20},
		"sleep_of_a_shell":          {[]corev1.Container{exec("/bin/sh", "-c", "sleep 20")}, 30, 0, 20},
		"sleep_with_a_unit":         {[]corev1.Container{exec("sleep", "1m")}, 90, 0, 60},
		"other_command":             {[]corev1.Container{exec("nginx", "-s", "quit")}, 30, 0, 0},
		"HTTP_hook":                 {[]corev1.Container{hook(corev1.LifecycleHandler{HTTPGet: &corev1.HTTPGetAction{}})}, 30, 0, 0},
		"hook_longer_than_grace":    {[]corev1.Container{exec("sleep", "300")}, 30, 0, 30},
		"hook_then_ignores_SIGTERM": {[]corev1.Container{sleeping}, 30, 0, 30},
		"hook_uses_up_grace":        {[]corev1.Container{sleeping}, 20, 0, 22},
		"slowest_container":         {[]corev1.Container{{Image: "pause"}, exec("sleep", "5"), {Image: "pause"}}, 30, 0, 5},
		"compressed":                {[]corev1.Container{exec("sleep", "20")}, 30, 1, 1},
	} {
		pod := deletedPod(c.grace, c.containers...)
		pod.Spec.InitContainers = []corev1.Container{{Command: []string{"sleep", "1000"}}} // it has ended
		NewWithT(t).Expect(terminationEnd(pod, seconds(c.limit)).Sub(deleted)).To(Equal(seconds(c.want)), "%s: the containers end after", name)
	}
}

// A second deletion with a shorter grace period ends a pod earlier, one with a longer does not
// extend it.
func TestPodStateEnd(t *testing.T) {
	t.Parallel()
	state := &podState{}
	for _, c := range []struct{ grace, want int64 }{{30, 30}, {10, 10}, {60, 10}} {
		state.pod = deletedPod(c.grace, corev1.Container{Command: []string{"sleep", "1000"}})
		NewWithT(t).Expect(state.end(0).Sub(deleted)).To(Equal(seconds(c.want)), "with a grace period of %d s the pod ends after", c.grace)
	}
}

func TestNetworkConfig(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ config, want, wantErr string }{
		"none":                    {"", "172.16.0.1", ""},
		"v2 static by MAC":        {"{version: 2, ethernets: {any: {match: {macaddress: 'bc:24:11:00:00:01'}, addresses: [10.0.0.5/24, '2001:db8::5/64']}}}", "10.0.0.5,2001:db8::5", ""},
		"v2 DHCP by MAC":          {"network: {version: 2, ethernets: {eth7: {match: {macaddress: 'BC:24:11:00:00:02'}, dhcp4: true}}}", "172.16.0.1", ""},
		"v2 both cards":           {"{version: 2, ethernets: {ens19: {addresses: [10.0.0.2/8]}, eth0: {dhcp4: true}}}", "172.16.0.1,10.0.0.2", ""},
		"v2 pattern":              {"{version: 2, ethernets: {all: {match: {name: 'e*'}, dhcp4: true}}}", "172.16.0.1,172.16.0.2", ""},
		"v2 address with options": {"{version: 2, ethernets: {eth0: {addresses: [10.0.0.2/8: {label: x}]}}}", "10.0.0.2", ""},
		"v1 as Proxmox writes it": {lines("version: 1", "config:", "  - type: physical", "    name: eth0",
			"    mac_address: 'bc:24:11:00:00:01'", "    subnets:",
			"      - {type: static, address: 10.1.2.3, netmask: 255.255.255.0, gateway: 10.1.2.1}",
			"  - {type: nameserver, address: [1.1.1.1]}"), "10.1.2.3", ""},
		"v1 DHCP":                {"{version: 1, config: [{type: physical, name: eth1, subnets: [{type: dhcp4}]}]}", "172.16.0.1", ""},
		"MAC of another guest":   {"{version: 2, ethernets: {eth0: {match: {macaddress: '00:00:00:00:00:09'}, dhcp4: true}}}", "", "no configured device matches the network cards"},
		"address without length": {"{version: 2, ethernets: {eth0: {addresses: [10.0.0.2]}}}", "", `device eth0: address "10.0.0.2" is invalid or has no prefix length`},
		"v1 bad address":         {"{version: 1, config: [{type: physical, name: eth0, subnets: [{type: static, address: x}]}]}", "", `device eth0: address "x" is invalid`},
		"no version":             {"ethernets: {}\n", "", "network-config has version 0"},
		"invalid YAML":           {"{", "", "network-config is not valid YAML"},
	} {
		g := NewWithT(t)
		vm := newGuest(newDisk(nil))
		vm.macs = []string{"BC:24:11:00:00:01", "BC:24:11:00:00:02"}
		got, err := vm.configureNetwork([]byte(test.config))
		if test.wantErr != "" {
			g.Expect(err).To(MatchError(ContainSubstring(test.wantErr)), name)
			continue
		}
		g.Expect(err).NotTo(HaveOccurred(), name)
		var addresses []netip.Addr
		for _, a := range got {
			addresses = append(addresses, a.Addr())
		}
		g.Expect(joinAddresses(addresses)).To(Equal(test.want), name)
	}
}

func TestDHCPLeases(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	r := NewRuntime(Options{})
	first := r.dhcp("aa")
	g.Expect(r.dhcp("bb")).NotTo(Equal(first))
	g.Expect(r.dhcp("aa")).To(Equal(first))
	g.Expect(following(netip.MustParseAddr("172.31.255.255"), guestNetwork)).To(Equal(netip.MustParseAddr("172.16.0.1")))
}
