// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package controllers_test

import (
	"testing"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// A deletion that waits is reported by an event, and is completed when it can be.
func TestDeleteTemplate(t *testing.T) {
	t.Parallel()
	inUse := func(w *testenv.Env, object *v1alpha1.ProxmoxTemplate) (end func() error) {
		claim := w.Claim("node", w.NewClass(func(c *v1alpha1.ProxmoxNodeClass) {
			c.Spec.InstanceTemplateRef = v1alpha1.InstanceTemplateReference{Kind: v1alpha1.ProxmoxTemplateKind, Name: object.Name}
		}))
		return func() error {
			w.Expect(images(w)).To(HaveLen(1), "it is still needed")
			return w.Kube.Delete(w.T.Context(), claim)
		}
	}
	for name, test := range map[string]struct {
		begin        func(*testenv.Env, *v1alpha1.ProxmoxTemplate) (end func() error)
		reason, want string
	}{
		"in_use": {inUse, "WaitingOnNodeClaimTermination", `^template is in use by NodeClaims \(1\), for example node; it is deleted when they are gone$`},
		// An offline host may still have a template.
		"offline_host": {func(w *testenv.Env, _ *v1alpha1.ProxmoxTemplate) func() error {
			w.Expect(w.Sim.HostDown("pve2", "refused")).To(Succeed())
			return func() error { return w.Sim.HostUp("pve2") }
		}, v1alpha1.EventWaitingOnTemplateDeletion, `^waiting for templates to be deleted: pve2: template 100\d is on an offline host$`},
		"failing_storage": {
			func(w *testenv.Env, _ *v1alpha1.ProxmoxTemplate) func() error {
				w.AddFault(pvesim.Fault{Task: "imgdel", TaskID: "local", Fail: "unlink: Input/output error"})
				return func() error { w.Sim.ClearFaults(); return nil }
			}, v1alpha1.EventWaitingOnTemplateDeletion,
			`^deleting templates and images failed and is retried: pve1: deleting image local:import/noble-\S*: unlink: Input/output error`,
		},
	} {
		testenv.RunSimulated(t, name, func(t *testing.T) {
			w := testenv.New(t, testenv.Hosts(2))
			manage(w)
			object := w.ManagedTemplate(testenv.ServeImages(t, 64<<10).URL + "/noble.img")
			waitUntilUpToDate(w, object)
			end := test.begin(w, object)
			w.Expect(w.Kube.Delete(t.Context(), object)).To(Succeed())
			w.Eventually(func() []string { return w.Events.Messages(test.reason) }).Should(ContainElement(MatchRegexp(test.want)))
			w.Expect(w.IsDeleted(object)).To(BeFalse())
			w.Expect(end()).To(Succeed())
			w.Eventually(func() bool { return w.IsDeleted(object) }).Should(BeTrue())
			w.Expect(images(w)).To(BeEmpty())
		})
	}
}
