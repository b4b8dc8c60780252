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

// placeSnippet follows the example: it creates a join token for all VMs and writes it into a
// snippet on each host.
func (e *env) placeSnippet(t *testing.T) {
	t.Helper()
	if e.proxmox == nil {
		return // the tests do not write to a lab's hosts
	}
	const id, secret = "static", "0123456789abcdef"
	must(t, e.kube.Create(t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: "bootstrap-token-" + id}, Type: corev1.SecretTypeBootstrapToken,
		StringData: map[string]string{
			"token-id": id, "token-secret": secret, "usage-bootstrap-authentication": "true",
			"auth-extra-groups": "system:bootstrappers:karpenter:proxmox",
		},
	}))
	authority := &corev1.ConfigMap{}
	e.eventually(t, "the cluster's CA", func(ctx context.Context) error {
		return e.kube.Get(ctx, client.ObjectKey{Namespace: metav1.NamespaceSystem, Name: "kube-root-ca.crt"}, authority)
	})
	snippet, err := examples.Files.ReadFile("proxmox-cloud-init/worker.cfg")
	must(t, err)
	e.proxmox.PutFile(pvesim.File{Storage: "local", Name: "snippets/worker.cfg", Text: strings.NewReplacer(
		"CA_CERTIFICATE", base64.StdEncoding.EncodeToString([]byte(authority.Data["ca.crt"])),
		"API_SERVER", e.plane.Server, "JOIN_TOKEN", id+"."+secret, "REGION", e.region,
	).Replace(string(snippet))})
}

// proxmoxDrive checks boot data by Proxmox, as in the example. The VM is identified by its
// serial number.
func (e *env) proxmoxDrive(t *testing.T) {
	needs(t, simulator("it writes files on the hosts"))
	class, err := harness.ProxmoxCloudInitClass()
	must(t, err)
	p := e.newNodePool(t, "own-drive", func(kit *harness.Kit) { kit.Class.Spec.MetadataOptions = class.Spec.MetadataOptions })
	p.deployPods(t, 1)
	p.waitForPods(t, 1)
	claim := p.waitForClaim(t, "is settled", settled)
	node, err := p.node(t.Context(), claim)
	must(t, err)
	if node.Spec.ProviderID != claim.Status.ProviderID {
		t.Errorf("provider ID of the node is %q, want the claim's %q", node.Spec.ProviderID, claim.Status.ProviderID)
	}
	if node.Labels[karpv1.NodePoolLabelKey] != p.name {
		t.Errorf("the node has labels %v", node.Labels)
	}
	p.waitForNoTaints(t, claim)
	vms, err := p.vms(t.Context())
	must(t, err)
	if drive, _ := vms[0].Config["ide2"].(string); !strings.Contains(drive, "cloudinit") || vms[0].Config["ciuser"] != "ops" {
		t.Errorf("the VM has drive %q and user %v", drive, vms[0].Config["ciuser"])
	}
	must(t, p.noBootData(t.Context(), claim))
	p.deleteClaims(t, claim)
}
