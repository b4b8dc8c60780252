// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package controllers_test

import (
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/template/build"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
)

// Template 1000 of region-1 is in use.
func TestListUsage(t *testing.T) {
	t.Parallel()
	clone := func(region string, template int, full bool) *instance.Intent {
		return &instance.Intent{Region: region, Host: "pve1", VMID: 20000, TemplateID: template, FullClone: full}
	}
	const linked = "1 nodes are linked clones of it"
	for name, test := range map[string]struct {
		intent              *instance.Intent // of a NodeClaim of the class; there is none without
		unreadable          bool
		launched            bool
		zones, classZones   []string
		deleted, otherClass bool
		want                string
	}{
		"unused":                     {zones: []string{"region-1/pve1/1001"}, classZones: []string{"region-2/pve1/1000"}},
		"linked_clone":               {intent: clone("region-1", 1000, false), launched: true, want: linked},
		"linked_clone_while_deleted": {intent: clone("region-1", 1000, false), launched: true, deleted: true, otherClass: true, want: linked},
		"clone_in_progress":          {intent: clone("region-1", 1000, true), want: linked},
		"full_clone":                 {intent: clone("region-1", 1000, true), launched: true},
		"clone_of_other_template":    {intent: clone("region-1", 1001, false), launched: true},
		"clone_in_other_region":      {intent: clone("region-2", 1000, false), launched: true},
		"unreadable_intent": {
			intent: clone("region-1", 1000, true), unreadable: true, want: "reading annotation " + v1alpha1.AnnotationLaunchIntent + " of NodeClaim a: unexpected end of JSON input",
		},
		"status":                        {zones: []string{"region-1/pve1/1000"}, want: "it is in use until the new generation is on every host"},
		"status_while_deleted":          {zones: []string{"region-1/pve1/1000"}, classZones: []string{"region-1/pve1/1000"}, deleted: true},
		"class":                         {classZones: []string{"region-1/pve1/1000"}, want: "NodeClass default still uses it"},
		"claim_while_deleted":           {intent: clone("region-1", 1001, true), launched: true, deleted: true, want: "1 NodeClaims still use the ProxmoxTemplate"},
		"claim_of_others_while_deleted": {intent: clone("region-1", 1001, true), launched: true, deleted: true, otherClass: true},
	} {
		testenv.RunSimulated(t, name, func(t *testing.T) {
			w := testenv.New(t, testenv.NeverPolled())
			object := w.ManagedTemplate("https://images.example.com/noble.img", func(o *v1alpha1.ProxmoxTemplate) {
				o.Finalizers = []string{v1alpha1.TerminationFinalizer}
			})
			known := object.DeepCopy() // as it was read before
			object.Status.Zones = test.zones
			w.Expect(w.Kube.Status().Update(t.Context(), object)).To(Succeed())
			if test.deleted {
				w.Expect(w.Kube.Delete(t.Context(), object)).To(Succeed())
			}
			class := w.NewClass(func(c *v1alpha1.ProxmoxNodeClass) {
				c.Spec.InstanceTemplateRef = v1alpha1.InstanceTemplateReference{Kind: v1alpha1.ProxmoxTemplateKind, Name: object.Name}
				if test.otherClass {
					c.Spec.InstanceTemplateRef.Kind = v1alpha1.ProxmoxUnmanagedTemplateKind
				}
			})
			class.Status.SelectedZones = test.classZones
			w.Expect(w.Kube.Status().Update(t.Context(), class)).To(Succeed())
			if test.intent != nil {
				claim := w.Claim("a", class, func(c *karpv1.NodeClaim) {
					if test.launched {
						c.Annotations = map[string]string{v1alpha1.AnnotationLaunchCompleted: metav1.Now().String()}
					}
				})
				test.intent.ClaimUID = claim.UID
				encoded := test.intent.Encode()
				if test.unreadable {
					encoded = "{"
				}
				w.Annotate(claim, map[string]string{v1alpha1.AnnotationLaunchIntent: encoded})
				testenv.ModifyStatus(w, claim, func(c *karpv1.NodeClaim) { c.Status.ProviderID = test.intent.ProviderID() })
			}
			list := build.ListUsage(w.Kube, known)
			w.Create(&v1alpha1.ProxmoxTemplate{ObjectMeta: metav1.ObjectMeta{Name: "later"}})
			usage, err := list(t.Context())
			w.Expect(err).NotTo(HaveOccurred())
			w.Expect(usage.InUse(testenv.Region, 1000)).To(Equal(test.want))
			w.Expect(usage.Desired).To(ConsistOf(HaveField("Name", object.Name), HaveField("Name", "later")))
		})
	}
}
