// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package bootdata_test

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"sigs.k8s.io/yaml"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/bootdata"
)

// TestKubeletConfigurationInRecipes: fields of the NodeClass reach the kubelet in every
// recipe, also those that the recipe sets itself, and no field is written twice.
func TestKubeletConfigurationInRecipes(t *testing.T) {
	t.Parallel()
	for name, file := range map[string]string{
		"kubeadm": "/etc/kubernetes/kubelet-config.yaml", "flatcar": "/var/lib/kubelet/config.yaml", "fedora-coreos": "/var/lib/kubelet/config.yaml",
		"k3s": "/etc/rancher/k3s/kubelet.yaml", "rke2": "/etc/rancher/rke2/kubelet.yaml", "talos": "",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := NewWithT(t)
			templates, data := recipeData(t, name)
			config := &data.Kubernetes.KubeletConfiguration
			config.ClusterDomain, config.RegistryPullQPS = "example.com", new(int32(0))
			if name != "talos" { // which rejects these fields
				config.ResolverConfig = new("/etc/resolv.conf")
				config.Authentication.Webhook.CacheTTL.Duration = 5 * time.Minute
			}
			files := render(t, templates, data)
			var text string
			switch {
			case name == "talos":
				machine := struct {
					Machine struct {
						Kubelet struct{ ExtraConfig map[string]any }
					}
				}{}
				g.Expect(yaml.Unmarshal(files.UserData, &machine)).To(Succeed())
				extra := machine.Machine.Kubelet.ExtraConfig
				extra["apiVersion"], extra["kind"] = config.APIVersion, config.Kind
				raw, err := yaml.Marshal(extra)
				g.Expect(err).NotTo(HaveOccurred())
				text = string(raw)
			case bootdata.FormatOf(files.UserData) == bootdata.FormatIgnition:
				text = parseIgnition(t, files.UserData).files[file]
			default:
				boot := parseCloudConfig(t, files.UserData)
				text = boot.files[file]
				for _, script := range boot.scripts {
					g.Expect(script.text).NotTo(ContainSubstring("resolvConf"), "it would be the second one")
				}
			}
			got := parseKubeletConfig(t, text)
			g.Expect(got.ClusterDomain).To(Equal("example.com"))
			g.Expect(got.ResolverConfig).To(Equal(config.ResolverConfig))
			g.Expect(got.RegistryPullQPS).To(HaveValue(BeZero()))
			g.Expect(got.Authentication.Webhook.CacheTTL).To(Equal(config.Authentication.Webhook.CacheTTL))
			g.Expect(got.ProviderID).To(Equal(config.ProviderID))
			g.Expect(got.KubeReserved).To(Equal(config.KubeReserved))
			if file == "/var/lib/kubelet/config.yaml" || name == "kubeadm" {
				g.Expect(got.Authentication.X509.ClientCAFile).To(Equal("/etc/kubernetes/pki/ca.crt"))
				g.Expect(got.ClusterDNS).To(Equal([]string{"10.96.0.10"}))
				g.Expect(got.RotateCertificates).To(BeTrue())
			}
		})
	}
}
