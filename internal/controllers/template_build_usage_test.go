// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package controllers_test

import (
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/template/build"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/ownership"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
)

// Template 9000 of region-1 is in use.
func TestListUsage(t *testing.T) {
	t.Parallel()
	const linked = "1 nodes are linked clones of it"
	for name, test := range map[string]struct {
		launched            bool // a VM of the class, as a linked clone of template 9000
		mark                func(*ownership.Mark)
		planned             bool // and not launched
		zones, classZones   []string
		deleted, otherClass bool
		want                string
	}{
		"unused":                     {zones: []string{"region-1/pve1/1001"}, classZones: []string{"region-2/pve1/9000"}},
		"linked_clone":               {launched: true, want: linked},
		"linked_clone_while_deleted": {launched: true, deleted: true, otherClass: true, want: linked},
		"full_clone":                 {launched: true, mark: func(m *ownership.Mark) { m.Source.Full = true }},
		"clone_of_other_template":    {launched: true, mark: func(m *ownership.Mark) { m.Source.VMID = 1001 }},
		"adopted":                    {launched: true, mark: func(m *ownership.Mark) { m.Source = nil }},
		"launch_in_progress":         {planned: true, want: linked},
		"status":                     {zones: []string{"region-1/pve1/9000"}, want: "it is in use until the new generation is on every host"},
		"status_while_deleted":       {zones: []string{"region-1/pve1/9000"}, classZones: []string{"region-1/pve1/9000"}, deleted: true},
		"class":                      {classZones: []string{"region-1/pve1/9000"}, want: "NodeClass default still uses it"},
		"claim_while_deleted": {
			launched: true, mark: func(m *ownership.Mark) { m.Source.Full = true }, deleted: true, want: "1 NodeClaims still use the ProxmoxTemplate",
		},
		"claim_of_others_while_deleted": {launched: true, mark: func(m *ownership.Mark) { m.Source.Full = true }, deleted: true, otherClass: true},
	} {
		testenv.RunSimulated(t, name, func(t *testing.T) {
			w := testenv.New(t, testenv.NoPolling())
			object := w.ManagedTemplate("https://images.example.com/noble.img", func(o *v1alpha1.ProxmoxTemplate) {
				o.Finalizers = []string{v1alpha1.TerminationFinalizer}
			})
			known := object.DeepCopy() // as it was read before
			class := w.Class(func(c *v1alpha1.ProxmoxNodeClass) {
				c.Spec.InstanceTemplateRef = v1alpha1.InstanceTemplateReference{Kind: v1alpha1.ProxmoxTemplateKind, Name: object.Name}
				if test.otherClass {
					c.Spec.InstanceTemplateRef.Kind = v1alpha1.ProxmoxUnmanagedTemplateKind
				}
			})
			if test.planned {
				w.Planned("a", class)
			}
			if test.launched {
				claim := w.Launched("a", class)
				w.Refresh()
				if test.mark != nil {
					setMark(w, claim, test.mark)
				}
			}
			object.Status.Zones, class.Status.SelectedZones = test.zones, test.classZones
			w.Expect(w.Kube.Status().Update(t.Context(), object)).To(Succeed())
			w.Expect(w.Kube.Status().Update(t.Context(), class)).To(Succeed())
			if test.deleted {
				w.Expect(w.Kube.Delete(t.Context(), object)).To(Succeed())
			}
			list := build.ListUsage(w.Kube, w.Templates(), known)
			w.Create(&v1alpha1.ProxmoxTemplate{ObjectMeta: metav1.ObjectMeta{Name: "later"}})
			usage, err := list(t.Context())
			w.Expect(err).NotTo(HaveOccurred())
			w.Expect(usage.InUse(testenv.Region, 9000)).To(Equal(test.want))
			w.Expect(usage.Desired).To(ConsistOf(HaveField("Name", object.Name), HaveField("Name", "later")))
		})
	}
}
