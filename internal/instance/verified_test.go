// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instance_test

import (
	"context"
	"fmt"
	"testing"

	. "github.com/onsi/gomega"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
)

// interrupted is a client of which others change the VM after its identity was verified: when it was
// stopped, or before it is started.
type interrupted struct {
	proxmox.Client
	interrupt func()
}

func (c *interrupted) StopVM(ctx context.Context, host string, vmid int) (proxmox.UPID, error) {
	task, err := c.Client.StopVM(ctx, host, vmid)
	c.interrupt()
	return task, err
}

func (c *interrupted) RunningTasks(ctx context.Context, host, kind string) ([]proxmox.TaskStatus, error) {
	tasks, err := c.Client.RunningTasks(ctx, host, kind)
	c.interrupt()
	return tasks, err
}

// interrupt starts a process that is interrupted once.
func interrupt(w *testenv.Env, change func()) *testenv.Process {
	w.T.Helper()
	done := false
	w.Clients[testenv.Region] = &interrupted{w.Client, func() {
		if !done {
			done = true
			change()
		}
	}}
	return w.StartProcess(testenv.NoPolling())
}

// replaceVM destroys a VM and gives its VMID to another one.
func replaceVM(w *testenv.Env, in instance.Intent) {
	w.T.Helper()
	w.DestroyByHand(in.Host, in.VMID)
	w.CloneByHand(in.Host, in.VMID, "web")
}

// A VM that was changed or replaced between the check of its identity and its destruction is not destroyed.
func TestDeleteChangedMeanwhile(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		change func(w *testenv.Env, claim *karpv1.NodeClaim, in instance.Intent)
		// blocked is the reason of the event; empty if our VM does not exist any more.
		blocked string
	}{
		"replaced": {func(w *testenv.Env, _ *karpv1.NodeClaim, in instance.Intent) { replaceVM(w, in) }, ""},
		"template": {func(w *testenv.Env, _ *karpv1.NodeClaim, in instance.Intent) {
			w.Wait(w.Client.ConvertToTemplate(w.Context(), in.Host, in.VMID))
		}, ""},
		"notes_replaced": {func(w *testenv.Env, claim *karpv1.NodeClaim, _ instance.Intent) {
			setOption(w, claim, "description", "web server")
		}, v1alpha1.EventOwnershipMarkLost},
		"locked": {func(w *testenv.Env, _ *karpv1.NodeClaim, in instance.Intent) {
			w.Expect(w.Sim.SetConfigLock(in.VMID, "backup")).To(Succeed())
		}, v1alpha1.EventVMLocked},
		"protected": {func(w *testenv.Env, claim *karpv1.NodeClaim, _ instance.Intent) {
			setOption(w, claim, "protection", "1")
		}, v1alpha1.EventVMProtected},
		"volume_attached": {func(w *testenv.Env, claim *karpv1.NodeClaim, in instance.Intent) {
			setOption(w, claim, "unused0", fmt.Sprintf("local-lvm:vm-%d-pvc-1", in.VMID))
		}, v1alpha1.EventVolumeAttached},
	} {
		testenv.With(testenv.NoPolling()).Subtest(t, name, func(w *testenv.Env, p *testenv.Process) {
			claim := p.Launched("pool-abc", w.NodeClass)
			in := w.Intent(claim)
			p = interrupt(w, func() {
				w.Wait(w.Client.StopVM(w.Context(), in.Host, in.VMID)) // it waits for the stop
				test.change(w, claim, in)
			})
			if test.blocked == "" {
				p.Delete(claim)
			} else {
				expectBlocked(w, p, claim, test.blocked)
			}
			w.Expect(w.VMs()).To(HaveLen(1))
		})
	}
}

// A VM that got the VMID meanwhile is not started.
func TestPowerOnReplacedMeanwhile(t *testing.T) {
	testenv.With(testenv.NoPolling()).Test(t, func(w *testenv.Env, p *testenv.Process) {
		claim := p.Launched("pool-abc", w.NodeClass)
		in := w.Intent(claim)
		w.PowerOff(claim)
		p = interrupt(w, func() { replaceVM(w, in) })
		_, err := p.Instances.Power.PowerOn(w.Context(), claim)
		w.Expect(err).To(MatchError(ContainSubstring("is not the VM that was verified")))
		w.Expect(w.Running(claim)).To(BeFalse())
	})
}
