// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package template_test

import (
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
)

// A host that was removed from the cluster does not block the deletion of a ProxmoxTemplate,
// although Proxmox lists its template. An offline host does.
func TestDeleteHostRemoved(t *testing.T) {
	t.Parallel()
	e := newEnv(t, 3)
	p, clock := e.processWithGracePeriod()
	vmid := 0
	for _, zone := range p.reconcileUntilComplete().Zones {
		if zone.Host == "pve3" {
			vmid = zone.VMID
		}
	}
	e.Expect(e.sim.HostDown("pve3", "refused")).To(Succeed())
	e.object = e.object.DeepCopy()
	e.object.DeletionTimestamp = new(metav1.Now())
	cleanup := func(remaining OmegaMatcher) {
		t.Helper()
		p.reconcileUntil(func(g Gomega) {
			g.Expect(p.Cleanup(t.Context(), e.desired(), e.usage)).To(remaining)
		})
	}
	cleanup(ConsistOf(Equal(fmt.Sprintf("pve3: template %d is on an offline host", vmid))))
	clock.Advance(time.Hour)
	cleanup(ConsistOf(Equal(fmt.Sprintf("pve3: template %d is on an offline host", vmid))))

	e.Expect(e.sim.RemoveHost("pve3")).To(Succeed())
	cleanup(ConsistOf(Equal(fmt.Sprintf("pve3: template %d is on a host that is not in the Proxmox cluster", vmid))))
	// Absences with a long pause between them do not add up.
	clock.Advance(time.Hour)
	cleanup(ConsistOf(Equal(fmt.Sprintf("pve3: template %d is on a host that is not in the Proxmox cluster", vmid))))
	e.Expect(p.events.Messages(v1alpha1.EventTemplateDiskNotDeleted)).To(BeEmpty())

	clock.Advance(9 * time.Minute)
	cleanup(HaveLen(1))
	clock.Advance(time.Minute)
	e.Expect(p.Cleanup(t.Context(), e.desired(), e.usage)).To(BeEmpty())
	e.Expect(p.events.Messages(v1alpha1.EventTemplateDiskNotDeleted)).To(ConsistOf(
		And(HavePrefix("pve3: template %d is not deleted, because its host was removed", vmid), HaveSuffix("rm /etc/pve/nodes/pve3/qemu-server/%d.conf", vmid))))
}
