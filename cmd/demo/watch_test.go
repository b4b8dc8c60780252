// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/fleet"
)

// TestProgress checks that a wait reports periodically what is missing, and ends with an error at its timeout.
func TestProgress(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		w := &Watch{report: NewReporter(&Screen{out: &out}), updated: make(chan struct{}), detail: func(State) string { return "; console: login" }}
		w.state = State{
			Map:  fleet.Map{VMs: []fleet.VM{{VMID: 20001, Phase: fleet.Booting}}},
			Pods: []Pod{{Pod: fleet.Pod{Name: "web-1", Reason: "Unschedulable"}}, {Pod: fleet.Pod{Name: "web-2", Ready: true}}, {Pod: fleet.Pod{Name: "web-3", Deleting: true}}},
		}
		ctx, cancel := context.WithTimeout(t.Context(), 70*time.Second)
		defer cancel()
		g := NewWithT(t)
		g.Expect(w.until(ctx, "the pods to run", func(State) bool { return false })).Error().To(HaveOccurred())
		const missing = ": VM 20001 is booting, pod web-1 is not ready (Unschedulable), pod web-3 is being deleted; console: login\n"
		g.Expect(out.String()).To(Equal("0:30  waiting for the pods to run (0:30)" + missing + "1:00  waiting for the pods to run (1:00)" + missing))
	})
	NewWithT(t).Expect((State{}).describe()).To(ContainSubstring("no VMs"))
}
