// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package deletion_test

import (
	"testing"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
)

// A claim that is deleted after its controller died in the launch leaves nothing.
func TestDeleteAfterLaunchCrash(t *testing.T) {
	t.Parallel()
	w := testenv.NewFake(t)
	p := w.StartProcess(testenv.Still())
	claim := p.Planned("recorded", w.NodeClass)
	calls := w.RecordRequests(func() { w.Expect(p.Launch(claim, w.NodeClass)).To(Succeed()) })
	for _, point := range testenv.CrashPoints(calls) {
		t.Run(point.Name, func(t *testing.T) {
			t.Parallel()
			w := testenv.NewFake(t)
			dying := w.StartProcess(testenv.Still())
			claim := dying.Planned("pool-abc", w.NodeClass)
			err := dying.Instances.Launcher.Launch(testenv.DieAt(w.T, w.Sim, point.Request, point.After), claim, w.NodeClass)
			w.EndCrash(err != nil)
			w.StartProcess().Delete(w.Stored(claim))
			w.ExpectNoOrphans()
		})
	}
}

// A delete that dies at any call is finished by the next controller.
func TestDeleteCrash(t *testing.T) {
	t.Parallel()
	w := testenv.NewFake(t)
	p := w.StartProcess(testenv.Still())
	claim := p.Launched("recorded", w.NodeClass)
	calls := w.RecordRequests(func() { p.Delete(claim) })
	for _, point := range testenv.CrashPoints(calls) {
		t.Run(point.Name, func(t *testing.T) {
			t.Parallel()
			w := testenv.NewFake(t)
			dying := w.StartProcess(testenv.Still())
			claim := dying.Launched("pool-abc", w.NodeClass)
			gone, err := dying.Instances.Deleter.Delete(testenv.DieAt(w.T, w.Sim, point.Request, point.After), claim)
			w.EndCrash(!gone || err != nil)
			w.StartProcess().Delete(w.Stored(claim))
			w.ExpectNoOrphans()
		})
	}
}
