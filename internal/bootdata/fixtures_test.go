// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package bootdata_test

import (
	"bytes"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"
	"sigs.k8s.io/yaml"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/examples"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/bootdata"
)

const rootCA = "-----BEGIN CERTIFICATE-----\nMIIBexample\n-----END CERTIFICATE-----\n"

// newData returns data that sets every variable.
func newData(t *testing.T) bootdata.Data {
	t.Helper()
	taints := bootdata.RegistrationTaints(
		corev1.Taint{Key: "dedicated", Value: "gpu", Effect: corev1.TaintEffectNoSchedule},
		corev1.Taint{Key: "example.com/starting", Effect: corev1.TaintEffectNoExecute},
	)
	kubelet, err := bootdata.NewKubeletConfiguration(bootdata.KubeletInput{
		ProviderID:     "proxmox://region-1/20001",
		Taints:         taints,
		KubeReserved:   resources("100m", "384Mi"),
		SystemReserved: resources("10m", "64Mi"),
		EvictionHard:   corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("100Mi")},
		Config:         kubeletconfig.KubeletConfiguration{MaxPods: 64, ShutdownGracePeriod: metav1.Duration{Duration: 30 * time.Second}},
	})
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return bootdata.Data{
		Metadata: bootdata.Metadata{
			Hostname: "default-x7k2p", InstanceID: "20001", InstanceUUID: "6f1c1d8e-7a39-4e0c-9d6a-0f3b6f0a1b2c",
			InstanceType: "t1.2VCPU-6GB", ProviderID: "proxmox://region-1/20001", Region: "region-1", Zone: "pve1",
			Tags: []string{"karpenter", "k8s"}, NodeClass: "default", NodePool: "default",
		},
		Network: bootdata.Network{
			Interfaces: []bootdata.Interface{
				{MacAddr: "BC:24:11:7D:F3:15", MTU: 1500},
				{
					MacAddr: "BC:24:11:7D:F3:16", SLAAC: true,
					Address4: []string{"192.168.7.5/24"}, Address6: []string{"2001:db8::5/64"},
					Gateway4: "192.168.7.1", Gateway6: "2001:db8::1", Metric4: 200, Metric6: 300,
					Routes: []bootdata.Route{
						{To: "10.0.0.0/8", Via: "192.168.7.254", Metric: 50}, {To: "0.0.0.0/0", Via: "192.168.7.1", Table: 100},
						{To: "2001:db8:1::/48", Via: "2001:db8::fe", Table: 100}, {To: "172.16.0.0/12", Via: "172.31.0.1", OnLink: true}, {To: "203.0.113.0/24"},
					},
					PolicyRoutes: []bootdata.PolicyRoute{
						{From: "192.168.7.0/24", Table: 100, Priority: 1000}, {From: "2001:db8::/64", To: "2001:db8:1::/48", Table: 100, Priority: 1001},
					},
					NameServers: []string{"192.168.7.53", "2001:db8::53"}, SearchDomains: []string{"storage.example.com"},
				},
				{MacAddr: "BC:24:11:7D:F3:17", DHCPv4: true, SLAAC: true, NoDefaultRoute4: true, NoDefaultRoute6: true},
			},
			NameServers: []string{"1.1.1.1", "2001:4860:4860::8888"}, SearchDomains: []string{"example.com"},
		},
		Resources: bootdata.Resources{CPU: 2, Memory: 6 << 30},
		Kubernetes: bootdata.Kubernetes{
			Version: "v1.36.3", RootCA: rootCA, BootstrapToken: "abcdef.0123456789abcdef",
			KubeletConfiguration: kubelet, NodeTaints: taints,
			NodeLabels: bootdata.Labels{
				"karpenter.sh/nodepool": "default", corev1.LabelInstanceTypeStable: "t1.2VCPU-6GB",
				"node-role.kubernetes.io/worker": "", "node-restriction.kubernetes.io/x": "y",
			},
		},
		Values: map[string]string{"apiServer": "https://10.0.0.1:6443", "password": "hunter2"},
	}
}

func resources(cpu, memory string) corev1.ResourceList {
	return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse(memory)}
}

// recipeData returns the templates of an example, and data with its values.
func recipeData(t *testing.T, name string) (bootdata.Templates, bootdata.Data) {
	t.Helper()
	templates, values := recipe(t, name)
	data := newData(t)
	data.Values = values
	return templates, data
}

// render returns the rendered files.
func render(t *testing.T, templates bootdata.Templates, data bootdata.Data) bootdata.Files {
	t.Helper()
	files, err := bootdata.Render(templates, data)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return files
}

// recipe returns the templates and values in the Secrets of an example.
func recipe(t *testing.T, name string) (templates bootdata.Templates, values map[string]string) {
	t.Helper()
	g := NewWithT(t)
	raw, err := examples.Files.ReadFile(name + "/secrets.yaml")
	g.Expect(err).NotTo(HaveOccurred())
	first, second, found := bytes.Cut(raw, []byte("\n---\n"))
	g.Expect(found).To(BeTrue())
	var secrets [2]corev1.Secret
	g.Expect(yaml.UnmarshalStrict(first, &secrets[0])).To(Succeed())
	g.Expect(yaml.UnmarshalStrict(second, &secrets[1])).To(Succeed())
	g.Expect(secrets[0].Name).To(Equal(name + "-templates"))
	g.Expect(secrets[1].Name).To(Equal(name + "-values"))
	data := map[string][]byte{}
	for key, text := range secrets[0].StringData {
		data[key] = []byte(text)
	}
	return bootdata.TemplatesFrom(data), secrets[1].StringData
}
