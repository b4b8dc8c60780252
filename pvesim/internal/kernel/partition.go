// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"cmp"
	"slices"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/api"
)

// SetQuorum sets whether the cluster has quorum.
func (k *Kernel) SetQuorum(ok bool) {
	k.Mu.Lock()
	defer k.Mu.Unlock()
	k.changeQuorum(func() { k.NoQuorum = !ok })
}

// Partition cuts the network between the named hosts and all others, and replaces an earlier partition. Only a part
// with more than half of the hosts has quorum. Without names there is no partition.
func (k *Kernel) Partition(names ...string) error {
	k.Mu.Lock()
	defer k.Mu.Unlock()
	for _, name := range names {
		if k.Host(name) == nil {
			return api.Failf("there is no host '%s'", name)
		}
	}
	k.changeQuorum(func() {
		for _, h := range k.Hosts {
			h.cutOff = slices.Contains(names, h.Name)
		}
	})
	return nil
}

// changeQuorum runs change and records which hosts regained quorum by it. The caller holds the mutex.
func (k *Kernel) changeQuorum(change func()) {
	without := slices.DeleteFunc(slices.Clone(k.Hosts), k.HasQuorum)
	change()
	for _, h := range without {
		h.quorumRegained = k.HasQuorum(h)
	}
}

// Sees reports whether a host is up and no partition separates it from another one. The other one is nil if no host
// is up. The caller holds the mutex.
func Sees(from, to *Host) bool {
	return to.Online && (from == nil || from.cutOff == to.cutOff)
}

// Votes is how hosts vote for quorum.
type Votes struct {
	// QDevice means that an external vote daemon adds its votes to the part of the cluster with most votes.
	QDevice bool
}

// SetOnline sets whether a host is up. The caller holds the mutex.
func (k *Kernel) SetOnline(h *Host, online bool) {
	k.changeQuorum(func() { h.Online = online })
}

// QDeviceVotes returns the votes of the external vote daemon, as "pvecm qdevice setup" assigns them: one in clusters with
// an even number of hosts, otherwise one less than there are hosts. The caller holds the mutex.
func (k *Kernel) QDeviceVotes() int {
	switch {
	case k.Votes == nil || !k.Votes.QDevice:
		return 0
	case len(k.Hosts)%2 == 0:
		return 1
	default:
		return len(k.Hosts) - 1
	}
}

// hasMajority reports whether the hosts that are up in the part of a host have more than half of all votes. The vote
// daemon votes for the part with most votes, or for that of the first host if they are equal.
func (k *Kernel) hasMajority(h *Host) bool {
	total, part, others := k.QDeviceVotes(), 0, 0
	for _, other := range k.Hosts {
		total += other.Votes
		switch {
		case !other.Online:
		case other.cutOff == h.cutOff:
			part += other.Votes
		default:
			others += other.Votes
		}
	}
	if part > others || (part == others && k.Hosts[0].cutOff == h.cutOff) {
		part += k.QDeviceVotes()
	}
	return 2*part > total
}

// HasQuorum reports whether a host is in a part of the cluster that has quorum. Without Votes, hosts that are down count
// as present: SetQuorum determines whether they are missed. The caller holds the mutex.
func (k *Kernel) HasQuorum(h *Host) bool {
	if k.NoQuorum || h == nil {
		return !k.NoQuorum
	}
	if k.Votes != nil {
		return k.hasMajority(h)
	}
	members := 0
	for _, other := range k.Hosts {
		if other.cutOff == h.cutOff {
			members++
		}
	}
	return 2*members > len(k.Hosts)
}

// IsQuorate reports whether all hosts have quorum. The caller holds the mutex.
func (k *Kernel) IsQuorate() bool {
	return !slices.ContainsFunc(k.Hosts, func(h *Host) bool { return !k.HasQuorum(h) })
}

// ReportedQuorum returns "quorate" in the cluster status of a host: 1, 0, or the text "0" in the first response after
// quorum returned. The caller holds the mutex.
func (k *Kernel) ReportedQuorum(serving *Host) any {
	if serving != nil && serving.quorumRegained {
		serving.quorumRegained = false
		return "0"
	}
	return api.BoolInt(k.HasQuorum(serving))
}

// HostStatus returns the status of a host in the view of another one, which knows no status without quorum. The caller
// holds the mutex.
func (k *Kernel) HostStatus(serving, h *Host) string {
	switch {
	case !k.HasQuorum(serving):
		return "unknown"
	case !Sees(serving, h):
		return "offline"
	default:
		return h.Status()
	}
}

// IsListed reports whether a host lists a guest. Without quorum it lists only its own. The caller holds the mutex.
func (k *Kernel) IsListed(serving *Host, g *Guest) bool {
	return serving == nil || g.Host == serving.Name || k.HasQuorum(serving)
}

// executingHost returns the host that executes a request: the one in its path if the method is forwarded to it, otherwise
// the one that received it. The caller holds the mutex.
func (k *Kernel) executingHost(r *api.Request) *Host {
	if r.Method != nil && r.Method.ProxyTo == "" {
		return k.ServingHost(r)
	}
	return cmp.Or(k.Host(r.Host), k.ServingHost(r))
}
