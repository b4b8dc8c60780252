// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"context"
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

func newMachine(t *testing.T, name, userData string) *machine {
	t.Helper()
	r := NewRuntime(Options{HeartbeatInterval: 500 * time.Millisecond, RestartDelay: 200 * time.Millisecond, InstallTime: 100 * time.Millisecond})
	image := seedWith(t, "iid-"+name, userData)
	m := &machine{t: t, runtime: r, hardware: hardware{
		vmid: 100, arch: "amd64", uuid: "uuid-of-" + name, cores: 2, memory: 4 << 30, disk: 30 << 30,
		macs: []string{"BC:24:11:00:00:01"}, storage: newDisk(nil),
		drives: func() [][]byte { return [][]byte{image} }, setAgent: func(*pvesim.Agent) {}, health: well,
	}}
	t.Cleanup(func() {
		m.powerCut()
		if t.Failed() {
			t.Logf("console of %s:\n%s", name, r.Console(100))
		}
	})
	return m
}

func (m *machine) powerOn() {
	m.boots++
	ctx, cut := context.WithCancel(context.Background())
	m.cut, m.shutdown, m.done = cut, make(chan struct{}), make(chan struct{})
	hw, done := m.hardware, m.done
	hw.bootID = fmt.Sprintf("boot-%d", m.boots)
	hw.shutdown = m.shutdown
	go func() {
		defer close(done)
		m.runtime.boot(ctx, hw)
	}()
}

func (m *machine) powerCut() {
	if m.cut == nil {
		return
	}
	m.cut()
	select {
	case <-m.done:
	case <-time.After(joinTimeout):
		m.t.Error("guest still running after power cut")
	}
}

// shutDown requests a shutdown and waits until the guest has powered off.
func (m *machine) shutDown() {
	close(m.shutdown)
	NewWithT(m.t).Eventually(m.done, joinTimeout).Should(BeClosed())
}

// join boots a guest and waits until its Node is Ready.
func join(t *testing.T, p plane, name, tokenID, extraConfig string) *machine {
	t.Helper()
	m := newMachine(t, name, userData(p, name, p.token(t, tokenID), extraConfig))
	m.powerOn()
	expectReady(t, p, name)
	return m
}

func expectReady(t *testing.T, p plane, name string) {
	t.Helper()
	NewWithT(t).Eventually(func(g Gomega) {
		node, err := p.node(t.Context(), name)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(readiness(node)).To(Equal(corev1.ConditionTrue))
	}, joinTimeout, polling).Should(Succeed())
}
