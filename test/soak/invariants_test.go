// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/test/harness"
)

// firstVMID is the lowest VMID of Nodes. Templates have lower ones.
const firstVMID = 20000

// isNode reports whether a guest is a VM of ours that is or becomes a Node.
func (s *soak) isNode(guest pvesim.GuestState) bool {
	return !s.foreign[guest.VMID] && guest.VMID >= firstVMID
}

// monitor checks the invariant that must always hold. test/chaos checks others during the same disturbances: guests of other users,
// NodeClaims with two VMs, duplicate addresses.
func (s *soak) monitor(ctx context.Context) {
	ticker := time.NewTicker(500 * time.Millisecond)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if violations := s.budgetViolations(ctx); len(violations) > 0 {
			s.broken <- violations
			return
		}
	}
}

// failIfBroken ends the test if an invariant did not hold.
func (s *soak) failIfBroken() {
	s.t.Helper()
	if !s.controller.Running() {
		s.t.Fatal(s.controller.ExitError())
	}
	select {
	case violations := <-s.broken:
		s.fail(fmt.Sprintf("during disturbances %v", s.done), violations)
	default:
	}
}

// budgetViolations returns the NodeClaims that Karpenter disrupts at the same time, if they are
// more than the budget.
func (s *soak) budgetViolations(ctx context.Context) []string {
	claims := &karpv1.NodeClaimList{}
	if err := s.kube.List(ctx, claims); err != nil {
		return nil // the test ends
	}
	var disrupted []string
	for _, claim := range claims.Items {
		if condition := claim.StatusConditions().Get(karpv1.ConditionTypeDisruptionReason); condition.IsTrue() {
			disrupted = append(disrupted, fmt.Sprintf("%s (%s)", claim.Name, condition.Reason))
		}
	}
	if len(disrupted) <= budget {
		return nil
	}
	return []string{fmt.Sprintf("Karpenter disrupts %s at the same time, the budget is %d", strings.Join(disrupted, ", "), budget)}
}

// violations returns everything that does not match the desired state.
func (s *soak) violations() []string {
	ctx := s.t.Context()
	violations := s.podViolations(ctx)
	claims, nodes := &karpv1.NodeClaimList{}, &corev1.NodeList{}
	s.must(s.kube.List(ctx, claims))
	s.must(s.kube.List(ctx, nodes))
	ready := map[string]bool{}
	for _, node := range nodes.Items {
		ready[node.Name] = harness.NodeReady(&node)
	}
	for _, claim := range claims.Items {
		if !claim.DeletionTimestamp.IsZero() || !ready[claim.Status.NodeName] || !claim.StatusConditions().Get(karpv1.ConditionTypeInitialized).IsTrue() {
			violations = append(violations, fmt.Sprintf("claim %s: deleting %t, node %q ready %t", claim.Name, !claim.DeletionTimestamp.IsZero(), claim.Status.NodeName, ready[claim.Status.NodeName]))
		}
		delete(ready, claim.Status.NodeName)
	}
	for node := range ready {
		violations = append(violations, fmt.Sprintf("node %s has no claim", node))
	}
	if len(violations) > 0 {
		return violations // further violations would only be consequences
	}
	return s.vmViolations(len(claims.Items))
}

// podViolations returns the apps that do not have their pods.
func (s *soak) podViolations(ctx context.Context) (violations []string) {
	for app, replicas := range s.replicas {
		pods, err := harness.Pods(ctx, s.kube, app)
		s.must(err)
		ready := 0
		for _, pod := range pods {
			if harness.PodReady(&pod) {
				ready++
			}
		}
		if ready != replicas || len(pods) != replicas {
			violations = append(violations, fmt.Sprintf("app %s has %d pods, %d of them ready, want %d", app, len(pods), ready, replicas))
		}
	}
	return violations
}

// vmViolations compares the number of VMs and templates with that of the NodeClaims and hosts. removeAll checks that nothing else is
// left, and test/chaos the rest.
func (s *soak) vmViolations(claims int) (violations []string) {
	templates := 0
	for _, guest := range s.proxmox.Guests() {
		switch {
		case s.foreign[guest.VMID]:
		case !s.isNode(guest):
			templates++
		default:
			claims--
			if guest.Status != "running" || guest.Lock != "" {
				violations = append(violations, fmt.Sprintf("VM %d on host %s is %s, lock %q", guest.VMID, guest.Host, guest.Status, guest.Lock))
			}
		}
	}
	if claims != 0 || templates != hosts {
		violations = append(violations, fmt.Sprintf("%d NodeClaims more than VMs; %d templates, want one on each host", claims, templates))
	}
	return violations
}

// actAsAdmin does what the controller asks an administrator to do: the configuration of a VM
// whose clone or destroy was interrupted by a host failure is locked, and only root may unlock
// it.
func (s *soak) actAsAdmin() {
	ctx := s.t.Context()
	for _, guest := range s.proxmox.Guests() {
		if s.foreign[guest.VMID] || guest.Lock == "" || s.hasRunningTask(ctx, guest.Host) || !s.isStillLocked(guest) {
			continue
		}
		s.t.Logf("deleting VM %d on host %s as root: lock %q without a task", guest.VMID, guest.Host, guest.Lock)
		if s.proxmox.SetConfigLock(guest.VMID, "") == nil {
			_ = s.proxmox.API.Destroy(ctx, harness.Guest{Host: guest.Host, VMID: guest.VMID, Status: guest.Status}) // retried
		}
	}
}

// isStillLocked reports whether a guest has the same lock as before, which may have been removed at the end of a task.
func (s *soak) isStillLocked(was pvesim.GuestState) bool {
	return slices.ContainsFunc(s.proxmox.Guests(), func(now pvesim.GuestState) bool { return now.VMID == was.VMID && now.Lock == was.Lock })
}

// hasRunningTask reports whether a task runs on a host.
func (s *soak) hasRunningTask(ctx context.Context, host string) bool {
	var tasks []struct{ Endtime int64 }
	if err := s.proxmox.API.Call(ctx, "GET", "/nodes/"+host+"/tasks?source=active", nil, &tasks); err != nil {
		return true
	}
	for _, task := range tasks {
		if task.Endtime == 0 {
			return true
		}
	}
	return false
}
