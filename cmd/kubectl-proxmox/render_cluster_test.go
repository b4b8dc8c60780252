// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
)

// kubeconfig returns the path of a kubeconfig for the test environment's API server.
func kubeconfig(w *testenv.Env) string {
	w.T.Helper()
	config := clientcmdapi.NewConfig()
	config.Clusters["c"] = &clientcmdapi.Cluster{Server: w.Config.Host, CertificateAuthorityData: w.Config.CAData}
	config.AuthInfos["u"] = &clientcmdapi.AuthInfo{ClientCertificateData: w.Config.CertData, ClientKeyData: w.Config.KeyData, Token: w.Config.BearerToken}
	config.Contexts["x"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}
	config.CurrentContext = "x"
	path := filepath.Join(w.T.TempDir(), "kubeconfig")
	w.Expect(clientcmd.WriteToFile(*config, path)).To(Succeed())
	return path
}

// Templates, values and the data of the node come from the cluster.
func TestRenderFromCluster(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.NoPolling())
	templates := testenv.Reload(w, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.Name, Name: testenv.TemplatesSecret}})
	templates.Data["user-data"] = []byte("#cloud-config\nhostname: {{ .Metadata.Hostname }}\nserver: {{ .Values.apiServer }}\nca: {{ .Kubernetes.RootCA }}\n" +
		"token: {{ .Kubernetes.BootstrapToken }}\n")
	templates.Data["meta-data"] = []byte("instance-id: {{ .InstanceUUID }}\nprovider-id: {{ .ProviderID }}\n")
	w.Expect(w.Kube.Update(t.Context(), templates)).To(Succeed())
	w.Create(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.Name, Name: "values"}, Data: map[string][]byte{"apiServer": []byte("https://k8s.example.com:6443")}})
	class := w.Class(func(c *v1alpha1.ProxmoxNodeClass) {
		c.Spec.MetadataOptions.ValuesRef = &v1alpha1.SecretReference{Namespace: w.Name, Name: "values"}
		c.Spec.Network = &v1alpha1.Network{Interfaces: []v1alpha1.VMInterface{{Name: "net0", Address4: &v1alpha1.AddressSource{CIDR: "10.0.0.5/24", Gateway: "10.0.0.1"}}}}
	})
	claim := w.Planned("a", class)
	at := []string{"--kubeconfig", kubeconfig(w), "--system-namespace", w.Name}

	out, notes, err := call(t, append([]string{"render", class.Name}, at...)...)
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(out).To(And(ContainSubstring("server: https://k8s.example.com:6443\n"), ContainSubstring("ca: CA\n")))
	w.Expect(notes).To(ContainSubstring("ProxmoxNodeClass " + class.Name + ", user-data is cloud-config; the join token is a sample"))

	out, _, err = call(t, append([]string{"render", "--nodeclaim", claim.Name}, at...)...)
	w.Expect(err).NotTo(HaveOccurred())
	id := v1alpha1.ProviderID{Region: testenv.Region, VMID: w.Intent(claim).VMID}
	w.Expect(out).To(And(
		ContainSubstring("hostname: "+claim.Name+"\n"), ContainSubstring("instance-id: "+string(claim.UID)+"\n"),
		ContainSubstring("provider-id: "+id.String()+"\n"), ContainSubstring(`"10.0.0.5/24"`)), "the boot data of this node")

	tokens := &corev1.SecretList{}
	w.Expect(w.Kube.List(t.Context(), tokens)).To(Succeed())
	for _, secret := range tokens.Items {
		w.Expect(secret.Type).NotTo(Equal(corev1.SecretType("bootstrap.kubernetes.io/token")), "render must not create a token")
	}

	_, _, err = call(t, append([]string{"render", w.Named("absent")}, at...)...)
	w.Expect(err).To(MatchError(ContainSubstring("reading ProxmoxNodeClass " + w.Named("absent"))))
	_, _, err = call(t, append([]string{"render"}, at...)...)
	w.Expect(err).To(MatchError("specify a proxmoxnodeclass, or a NodeClaim with --nodeclaim"))
}
