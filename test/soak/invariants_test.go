// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"context"
	"fmt"
	"maps"
	"regexp"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/test/harness"
)

// firstVMID is the lowest VMID of Nodes. Templates have lower ones.
const firstVMID = 20000

// claimPattern matches the UID of a NodeClaim in the notes of its VM.
var claimPattern = regexp.MustCompile(`"claim":"([^"]+)"`)

// claimOf returns the UID of the NodeClaim that a VM belongs to, or "".
func claimOf(guest pvesim.GuestState) string {
	if found := claimPattern.FindStringSubmatch(guest.Options["description"]); found != nil {
		return found[1]
	}
	return ""
}

// isNode reports whether a guest is a VM of ours that is or becomes a Node.
func (s *soak) isNode(guest pvesim.GuestState) bool {
	_, foreign := s.foreign[guest.VMID]
	return !foreign && guest.VMID >= firstVMID
}

// monitor checks the invariants that must always hold.
func (s *soak) monitor(ctx context.Context) {
	ticker := time.NewTicker(500 * time.Millisecond)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if violations := append(s.guestViolations(), s.budgetViolations(ctx)...); len(violations) > 0 {
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

// guestViolations returns changed guests of other users, NodeClaims with two VMs, and addresses
// that two VMs have.
func (s *soak) guestViolations() (violations []string) {
	missing := maps.Clone(s.foreign)
	claims, addresses := map[string]int{}, map[string]int{}
	for _, guest := range s.proxmox.Guests() {
		if options, ok := s.foreign[guest.VMID]; ok {
			delete(missing, guest.VMID)
			if !maps.Equal(options, guest.Options) {
				violations = append(violations, fmt.Sprintf("guest %d of another user was changed: it had %v and has %v", guest.VMID, options, guest.Options))
			}
			continue
		}
		if claim := claimOf(guest); claim != "" {
			if other, twice := claims[claim]; twice {
				violations = append(violations, fmt.Sprintf("VMs %d and %d both belong to claim %s", other, guest.VMID, claim))
			}
			claims[claim] = guest.VMID
		}
		if address := guest.Options["ipconfig0"]; s.isNode(guest) && address != "" {
			if other, twice := addresses[address]; twice {
				violations = append(violations, fmt.Sprintf("VMs %d and %d both have the address %s", other, guest.VMID, address))
			}
			addresses[address] = guest.VMID
		}
	}
	for vmid := range missing {
		violations = append(violations, fmt.Sprintf("guest %d of another user is gone", vmid))
	}
	return violations
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
	uids := map[string]string{}
	for _, claim := range claims.Items {
		uids[string(claim.UID)] = claim.Name
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
	violations = append(violations, s.vmViolations(uids)...)
	violations = append(violations, s.volumeViolations(ctx)...)
	violations = append(violations, s.ledgerViolations(ctx)...)
	tokens, err := harness.JoinTokens(ctx, s.kube)
	s.must(err)
	for _, token := range tokens {
		violations = append(violations, "join token "+token.Name+" is left")
	}
	return violations
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

// vmViolations compares the VMs and templates with the NodeClaims and the ProxmoxTemplate.
func (s *soak) vmViolations(claims map[string]string) (violations []string) {
	missing, templates := maps.Clone(claims), map[string]int{}
	for _, guest := range s.proxmox.Guests() {
		if _, foreign := s.foreign[guest.VMID]; foreign {
			continue
		}
		if !s.isNode(guest) {
			templates[guest.Host]++
			continue
		}
		uid := claimOf(guest)
		delete(missing, uid)
		if claims[uid] == "" || guest.Status != "running" || guest.Lock != "" {
			violations = append(violations, fmt.Sprintf("VM %d on host %s of claim %q is %s, lock %q", guest.VMID, guest.Host, claims[uid], guest.Status, guest.Lock))
		}
	}
	for _, name := range missing {
		violations = append(violations, fmt.Sprintf("claim %s has no VM", name))
	}
	for _, host := range s.hostNames() {
		if templates[host] != 1 {
			violations = append(violations, fmt.Sprintf("host %s has %d templates of ours, want 1", host, templates[host]))
		}
	}
	return violations
}

// volumePattern matches the VMID in the name of a disk.
var volumePattern = regexp.MustCompile(`(?:vm|base)-(\d+)-`)

// volumeViolations returns disks without a guest, and boot drives.
func (s *soak) volumeViolations(ctx context.Context) (violations []string) {
	volumes, err := s.proxmox.API.Volumes(ctx)
	if err != nil {
		return []string{err.Error()}
	}
	vmids := map[int]bool{}
	for _, guest := range s.proxmox.Guests() {
		vmids[guest.VMID] = true
	}
	for _, volume := range volumes {
		found := volumePattern.FindStringSubmatch(volume.ID)
		if found == nil {
			continue // an image
		}
		if vmid, err := strconv.Atoi(found[1]); err != nil || !vmids[vmid] {
			violations = append(violations, fmt.Sprintf("volume %s is left on host %s", volume.ID, volume.Host))
		}
	}
	own, err := s.proxmox.API.HoldingsOf(ctx, s.cluster)
	if err != nil {
		return []string{err.Error()}
	}
	for _, drive := range own.Volumes {
		violations = append(violations, fmt.Sprintf("boot drive %s is left on host %s", drive.ID, drive.Host))
	}
	return violations
}

// ledgerViolations compares the CPUs that the controller considers allocated with those of the
// guests.
func (s *soak) ledgerViolations(ctx context.Context) (violations []string) {
	cpus := map[string]float64{}
	for _, guest := range s.proxmox.Guests() {
		if !guest.Template {
			cpus[guest.Host] += float64(guest.CPUs)
		}
	}
	for _, host := range s.hostNames() {
		used := 0.0
		for _, state := range []string{"allocated", "reserved"} {
			value, err := s.controller.Metric(ctx, "karpenter_proxmox_host_cpus", map[string]string{"region": region, "host": host, "state": state})
			if err != nil {
				return []string{err.Error()}
			}
			used += value
		}
		if used != cpus[host] {
			violations = append(violations, fmt.Sprintf("the controller considers %v CPUs of host %s used, its guests have %v", used, host, cpus[host]))
		}
	}
	return violations
}

// actAsAdmin does what the controller asks an administrator to do: the configuration of a VM
// whose clone or destroy was interrupted by a host failure is locked, and only root may unlock
// it.
func (s *soak) actAsAdmin() {
	ctx := s.t.Context()
	for _, guest := range s.proxmox.Guests() {
		if _, foreign := s.foreign[guest.VMID]; foreign || guest.Lock == "" || s.hasRunningTask(ctx, guest.Host) || s.lockOf(guest.VMID) != guest.Lock {
			continue
		}
		s.t.Logf("deleting VM %d on host %s as root: lock %q without a task", guest.VMID, guest.Host, guest.Lock)
		if s.proxmox.SetConfigLock(guest.VMID, "") == nil {
			_ = s.proxmox.API.Destroy(ctx, harness.Guest{Host: guest.Host, VMID: guest.VMID, Status: guest.Status}) // retried
		}
	}
}

// lockOf returns the lock of a guest, which may have been removed at the end of a task.
func (s *soak) lockOf(vmid int) string {
	for _, guest := range s.proxmox.Guests() {
		if guest.VMID == vmid {
			return guest.Lock
		}
	}
	return ""
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
