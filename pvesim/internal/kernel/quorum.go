// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/api"
)

// SetQuorum sets whether the cluster has quorum.
func (k *Kernel) SetQuorum(ok bool) {
	k.Mu.Lock()
	defer k.Mu.Unlock()
	k.NoQuorum = !ok
}

// CheckQuorum returns an error if the cluster has no quorum.
func (k *Kernel) CheckQuorum() error {
	k.Mu.Lock()
	defer k.Mu.Unlock()
	if k.NoQuorum {
		return api.Failf("cluster not ready - no quorum?")
	}
	return nil
}

// CheckConfigWritable returns the error of a write to a file in /etc/pve, which is read-only without quorum.
func (k *Kernel) CheckConfigWritable(file string) error {
	k.Mu.Lock()
	defer k.Mu.Unlock()
	return k.CheckWritable(file)
}

// CheckWritable is like CheckConfigWritable. The caller holds the mutex.
func (k *Kernel) CheckWritable(file string) error {
	if k.NoQuorum {
		return api.Failf("unable to open file '%s.tmp.%d' - Permission denied", file, k.nextPID)
	}
	return nil
}
