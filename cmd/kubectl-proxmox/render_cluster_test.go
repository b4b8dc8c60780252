// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
)

// Templates, values and the data of the node come from the cluster.
func TestRenderFromCluster(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := newEnv(t)
		testenv.Modify(w, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.Name, Name: testenv.TemplatesSecret}}, func(s *corev1.Secret) {
			s.Data = map[string][]byte{
				"user-data": []byte("#cloud-config\nhostname: {{ .Metadata.Hostname }}\nserver: {{ .Values.apiServer }}\nca: {{ .Kubernetes.RootCA }}\n" +
					"token: {{ .Kubernetes.BootstrapToken }}\n"),
				"meta-data": []byte("instance-id: {{ .InstanceUUID }}\nprovider-id: {{ .ProviderID }}\n"),
			}
		})
		w.Create(&corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: w.Name, Name: "values"}, Data: map[string][]byte{"apiServer": []byte("https://k8s.example.com:6443")},
		})
		claim := w.Planned("a", w.Class(func(c *v1alpha1.ProxmoxNodeClass) {
			c.Spec.MetadataOptions.ValuesRef = &v1alpha1.SecretReference{Namespace: w.Name, Name: "values"}
			c.Spec.Network = &v1alpha1.Network{Interfaces: []v1alpha1.VMInterface{{
				Name: "net0", Address4: &v1alpha1.AddressSource{CIDR: "10.0.0.5/24", Gateway: "10.0.0.1"},
			}}}
		}))
		render := func(args ...string) (out, notes string, err error) {
			return execute(t, clusterOf(w), append([]string{"render", "--system-namespace", w.Name}, args...)...)
		}

		out, notes, err := render("default")
		w.Expect(err).NotTo(HaveOccurred())
		w.Expect(out).To(And(ContainSubstring("server: https://k8s.example.com:6443\n"), ContainSubstring("ca: CA\n")))
		w.Expect(notes).To(ContainSubstring("ProxmoxNodeClass default, user-data is cloud-config; the join token is a sample"))
		out, _, err = render("--nodeclaim", "a")
		w.Expect(err).NotTo(HaveOccurred())
		w.Expect(out).To(And(
			ContainSubstring("hostname: a\n"), ContainSubstring("instance-id: %s\n", claim.UID),
			ContainSubstring("provider-id: proxmox://region-1/%d\n", w.Intent(claim).VMID), ContainSubstring(`"10.0.0.5/24"`)), "the boot data of this node")
		w.ExpectNoTokens()
		_, _, err = render("absent")
		w.Expect(err).To(MatchError(ContainSubstring("reading ProxmoxNodeClass absent")))
		_, _, err = render()
		w.Expect(err).To(MatchError("specify a proxmoxnodeclass, or a NodeClaim with --nodeclaim"))
	})
}
