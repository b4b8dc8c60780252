// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package placement_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/placement"
)

func TestFitCloneQueue(t *testing.T) {
	t.Parallel()
	queue := &placement.CloneQueue{
		Slots: 2, Limit: 10 * time.Minute,
		Duration: func(_, host, _ string) time.Duration {
			return map[string]time.Duration{"slow": 4 * time.Minute}[host]
		},
	}
	for waiting, want := range map[int]bool{0: true, 1: true, 3: true, 4: false, 20: false} {
		env := newEnv()
		for _, host := range []string{"slow", "unknown"} {
			env.host("r", host, 64, 256)
			for n := range waiting {
				env.reserve(inventory.Reservation{
					ClaimUID: fmt.Sprint(host, n), Region: "r", Host: host, VMID: 20000 + n, Storage: "local", Amount: inventory.Amount{CPUs: 1},
				})
				env.reserve(inventory.Reservation{ClaimUID: fmt.Sprint("parked", host, n), Region: "r", Host: host, VMID: 20100 + n, Storage: "local"})
			}
		}
		one := need(2, 4)
		one.Storage, one.CloneQueue = "local", queue
		ok, reason := placement.Fit(env.view(), zone("slow"), one)
		NewWithT(t).Expect(ok).To(Equal(want), "with %d clones in the queue, fits is %v (%s)", waiting, ok, reason)
		if !ok && !strings.Contains(reason, fmt.Sprintf("%d clones wait for storage local", waiting)) {
			t.Errorf("the reason is %q", reason)
		}
		if ok, reason := placement.Fit(env.view(), zone("unknown"), one); !ok {
			t.Errorf("clones of unknown duration do not fit: %s", reason)
		}
	}
}
