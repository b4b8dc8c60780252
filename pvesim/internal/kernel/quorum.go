// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/api"
)

// CheckConfigWritable is the state of /etc/pve: read-only without quorum.
func (k *Kernel) CheckConfigWritable(file string) error {
	k.Mu.Lock()
	defer k.Mu.Unlock()
	return k.CheckWritable(file)
}

// CheckWritable is configWritable for callers that hold the mutex.
func (k *Kernel) CheckWritable(file string) error {
	if k.NoQuorum {
		return api.Failf("unable to open file '%s.tmp.%d' - Permission denied", file, k.nextPID)
	}
	return nil
}

// SetQuorum takes the cluster's quorum away or gives it back.
func (k *Kernel) SetQuorum(ok bool) {
	k.Mu.Lock()
	defer k.Mu.Unlock()
	k.NoQuorum = !ok
}

// CheckQuorum is the test before everything that writes a new config.
func (k *Kernel) CheckQuorum() error {
	k.Mu.Lock()
	defer k.Mu.Unlock()
	if k.NoQuorum {
		return api.Failf("cluster not ready - no quorum?")
	}
	return nil
}
