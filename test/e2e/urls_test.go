// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/test/harness"
)

// newEnvWithURLs starts an environment whose controller uses the URLs of these hosts.
func newEnvWithURLs(t *testing.T, s setup, hosts ...string) *env {
	t.Helper()
	s.idle = true
	e := newEnv(t, s)
	cluster := e.proxmox.Cluster(e.region)
	cluster.URLs = nil
	for _, host := range hosts {
		url, err := e.proxmox.HostURL(host)
		must(t, err)
		cluster.URLs = append(cluster.URLs, url)
	}
	must(t, e.controller.Configure(cluster))
	must(t, e.controller.Start(t.Context()))
	return e
}

// neverConsolidate keeps the Nodes.
func neverConsolidate(kit *harness.Kit) {
	kit.Pool.Spec.Disruption.ConsolidateAfter = karpv1.MustParseNillableDuration(karpv1.Never)
}

// createdClaims returns how many NodeClaims were created, including those deleted since.
func (p *nodePool) createdClaims(t *testing.T) int {
	t.Helper()
	n, err := p.controller.Metric(t.Context(), "karpenter_nodeclaims_created_total", map[string]string{"nodepool": p.name})
	must(t, err)
	return int(n)
}

// TestHangingURL checks that polls leave a URL that hangs, and that no launch fails if another
// one hangs during the launches.
func TestHangingURL(t *testing.T) {
	t.Parallel()
	needs(t, simulator("its API hangs"))
	const nodes = 20
	e := newEnvWithURLs(t, setup{scenario: func(s *pvesim.Scenario) {
		for i := range s.Hosts {
			s.Hosts[i].Cores = 32
		}
	}}, "pve1", "pve2")
	p := e.newNodePool(t, "hanging", neverConsolidate)
	must(t, e.proxmox.SetHang("pve1", true))
	hanging := time.Now()
	e.within(t, time.Minute, "polls through the second URL", func(context.Context) error {
		polls := 0
		for _, r := range e.proxmox.Requests() {
			if r.Host == "pve2" && r.Template == "/cluster/resources" && r.Time.After(hanging) {
				polls++
			}
		}
		if polls < 3 {
			return fmt.Errorf("%d polls", polls)
		}
		return nil
	})
	p.deploy(t, nodes, onePerNode)
	e.eventually(t, "the first launches", func(context.Context) error {
		if n := e.proxmox.CountRequests("POST", "/nodes/{node}/qemu/{vmid}/clone"); n < 3 {
			return fmt.Errorf("%d clones were requested", n)
		}
		return nil
	})
	must(t, e.proxmox.SetHang("pve1", false))
	must(t, e.proxmox.SetHang("pve2", true))
	e.within(t, 5*time.Minute, "all launches to complete", func(ctx context.Context) error {
		claims, err := p.claims(ctx)
		if err != nil {
			return err
		}
		for i := range claims {
			err = errors.Join(err, launched(&claims[i]))
		}
		if len(claims) != nodes {
			err = errors.Join(err, fmt.Errorf("there are %d claims, want %d", len(claims), nodes))
		}
		return err
	})
	p.waitForPods(t, nodes)
	if n := p.createdClaims(t); n != nodes {
		e.dump(t)
		t.Errorf("%d claims were created for %d nodes: some failed", n, nodes)
	}
}

// TestQuorum checks that the controller uses the majority of a partitioned cluster, and that
// it changes nothing while no part has quorum.
func TestQuorum(t *testing.T) {
	t.Parallel()
	needs(t, simulator("it loses quorum"))
	e := newEnvWithURLs(t, setup{args: []string{"--orphan-grace-period", orphanGrace.String()}}, "pve1", "pve2")
	p := e.newNodePool(t, "quorum", neverConsolidate)
	p.deploy(t, 2, onePerNode)
	p.waitForPods(t, 2)

	t.Run("minority", func(t *testing.T) {
		must(t, e.proxmox.Partition("pve1"))
		must(t, harness.Scale(t.Context(), e.kube, p.name, 3))
		p.waitForPods(t, 3)
		e.proxmox.Heal()
	})
	t.Run("lost_and_regained", func(t *testing.T) {
		e.proxmox.SetQuorum(false)
		p.waitForReachable(t, false, "NoQuorum")
		must(t, harness.Scale(t.Context(), e.kube, p.name, 4))
		start, rounds := e.rounds(t), float64(orphanRounds)
		e.eventually(t, "rounds of the controllers", func(context.Context) error {
			if n := e.rounds(t) - start; n < rounds {
				return fmt.Errorf("%.0f rounds", n)
			}
			return nil
		})
		if n := p.createdClaims(t); n != 3 {
			t.Errorf("%d claims were created, want none without quorum in addition to 3", n)
		}
		e.expectNoEvents(t, "VMNotFound", "VMRestarted", "VMRestartFailed", "OrphanedVMDeleted")

		e.proxmox.SetQuorum(true)
		p.waitForReachable(t, true, "")
		p.waitForPods(t, 4)
		claims, err := p.claims(t.Context())
		must(t, err)
		if n := p.createdClaims(t); n != 4 || len(claims) != 4 {
			t.Errorf("there are %d claims and %d were created, want 4", len(claims), n)
		}
		for _, claim := range claims {
			if boots := e.proxmox.BootRecorder.BootsOf(string(claim.UID)); len(boots) != 1 {
				t.Errorf("the VM of claim %s booted %d times, want once", claim.Name, len(boots))
			}
		}
	})
}

// waitForReachable waits for the status of ClustersReachable, and its reason if it is not empty.
func (p *nodePool) waitForReachable(t *testing.T, status bool, reason string) {
	t.Helper()
	p.eventually(t, fmt.Sprintf("ClustersReachable to be %t", status), func(ctx context.Context) error {
		class := &v1alpha1.ProxmoxNodeClass{}
		if err := p.kube.Get(ctx, client.ObjectKeyFromObject(p.kit.Class), class); err != nil {
			return err
		}
		c := class.StatusConditions().Get(v1alpha1.ConditionClustersReachable)
		if c.IsTrue() != status || reason != "" && c.Reason != reason {
			return fmt.Errorf("it is %s %s: %s", c.Status, c.Reason, c.Message)
		}
		return nil
	})
}

// expectNoEvents checks that there is no event with these reasons.
func (e *env) expectNoEvents(t *testing.T, reasons ...string) {
	t.Helper()
	list := &corev1.EventList{}
	must(t, e.kube.List(t.Context(), list))
	for _, event := range list.Items {
		for _, reason := range reasons {
			if event.Reason == reason {
				t.Errorf("event %s of %s: %s", reason, event.InvolvedObject.Name, event.Message)
			}
		}
	}
}
