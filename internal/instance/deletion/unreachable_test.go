// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package deletion_test

import (
	"testing"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// A controller was restarted, and the Cluster does not respond. This is reported like a
// Cluster that refuses connections.
func TestDeleteHangingCluster(t *testing.T) {
	t.Parallel()
	w := testenv.NewFake(t)
	claim := w.StartProcess().Launched("pool-abc", w.NodeClass)
	w.AddFault(pvesim.Fault{Path: "/cluster/resources", Delay: pvesim.Duration(time.Hour)})
	p := w.StartProcess(testenv.NeverPolled(), testenv.Settings(func(s *instance.Settings) { s.OperationTimeout = 300 * time.Millisecond }))
	expectBlocked(w, p, claim, instance.BlockedHostUnreachable)
}
