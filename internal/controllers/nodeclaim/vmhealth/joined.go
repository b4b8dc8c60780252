// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package vmhealth

import (
	"fmt"
	"time"

	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
)

// joinTimeout is enough for a guest that installs its kubelet first. Karpenter replaces
// the Claim after 15 minutes, and with it the console that shows the cause.
const joinTimeout = 5 * time.Minute

// checkJoined reports a VM that runs and has not become a Node, and how to find the
// cause in the guest.
func (c *Controller) checkJoined(claim *karpv1.NodeClaim, vm instance.VM) {
	if vm.Status != "running" || claim.StatusConditions().Get(karpv1.ConditionTypeRegistered).IsTrue() {
		return
	}
	since, launched := c.deps.VMs.LaunchedAt(claim)
	if !launched || c.deps.Clock.Since(since) < joinTimeout {
		return
	}
	c.deps.Recorder.Publish(newEvent(claim, v1alpha1.EventNodeNotJoined, fmt.Sprintf(
		"VM %d has been running on host %s since %s, but no Node joined. Usually the VM cannot reach the API server. "+
			"Check the address in its boot data with: kubectl proxmox render --nodeclaim %s; on its console (on host %s: qm terminal %d), run: cat /var/lib/cloud/data/result.json; journalctl -u kubelet",
		vm.VMID, vm.Host, since.Format(time.TimeOnly), claim.Name, vm.Host, vm.VMID)))
}
