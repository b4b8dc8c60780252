// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package chaos_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/test/chaos/lab"
)

// togglePartition separates one host from the others, or ends that. Its API then has no quorum.
func (r *round) togglePartition() bool {
	r.partitioned = !r.partitioned
	if !r.partitioned {
		r.env.Sim.Heal()
		return true
	}
	return r.env.Sim.Partition(pick(r.rand, r.env.Hosts)) == nil
}

// toggleHang makes the API of a host hang after the TLS handshake, or ends that.
func (r *round) toggleHang() bool {
	host := pick(r.rand, r.env.Hosts)
	r.hanging[host] = !r.hanging[host]
	return r.env.Sim.SetHang(host, r.hanging[host]) == nil
}

// storageOf is a storage on a host.
type storageOf struct{ host, storage string }

// Storages of the disks and of the boot drives of our VMs.
const (
	diskStorage  = "local-lvm"
	driveStorage = "local"
)

// toggleStorage makes a storage of a host inactive, as a late one after the power-on, or ends
// that.
func (r *round) toggleStorage() bool {
	s := storageOf{pick(r.rand, r.env.Hosts), pick(r.rand, []string{diskStorage, driveStorage})}
	r.inactive[s] = !r.inactive[s]
	return r.env.Sim.SetStorageActive(s.host, s.storage, !r.inactive[s]) == nil
}

// endOutages ends what the toggles above started.
func (r *round) endOutages() {
	r.env.Sim.Heal()
	for _, host := range r.env.Hosts {
		testenv.Must(r.t, r.env.Sim.SetHang(host, false))
		for _, storage := range []string{diskStorage, driveStorage} {
			testenv.Must(r.t, r.env.Sim.SetStorageActive(host, storage, true))
		}
	}
	clear(r.inactive)
}

// removeHost powers a host off for good and removes it from the cluster, which needs quorum. It
// ends all faults.
func (r *round) removeHost() {
	r.t.Helper()
	r.env.Sim.ClearFaults()
	r.env.Sim.Heal()
	r.env.Sim.SetQuorum(true)
	r.partitioned, r.noQuorum = false, false
	for host := range r.down {
		testenv.Must(r.t, r.env.Sim.HostUp(host))
	}
	clear(r.down)
	r.removed = pick(r.rand, r.env.Hosts)
	testenv.Must(r.t, r.env.Sim.HostDown(r.removed, "noroute"))
	testenv.Must(r.t, r.env.RemoveHost(r.removed))
	r.deleteClaimsOn(r.removed)
	r.done["hosts removed"]++
}

// deleteClaimsOn deletes the NodeClaims on a host, as core does if their Nodes are not ready.
func (r *round) deleteClaimsOn(host string) {
	for _, claim := range r.env.Claims() {
		if claim.Labels[corev1.LabelTopologyZone] == host {
			r.env.DeleteClaim(claim.Name)
		}
	}
}

// TestHostRemoved removes a host with some of the claims from the cluster. These are finished,
// the others are kept.
func TestHostRemoved(t *testing.T) {
	t.Parallel()
	r := &round{
		t: t, rand: rand.New(rand.NewPCG(1, 4)), env: lab.New(t, lab.Options{Hosts: 3, HostURLs: true, Addresses: 12, DataDisk: true}),
		down: map[string]bool{}, done: map[string]int{},
	}
	r.process = r.env.StartProcess(lab.ProcessOptions{Settings: func(s *instance.Settings) {
		longRetries(s)
		s.HostRemovedAfter = 5 * time.Minute
	}})
	for i := range 6 {
		r.env.CreateClaim(fmt.Sprintf("pool-%d", i))
	}
	r.process.Run()
	r.env.MustConverge(r.process, "after the launches")
	before := locations(r.env.Claims())
	r.removeHost()
	r.env.MustConverge(r.process, "after removing host "+r.removed)
	after := locations(r.env.Claims())
	for name, host := range before {
		if _, kept := after[name]; kept != (host.host != r.removed) || (kept && after[name] != host) {
			t.Errorf("claim %s of %v is now %v; host %s was removed", name, host, after[name], r.removed)
		}
	}
	if len(after) == len(before) || len(after) == 0 {
		t.Errorf("%d of %d claims are left", len(after), len(before))
	}
	for _, claim := range r.env.Claims() {
		r.env.DeleteClaim(claim.Name)
	}
	r.env.MustConverge(r.process, "after deleting all claims")
}

// location is where the VM of a claim is.
type location struct{ host, providerID string }

// locations returns the locations of the VMs of claims by name.
func locations(claims []karpv1.NodeClaim) map[string]location {
	out := map[string]location{}
	for _, claim := range claims {
		out[claim.Name] = location{claim.Labels[corev1.LabelTopologyZone], claim.Status.ProviderID}
	}
	return out
}
