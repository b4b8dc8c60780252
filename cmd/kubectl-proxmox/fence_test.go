// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/declared"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// newNode creates a Node and a NodeClaim with a VM.
func newNode(w *testenv.Env, class *v1alpha1.ProxmoxNodeClass, name, region, host string, ready corev1.ConditionStatus) (*karpv1.NodeClaim, *corev1.Node) {
	w.T.Helper()
	claim := w.Claim(name, class, func(c *karpv1.NodeClaim) { c.Labels[corev1.LabelTopologyZone] = host })
	claim.Status.ProviderID = "proxmox://" + region + "/20001"
	node := w.Node(claim)
	setNodeReady(w, node, ready)
	return claim, node
}

// withoutAttachments is a client that cannot list VolumeAttachments.
type withoutAttachments struct{ client.Client }

func (c withoutAttachments) List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	if _, ok := list.(*storagev1.VolumeAttachmentList); ok {
		return errors.New("interrupted")
	}
	return c.Client.List(ctx, list, options...)
}

func TestFence(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := newEnv(t, testenv.NeverPolled(), testenv.Hosts(2), testenv.Scenario(func(s *pvesim.Scenario) {
			s.Guests = append(s.Guests, pvesim.Guest{VMID: 111, Host: "pve1"}, pvesim.Guest{VMID: 112, Host: "pve2"})
		}))
		class := w.Class()
		fences := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: declared.FencingConfigMap}}
		dead, deadNode := newNode(w, class, "dead", "region-1", "pve1", corev1.ConditionUnknown)
		_, liveNode := newNode(w, class, "live", "region-1", "pve2", corev1.ConditionTrue)
		// A VM that was migrated to the dead host, and one of another region.
		moved, _ := newNode(w, class, "moved", "region-1", "pve2", corev1.ConditionUnknown)
		moved.Status.ProviderID = "proxmox://region-1/111"
		w.Expect(w.Kube.Status().Update(w.T.Context(), moved)).To(Succeed())
		newNode(w, class, "other", "region-2", "pve1", corev1.ConditionUnknown)
		tainted := HaveField("Spec.Taints", ContainElement(outOfService))

		for want, args := range map[string][]string{
			"set --region to one of region-1, region-2":           {"pve1"},
			"host region-2/pve1 is not in region region-1":        {"region-2/pve1", "--region=region-1"},
			"want REGION/HOST":                                    {"region-1/"},
			"hosts with NodeClaims: pve1, pve2":                   {"pve9"},
			"nodes on host pve2 are Ready: live; power":           {"pve2"},
			"no NodeClaim found for host \"pve9\"; hosts with No": {"pve9", "--undo"},
		} {
			w.Expect(errorOf(runIn(w, append([]string{"fence", "--launch-hosts"}, args...)...))).To(MatchError(ContainSubstring(want)))
		}
		w.Expect(errorOf(runIn(w, "fence", "region-1/pve1"))).To(MatchError(And(ContainSubstring("reading from Proxmox which VMs are on host"), ContainSubstring("set --launch-hosts"))))
		w.Expect(runIn(w, "fence", "region-1/pve1", "--dry-run", "--launch-hosts")).To(ContainSubstring("nodeclaim dead fenced (dry run)"))
		w.Expect(testenv.Reload(w, deadNode)).NotTo(tainted)

		_, _, err := execute(t, &kubeCluster{client: withoutAttachments{w.Kube}, version: "v1.36.3"}, "fence", "region-1/pve1", "--launch-hosts")
		w.Expect(err).To(MatchError("interrupted"))
		w.Expect(testenv.Reload(w, deadNode)).To(tainted)
		w.Expect(errorOf(runIn(w, "fence", "region-1/pve1", "--launch-hosts"))).To(MatchError(And(ContainSubstring("kube-system/karpenter-proxmox-fencing, which the Helm chart creates"), ContainSubstring("not found"))))
		w.Create(fences)
		w.Expect(runIn(w, "fence", "region-1/pve1", "--undo", "--launch-hosts")).To(ContainSubstring("nodeclaim dead no longer fenced"), "the taint is sufficient")
		w.Expect(testenv.Reload(w, deadNode)).NotTo(tainted)

		createController(w, "controller")
		w.Create(&storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: "volume"}, Spec: storagev1.VolumeAttachmentSpec{
			Attacher: "csi.proxmox.sinextra.dev", NodeName: "dead", Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: new("volume")},
		}})
		began := time.Now()
		w.Expect(runIn(w, "fence", "pve1", "--region=region-1", "--system-namespace=kube-system")).To(And(
			ContainSubstring("volumes are still attached after 1m0s"),
			ContainSubstring("nodeclaim dead fenced: VM proxmox://region-1/20001, node dead\n"),
			ContainSubstring("kubectl delete nodeclaim dead moved\n")))
		w.Expect(time.Since(began)).To(BeNumerically("~", time.Minute, time.Second))
		w.Expect(testenv.Reload(w, fences).Data).To(Equal(map[string]string{"region-1.pve1": `{"time":"` + began.UTC().Format(time.RFC3339) + `"}`}))
		w.Expect(testenv.Reload(w, deadNode)).To(tainted)
		w.Expect(testenv.Reload(w, liveNode)).NotTo(tainted)

		dead.Status.ProviderID = "proxmox://region-1/112" // HA restarted the VM on pve2
		w.Expect(w.Kube.Status().Update(w.T.Context(), dead)).To(Succeed())
		w.Expect(errorOf(runIn(w, "fence", "region-1/pve1", "--undo", "--system-namespace=kube-system"))).NotTo(HaveOccurred())
		w.Expect(testenv.Reload(w, fences).Data).To(BeEmpty())
		w.Expect(testenv.Reload(w, deadNode)).NotTo(tainted)
	})
}
