// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package chaos_test

import "github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"

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

// endOutages ends what the toggles above started.
func (r *round) endOutages() {
	r.env.Sim.Heal()
	for _, host := range r.env.Hosts {
		testenv.Must(r.t, r.env.Sim.SetHang(host, false))
	}
}
