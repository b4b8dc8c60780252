// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package deletion_test

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// A Cluster that does not respond is reported like one that refuses connections.
func TestDeleteHangingCluster(t *testing.T) {
	t.Parallel()
	impatient := testenv.Settings(func(s *instance.Settings) { s.OperationTimeout = 300 * time.Millisecond })
	hang := pvesim.Fault{Path: "/nodes/*/qemu/*/config", Delay: pvesim.Duration(time.Hour)}
	t.Run("never_polled", func(t *testing.T) {
		t.Parallel()
		w := testenv.NewFake(t)
		claim := w.StartProcess().Launched("pool-abc", w.NodeClass)
		w.AddFault(pvesim.Fault{Path: "/cluster/resources", Delay: hang.Delay})
		expectBlocked(w, w.StartProcess(impatient, testenv.NeverPolled()), claim, instance.BlockedHostUnreachable)
	})
	t.Run("polled", func(t *testing.T) {
		t.Parallel()
		w := testenv.NewFake(t)
		claim := w.StartProcess().Launched("pool-abc", w.NodeClass)
		p := w.StartProcess(impatient)
		w.AddFault(pvesim.Fault{Path: "/cluster/resources", Status: 595, Message: "Connection timed out"})
		w.AddFault(hang)
		w.Eventually(func() error { return p.Inventory.View().Failures[testenv.Region] }).Should(HaveOccurred())
		expectBlocked(w, p, claim, instance.BlockedHostUnreachable)
	})
}
