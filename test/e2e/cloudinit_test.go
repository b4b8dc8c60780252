// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/base64"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/examples"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/test/harness"
)

// placeSnippet does what the example tells an operator to do: a join token for all
// VMs, in a snippet on each host.
func (w *world) placeSnippet(t *testing.T) {
	t.Helper()
	if w.proxmox == nil {
		return // a lab's hosts are not ours to write to
	}
	const id, secret = "static", "0123456789abcdef"
	must(t, w.kube.Create(t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: "bootstrap-token-" + id}, Type: corev1.SecretTypeBootstrapToken,
		StringData: map[string]string{
			"token-id": id, "token-secret": secret, "usage-bootstrap-authentication": "true",
			"auth-extra-groups": "system:bootstrappers:karpenter:proxmox",
		},
	}))
	authority := &corev1.ConfigMap{}
	w.eventually(t, "the cluster's CA", func(ctx context.Context) error {
		return w.kube.Get(ctx, client.ObjectKey{Namespace: metav1.NamespaceSystem, Name: "kube-root-ca.crt"}, authority)
	})
	snippet, err := examples.Files.ReadFile("proxmox-cloud-init/worker.cfg")
	must(t, err)
	w.proxmox.PutFile(pvesim.File{Storage: "local", Name: "snippets/worker.cfg", Text: strings.NewReplacer(
		"CA_CERTIFICATE", base64.StdEncoding.EncodeToString([]byte(authority.Data["ca.crt"])),
		"API_SERVER", w.plane.Server, "JOIN_TOKEN", id+"."+secret, "REGION", w.region,
	).Replace(string(snippet))})
}

// proxmoxDrive: boot data by Proxmox, as in the example; the VM knows by its serial
// number who it is.
func (w *world) proxmoxDrive(t *testing.T) {
	needs(t, simulator("it writes files on the hosts"))
	class, err := harness.ProxmoxCloudInitClass()
	must(t, err)
	p := w.newPool(t, "own-drive", func(kit *harness.Kit) { kit.Class.Spec.MetadataOptions = class.Spec.MetadataOptions })
	p.run(t, 1)
	p.podsRun(t, 1)
	claim := p.onlyClaim(t, "is settled", settled)
	node, err := p.node(t.Context(), claim)
	must(t, err)
	if node.Spec.ProviderID != claim.Status.ProviderID {
		t.Errorf("provider ID of the node is %q, want the claim's %q", node.Spec.ProviderID, claim.Status.ProviderID)
	}
	if node.Labels[karpv1.NodePoolLabelKey] != p.name || len(node.Spec.Taints) > 0 {
		t.Errorf("the node has the labels %v and the taints %v", node.Labels, node.Spec.Taints)
	}
	vms, err := p.vms(t.Context())
	must(t, err)
	if drive, _ := vms[0].Config["ide2"].(string); !strings.Contains(drive, "cloudinit") || vms[0].Config["ciuser"] != "ops" {
		t.Errorf("the VM has the drive %q and the user %v", drive, vms[0].Config["ciuser"])
	}
	must(t, p.noBootData(t.Context(), claim))
	p.giveBack(t, claim)
}
