// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
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
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
)

// newNode creates a Node and a NodeClaim with a VM.
func newNode(w *testenv.Env, class *v1alpha1.ProxmoxNodeClass, name, region, host string, ready corev1.ConditionStatus) (*karpv1.NodeClaim, *corev1.Node) {
	w.T.Helper()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: w.Named(name)}}
	w.Create(node)
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready}}
	w.Expect(w.Kube.Status().Update(w.T.Context(), node)).To(Succeed())
	claim := w.Claim(name, class, func(c *karpv1.NodeClaim) { c.Labels[corev1.LabelTopologyZone] = host })
	claim.Status.ProviderID = "proxmox://" + region + "/20001"
	claim.Status.NodeName = node.Name
	w.Expect(w.Kube.Status().Update(w.T.Context(), claim)).To(Succeed())
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
	t.Parallel()
	w := testenv.New(t, testenv.NoPolling())
	class := w.Class()
	dead, deadNode := newNode(w, class, "dead", "region-1", "pve1", corev1.ConditionUnknown)
	live, liveNode := newNode(w, class, "live", "region-1", "pve2", corev1.ConditionTrue)
	// A VM that was migrated to the dead host, and one of another region.
	moved, _ := newNode(w, class, "moved", "region-1", "pve2", corev1.ConditionUnknown)
	w.Annotate(moved, map[string]string{v1alpha1.AnnotationHost: "pve1"})
	other, _ := newNode(w, class, "other", "region-2", "pve1", corev1.ConditionUnknown)

	fenceHost := func(host string, change func(*fence)) (string, error) {
		var out bytes.Buffer
		f := &fence{kube: w.Kube, out: &out, region: "region-1", detachTimeout: time.Millisecond}
		change(f)
		err := f.run(t.Context(), host)
		return out.String(), err
	}
	fenced := func(claim *karpv1.NodeClaim) string {
		return testenv.Reload(w, claim).Annotations[v1alpha1.AnnotationHostFenced]
	}
	tainted := HaveField("Spec.Taints", ContainElement(outOfService))

	_, err := fenceHost("pve1", func(f *fence) { f.region = "" })
	w.Expect(err).To(MatchError(ContainSubstring("set --region to one of region-1, region-2")))
	_, err = fenceHost("region-2/pve1", func(*fence) {})
	w.Expect(err).To(MatchError(ContainSubstring("host region-2/pve1 is not in region region-1")))
	_, err = fenceHost("region-1/", func(*fence) {})
	w.Expect(err).To(MatchError(ContainSubstring("want REGION/HOST")))
	_, err = fenceHost("pve9", func(*fence) {})
	w.Expect(err).To(MatchError(ContainSubstring("hosts with NodeClaims: pve1, pve2")))
	_, err = fenceHost("pve2", func(*fence) {})
	w.Expect(err).To(MatchError(And(ContainSubstring(liveNode.Name), ContainSubstring("Ready"))))
	out, err := fenceHost("pve1", func(f *fence) { f.dryRun = true })
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(out).To(ContainSubstring("nodeclaim %s fenced (dry run)", dead.Name))
	for _, claim := range []*karpv1.NodeClaim{dead, live, moved, other} {
		w.Expect(fenced(claim)).To(BeEmpty(), claim.Name)
	}

	_, err = fenceHost("pve1", func(f *fence) { f.kube = withoutAttachments{w.Kube} })
	w.Expect(err).To(MatchError("interrupted"))
	w.Expect(testenv.Reload(w, deadNode)).To(tainted)
	w.Expect(fenced(dead)).To(BeEmpty())
	out, err = fenceHost("pve1", func(f *fence) { f.undo = true })
	w.Expect(err).NotTo(HaveOccurred(), "the taint is sufficient")
	w.Expect(out).To(ContainSubstring("nodeclaim %s no longer fenced", dead.Name))
	w.Expect(testenv.Reload(w, deadNode)).NotTo(tainted)
	_, err = fenceHost("pve2", func(f *fence) { f.undo = true })
	w.Expect(err).To(MatchError(ContainSubstring("no NodeClaim found for host")))

	w.Create(&storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: w.Named("volume")}, Spec: storagev1.VolumeAttachmentSpec{
		Attacher: "csi.proxmox.sinextra.dev", NodeName: deadNode.Name, Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: new("volume")},
	}})
	out, err = fenceHost("region-1/pve1", func(f *fence) { f.region = "" })
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(out).To(And(
		ContainSubstring("volumes are still attached after 1ms"),
		ContainSubstring("nodeclaim %s fenced: VM proxmox://region-1/20001, node %s\n", dead.Name, deadNode.Name),
		ContainSubstring("kubectl delete nodeclaim %s %s\n", dead.Name, moved.Name)))
	w.Expect([]string{fenced(dead), fenced(moved), fenced(live), fenced(other)}).To(Equal([]string{"pve1", "pve1", "", ""}))
	w.Expect(testenv.Reload(w, deadNode)).To(tainted)
	w.Expect(testenv.Reload(w, liveNode)).NotTo(tainted)

	_, err = fenceHost("pve1", func(f *fence) { f.undo = true })
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect([]string{fenced(dead), fenced(moved)}).To(Equal([]string{"", ""}))
	w.Expect(testenv.Reload(w, deadNode)).NotTo(tainted)
}
