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

// ReasonNotJoined is told of a VM that runs and does not become a Node.
const ReasonNotJoined = "NodeNotJoined"

// joinPatience is enough for a guest that installs its kubelet first. Karpenter
// replaces the Claim after a quarter of an hour, and with it the console that could
// have told why.
const joinPatience = 5 * time.Minute

// joined looks whether a VM that runs has become a Node, and tells where to look when
// it has not: what goes wrong inside of a guest is not to be seen from here.
func (c *Controller) joined(claim *karpv1.NodeClaim, vm instance.VM) {
	if vm.Status != "running" || claim.StatusConditions().Get(karpv1.ConditionTypeRegistered).IsTrue() {
		return
	}
	since, err := time.Parse(time.RFC3339, claim.Annotations[v1alpha1.AnnotationLaunchCompleted])
	if err != nil || c.Instances.Clock.Since(since) < joinPatience {
		return
	}
	c.Recorder.Publish(event(claim, ReasonNotJoined, fmt.Sprintf(
		"VM %d runs on host %s since %s and no node has joined; mostly it cannot reach the API server's address in its boot data: "+
			"see that with: kubectl proxmox render --nodeclaim %s; on its console (on %s: qm terminal %d), see: cloud-init status --long; journalctl -u kubelet",
		vm.VMID, vm.Host, since.Format(time.TimeOnly), claim.Name, vm.Host, vm.VMID)))
}
