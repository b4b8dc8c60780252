// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package garbagecollection_test

import (
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	. "github.com/onsi/gomega"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/nodeclaim/garbagecollection"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
)

// An orphan that must not be deleted is reported once, and deleted when it may be.
func TestBlockedOrphan(t *testing.T) {
	t.Parallel()
	protect := func(value string) func(*testenv.Env, instance.Intent) error {
		return func(w *testenv.Env, in instance.Intent) error {
			return w.Client.UpdateVM(w.T.Context(), in.Host, in.VMID, proxmox.ConfigChange{Set: map[string]string{"protection": value}})
		}
	}
	lock := func(name string) func(*testenv.Env, instance.Intent) error {
		return func(w *testenv.Env, in instance.Intent) error { return w.Sim.SetConfigLock(in.VMID, name) }
	}
	for name, test := range map[string]struct {
		block, unblock  func(*testenv.Env, instance.Intent) error
		reason, message string
	}{
		"protected":        {protect("1"), protect("0"), v1alpha1.EventVMProtected, "--protection 0"},
		"backup":           {lock("backup"), lock(""), v1alpha1.EventVMLocked, "locked (backup)"},
		"crashed_clone":    {lock("clone"), lock(""), v1alpha1.EventVMLocked, "qm unlock"},
		"crashed_deletion": {lock("destroyed"), lock(""), v1alpha1.EventVMLocked, "--skiplock 1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := testenv.New(t, testenv.NoPolling())
			orphan := w.Launched("orphan", w.Class())
			w.Expect(test.block(w, w.Intent(orphan))).To(Succeed())
			orphaned(w, orphan)
			c := newCollector(w, garbagecollection.PolicyDelete)
			var mu sync.Mutex
			var lines []string
			ctx := log.IntoContext(t.Context(), funcr.New(func(_, line string) {
				mu.Lock()
				defer mu.Unlock()
				if strings.Contains(line, "orphaned VM") {
					lines = append(lines, line)
				}
			}, funcr.Options{}))
			for range 5 {
				w.Refresh()
				_, err := c.Reconcile(ctx)
				w.Expect(err).NotTo(HaveOccurred())
				w.Clock.Advance(grace)
			}
			w.Expect(w.Events.Reasons(orphan)).To(Equal([]string{test.reason}))
			w.Expect(w.Events.Messages(test.reason)).To(ConsistOf(And(ContainSubstring("no longer has a NodeClaim"), ContainSubstring(test.message))))
			w.Expect(lines).To(ConsistOf(And(ContainSubstring(`"level"=0`), ContainSubstring(test.reason))), "one line, and no error")
			w.Expect(w.VMs()).To(HaveLen(1))

			w.Expect(test.unblock(w, w.Intent(orphan))).To(Succeed())
			w.Eventually(func() []string { c.run(); return w.Events.Reasons(orphan) }).Should(Equal([]string{test.reason, "OrphanedVMDeleted"}))
			w.Expect(w.VMs()).To(BeEmpty())
		})
	}
}

// A storage becomes inactive before the VM of an orphan is destroyed. Proxmox then leaves
// the disk and does not list the VM any more.
func TestOrphanWithRemainingDisk(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.NoPolling())
	orphan := orphaned(w, w.Launched("orphan", w.Class()))
	in := w.Intent(orphan)
	c := newCollector(w, garbagecollection.PolicyDelete)
	c.run()
	w.Clock.Advance(grace + time.Second)
	w.Refresh()
	w.Expect(w.Sim.SetStorageActive(in.Host, in.Storage, false)).To(Succeed())
	_, err := c.Reconcile(t.Context())
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(w.VMs()).To(BeEmpty())
	w.Expect(w.Events.Messages(v1alpha1.EventDiskNotDeleted)).To(ConsistOf(ContainSubstring("local-lvm:vm-%d-disk-0", in.VMID)))

	w.Expect(w.Sim.SetStorageActive(in.Host, in.Storage, true)).To(Succeed())
	c.run()
	w.Expect(w.Disks(in.Host, in.VMID)).To(BeEmpty())
	w.Expect(w.Events.Reasons(orphan)).To(Equal([]string{v1alpha1.EventDiskNotDeleted, "OrphanedVMDeleted"}))
}
