// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"net/netip"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
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
	g.Expect(warnings).To(BeEmpty())
	g.Expect(s.nodeName).To(Equal("worker"))
	g.Expect(s.providerID).To(Equal("proxmox://r/1"))
	g.Expect(s.nodeIPs).To(Equal([]netip.Addr{netip.MustParseAddr("10.0.0.9")}))
	g.Expect(s.externalProvider).To(BeTrue())
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
	g.Expect(s.nodeName).To(Equal("other"))
	g.Expect(s.providerID).To(Equal("proxmox://r/2"))
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
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			files := map[string]string{"/etc/default/kubelet": "KUBELET_EXTRA_ARGS=" + test.flags + "\n"}
			if test.config != "" {
				files["/var/lib/kubelet/config.yaml"] = test.config
			}
			_, _, err := settingsOf(files)
			NewWithT(t).Expect(err).To(MatchError(ContainSubstring(test.wantErr)))
		})
	}
}

func TestKubeletConfigUnknownFields(t *testing.T) {
	t.Parallel()
	s, warnings, err := settingsOf(map[string]string{"/var/lib/kubelet/config.yaml": configHeader + "maxPods: 7\nnoSuchField: 1\n"})
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	NewWithT(t).Expect(s.config.MaxPods).To(BeEquivalentTo(7))
	NewWithT(t).Expect(warnings).To(ContainSubstring(`unknown field "noSuchField"`))
}

func TestBootstrapKubeconfig(t *testing.T) {
	t.Parallel()
	kubeconfig := func(cluster, user string) string {
		return lines("apiVersion: v1", "kind: Config", "current-context: c",
			"contexts: [{name: c, context: {cluster: k, user: u}}]",
			"clusters: [{name: k, cluster: "+cluster+"}]", "users: [{name: u, user: "+user+"}]")
	}
	const server = "server: 'https://10.0.0.1:6443'"
	for name, test := range map[string]struct{ kubeconfig, wantErr string }{
		"good":            {kubeconfig("{"+server+", certificate-authority: /ca.crt}", "{tokenFile: /token}"), ""},
		"missing CA":      {kubeconfig("{"+server+", certificate-authority: /no.crt}", "{token: t}"), "certificate-authority /no.crt: no such file"},
		"missing token":   {kubeconfig("{"+server+"}", "{tokenFile: /no}"), "tokenFile /no: no such file"},
		"no server":       {kubeconfig("{}", "{token: t}"), "has no server or no user"},
		"no context":      {"apiVersion: v1\nkind: Config\n", "no current context"},
		"not a kubeconfg": {"{", "unable to load kubeconfig"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := NewWithT(t)
			disk := newDisk(map[string]string{"/b": test.kubeconfig, "/ca.crt": "pem", "/token": "id.secret\n"})
			access, err := readKubeconfig(disk, "/b")
			if test.wantErr != "" {
				g.Expect(err).To(MatchError(ContainSubstring(test.wantErr)))
				return
			}
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(access).To(Equal(apiAccess{server: "https://10.0.0.1:6443", ca: []byte("pem"), token: "id.secret"}))
		})
	}
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
