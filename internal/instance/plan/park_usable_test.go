// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package plan_test

import (
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instancetype"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/placement"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// newTwoHosts returns two hosts with 16 CPUs, of which a guest has two each: seven VMs fit.
func newTwoHosts(t *testing.T) (*testenv.Env, *testenv.Process) {
	t.Helper()
	w := testenv.NewFake(t, testenv.Hosts(2), testenv.Scenario(func(s *pvesim.Scenario) { s.Version = "9.2" }))
	return w, w.StartProcess(testenv.NoPolling())
}

// fill plans VMs until a Host has no capacity, and returns their claims.
func fill(w *testenv.Env, p *testenv.Process, host string) []*karpv1.NodeClaim {
	w.T.Helper()
	var claims []*karpv1.NodeClaim
	for i := range 7 {
		claims = append(claims, p.Planned(fmt.Sprintf("%s-%d", host, i), w.NodeClass, testenv.OnHost(host)))
	}
	return claims
}

// A claim waits for a Host that can get capacity, also if another one has fewer VMs.
func TestParkUsableHost(t *testing.T) {
	t.Parallel()
	w, p := newTwoHosts(t)
	fill(w, p, "pve1")
	w.Expect(w.Sim.SetMaintenance("pve2", true)).To(Succeed())
	p.Refresh()
	_, in := parked(w, p, w.Claim("pool-waiting", w.NodeClass))
	w.Expect(in.Host).To(Equal("pve1"))
}

// A claim waits for the Host that the affinity allows, also if it is in maintenance.
func TestParkAffinity(t *testing.T) {
	t.Parallel()
	for affinity, c := range map[v1alpha1.PoolAffinity]struct{ maintenance, want string }{
		v1alpha1.PoolAffinitySeparateHosts: {"pve2", "pve2"},
		v1alpha1.PoolAffinitySameHost:      {"pve1", "pve1"},
	} {
		t.Run(string(affinity), func(t *testing.T) {
			t.Parallel()
			w, p := newTwoHosts(t)
			w.NodeClass.Spec.PlacementStrategy.PoolAffinity = affinity
			p.Planned("pool-0", w.NodeClass, testenv.OnHost("pve1"))
			w.Expect(w.Sim.SetMaintenance(c.maintenance, true)).To(Succeed())
			p.Refresh()
			waiting, in := parked(w, p, w.Claim("pool-waiting", w.NodeClass))
			w.Expect(in.Host).To(Equal(c.want))
			w.Expect(w.Sim.SetMaintenance(c.maintenance, false)).To(Succeed())
			p.Refresh()
			w.Expect(p.Launch(waiting, w.NodeClass)).To(Succeed())
		})
	}
}

// A claim waits for a Host in maintenance only while no other one has capacity.
func TestUnparkUnusableHost(t *testing.T) {
	t.Parallel()
	w, p := newTwoHosts(t)
	full := map[string][]*karpv1.NodeClaim{"pve1": fill(w, p, "pve1"), "pve2": fill(w, p, "pve2")}
	waiting, in := parked(w, p, w.Claim("pool-waiting", w.NodeClass))
	w.Expect(w.Sim.SetMaintenance(in.Host, true)).To(Succeed())
	p.Refresh()
	err := p.Launch(waiting, w.NodeClass)
	w.Expect(err).To(MatchError(instance.ErrParked))
	w.Expect(err).To(MatchError(ContainSubstring("maintenance")))

	other := testenv.OtherHost(in.Host)
	p.Delete(full[other][0])
	err = p.Launch(waiting, w.NodeClass)
	w.Expect(err).To(haveReason(v1alpha1.EventInsufficientCapacity))
	w.Expect(err).To(MatchError(ContainSubstring("host " + other + " has capacity")))
	w.Expect(w.Intent(p.Planned("pool-recreated", w.NodeClass)).Host).To(Equal(other))
}

// A claim waits for a machine on a usable host. If it waited for another one, it would be recreated
// at once and wait for that again.
func TestParkUsableMachine(t *testing.T) {
	t.Parallel()
	w := newMachines(t)
	p := w.StartProcess(testenv.NoPolling())
	p.Planned("pool-0", w.NodeClass)
	p.Planned("pool-1", w.NodeClass)
	p.Types.MarkUnavailable(instancetype.OfferingSelector{Zone: placement.Zone{Region: testenv.Region, Host: "pve1"}}, "no bridge", time.Hour)
	_, in := parked(w, p, w.Claim("pool-waiting", w.NodeClass))
	w.Expect(in.Host).To(Equal("pve2"))
}
