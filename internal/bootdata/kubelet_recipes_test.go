// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package bootdata_test

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
)

// TestKubeletConfigurationInRecipes: fields of the NodeClass reach the kubelet in recipes that set fields themselves,
// and no field is written twice.
func TestKubeletConfigurationInRecipes(t *testing.T) {
	t.Parallel()
	for name, file := range map[string]string{
		"kubeadm": "/etc/kubernetes/kubelet-config.yaml", "flatcar": "/var/lib/kubelet/config.yaml", "fedora-coreos": "/var/lib/kubelet/config.yaml",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := NewWithT(t)
			templates, data := recipeData(t, name)
			config := &data.Kubernetes.KubeletConfiguration
			config.ClusterDomain, config.RegistryPullQPS, config.ResolverConfig = "example.com", new(int32(0)), new("/etc/resolv.conf")
			config.Authentication.Webhook.CacheTTL.Duration = 5 * time.Minute
			boot := parseBootConfig(t, render(t, templates, data).UserData)
			for _, script := range boot.scripts {
				g.Expect(script.text).NotTo(ContainSubstring("resolvConf"), "it would be the second one")
			}
			got := parseKubeletConfig(t, boot.files[file])
			g.Expect(got.ClusterDomain).To(Equal("example.com"))
			g.Expect(got.ResolverConfig).To(Equal(config.ResolverConfig))
			g.Expect(got.RegistryPullQPS).To(HaveValue(BeZero()))
			g.Expect(got.Authentication.Webhook.CacheTTL).To(Equal(config.Authentication.Webhook.CacheTTL))
			g.Expect(got.ProviderID).To(Equal(config.ProviderID))
			g.Expect(got.KubeReserved).To(Equal(config.KubeReserved))
			g.Expect(got.Authentication.X509.ClientCAFile).To(Equal("/etc/kubernetes/pki/ca.crt"))
			g.Expect(got.ClusterDNS).To(Equal([]string{"10.96.0.10"}))
			g.Expect(got.RotateCertificates).To(BeTrue())
		})
	}
}
