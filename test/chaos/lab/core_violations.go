// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
)

// coreTimeout is how long it may take until all invariants hold: Karpenter's own intervals of
// up to ten seconds pass in real time.
const coreTimeout = 6 * time.Minute

// MustConvergeCore waits until all invariants hold with Karpenter's controllers: those of
// Violations, one initialized Node for each NodeClaim, all pods on ready Nodes, and a ledger
// that equals the configured VMs. It returns how long that took.
func (e *Env) MustConvergeCore(p *CoreProcess, w *Workload, when string) time.Duration {
	e.t.Helper()
	began, logged := time.Now(), time.Now()
	for {
		violations := append(e.Violations(p.Process), w.violations(context.Background())...)
		if len(violations) == 0 {
			violations = append(e.nodeViolations(), e.ledgerViolations(p.Process)...)
		}
		took := time.Since(began)
		if len(violations) == 0 {
			return took
		}
		if took > coreTimeout {
			e.t.Fatalf("%s: violations after %s on %s:\n%s", when, took, e.Installation, strings.Join(violations, "\n"))
		}
		if time.Since(logged) > 15*time.Second {
			logged = time.Now()
			e.t.Logf("%s: waiting for:\n%s", when, strings.Join(violations, "\n"))
		}
		e.deleteLockedVMs()
		e.deleteReportedDisks()
		time.Sleep(300 * time.Millisecond)
	}
}

// nodeViolations compares Nodes with NodeClaims.
func (e *Env) nodeViolations() (violations []string) {
	nodes := &corev1.NodeList{}
	if err := e.Kube.List(context.Background(), nodes); err != nil {
		return []string{err.Error()}
	}
	claims := map[string]karpv1.NodeClaim{}
	for _, claim := range e.Claims() {
		claims[claim.Status.ProviderID] = claim
		if !claim.StatusConditions().Get(karpv1.ConditionTypeInitialized).IsTrue() {
			violations = append(violations, fmt.Sprintf("claim %s is not initialized", claim.Name))
		}
	}
	seen := map[string]string{}
	for _, node := range nodes.Items {
		id := node.Spec.ProviderID
		if other := seen[id]; other != "" {
			violations = append(violations, fmt.Sprintf("nodes %s and %s have the same VM %s", other, node.Name, id))
		}
		seen[id] = node.Name
		if _, ok := claims[id]; !ok {
			violations = append(violations, fmt.Sprintf("node %s (%s) has no claim", node.Name, id))
		}
	}
	for id, claim := range claims {
		if seen[id] == "" {
			violations = append(violations, fmt.Sprintf("claim %s (%s) has no node", claim.Name, id))
		}
	}
	return violations
}

// ledgerViolations compares the capacity that a Process considers used with the configurations
// of all guests that its token can read.
func (e *Env) ledgerViolations(p *Process) (violations []string) {
	used, foreign := map[string]inventory.Amount{}, e.foreign()
	for _, row := range e.guests() {
		if _, hidden := foreign[row.VMID]; row.Template || (hidden && e.Installation.PoolScoped) {
			continue
		}
		cfg, err := e.admin.VMConfig(context.Background(), row.Host, row.VMID)
		if err != nil {
			return []string{fmt.Sprintf("reading VM %d: %v", row.VMID, err)}
		}
		c := cfg.Compute()
		used[row.Host] = used[row.Host].Plus(inventory.Amount{CPUs: c.Cores() * c.Sockets(), MemoryBytes: int64(c.MemoryMiB()) << 20})
	}
	for _, host := range p.Inventory.View().Hosts() {
		if got := host.Allocated.Plus(host.Reserved); got != used[host.Name] && host.Region == testenv.Region {
			violations = append(violations, fmt.Sprintf("the ledger of host %s has %+v, its guests use %+v", host.Name, got, used[host.Name]))
		}
	}
	return violations
}
