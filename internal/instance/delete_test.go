// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instance_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/types"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance/deletion"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// expectBlocked checks that a delete is blocked, and its message.
func expectBlocked(w *testenv.Env, p *testenv.Process, claim *karpv1.NodeClaim, reason string, message ...types.GomegaMatcher) {
	w.T.Helper()
	deleted, err := p.Instances.Deleter.Delete(w.Context(), claim)
	w.Expect(err).To(And(testenv.HaveReason(reason), MatchError(And(message...))))
	w.Expect(deleted).To(BeFalse())
}

// setOption changes an option of a claim's VM like an administrator; an empty value removes it.
func setOption(w *testenv.Env, claim *karpv1.NodeClaim, option, value string) {
	w.T.Helper()
	change := proxmox.ConfigChange{Set: map[string]string{option: value}}
	if value == "" {
		change = proxmox.ConfigChange{Delete: []string{option}}
	}
	in := w.Intent(claim)
	w.Expect(w.Client.UpdateVM(w.Context(), in.Host, in.VMID, change)).To(Succeed())
}

// A delete that is blocked does not stop the VM, and continues when the cause is gone.
func TestDeleteBlocked(t *testing.T) {
	t.Parallel()
	option := func(option, blocking, free string) func(*testenv.Env, *karpv1.NodeClaim, bool) {
		return func(w *testenv.Env, claim *karpv1.NodeClaim, block bool) {
			setOption(w, claim, option, map[bool]string{true: blocking, false: free}[block])
		}
	}
	lock := func(lock string) func(*testenv.Env, *karpv1.NodeClaim, bool) {
		return func(w *testenv.Env, claim *karpv1.NodeClaim, block bool) {
			w.Expect(w.Sim.SetConfigLock(w.Intent(claim).VMID, map[bool]string{true: lock}[block])).To(Succeed())
		}
	}
	for name, test := range map[string]struct {
		set    func(w *testenv.Env, claim *karpv1.NodeClaim, block bool)
		reason string
		want   string // in the message, which has a command for an administrator
	}{
		"protected": {option("protection", "1", "0"), v1alpha1.EventVMProtected, "--protection 0"},
		"backup":    {lock("backup"), v1alpha1.EventVMLocked, "is locked (backup)"},
		// A clone or destroy that was killed leaves a lock that only root can remove.
		"killed_clone":   {lock("clone"), v1alpha1.EventVMLocked, "qm unlock"},
		"killed_destroy": {lock("destroyed"), v1alpha1.EventVMLocked, "--skiplock"},
	} {
		testenv.With(testenv.NoPolling()).Subtest(t, name, func(w *testenv.Env, p *testenv.Process) {
			claim := p.Launched("pool-abc", w.NodeClass)
			test.set(w, claim, true)
			expectBlocked(w, p, claim, test.reason, ContainSubstring(test.want), ContainSubstring(fmt.Sprint(w.Intent(claim).VMID)))
			deleted, err := p.Instances.Deleter.DeleteOrphan(w.Context(), deletion.Orphan{VM: listVMs(w, p)[0]})
			w.Expect(err).To(And(testenv.HaveReason(test.reason), MatchError(ContainSubstring(test.want))), "as an orphan")
			w.Expect(deleted).To(BeFalse())
			w.Expect(w.Running(claim)).To(BeTrue(), "it was not stopped")
			test.set(w, claim, false)
			p.DeleteAll(claim)
		})
	}
}

func TestDelete(t *testing.T) {
	t.Parallel()
	testenv.With().Subtest(t, "during_launch", func(w *testenv.Env, p *testenv.Process) {
		claim := p.Planned("pool-abc", w.NodeClass)
		// Otherwise the launch could complete before the delete.
		w.AddFault(pvesim.Fault{Task: "qmstart", Hang: true})
		launched := make(chan error, 1)
		go func() { launched <- p.Launch(claim, w.NodeClass) }()
		w.Eventually(w.VMs).ShouldNot(BeEmpty())
		p.DeleteAll(claim)
		w.Expect(<-launched).To(MatchError(instance.ErrClaimBusy))
	})
	// If the task cannot be read, the clone may still run: the lock is not reported as stale.
	testenv.With().Subtest(t, "unreadable_clone_task", func(w *testenv.Env, p *testenv.Process) {
		w.NodeClass.Spec.BootDevice.FullClone = true
		claim := p.Planned("pool-abc", w.NodeClass)
		// While the upload is awaited as well, the launch reads the list of tasks.
		for _, path := range []string{"/nodes/*/tasks/*qmclone*/status", "/nodes/*/tasks"} {
			w.AddFault(pvesim.Fault{Method: "GET", Path: path, Status: 403, Message: "Permission check failed"})
		}
		w.Expect(p.Launch(claim, w.NodeClass)).To(testenv.HaveReason(v1alpha1.EventPermissionMissing))
		w.Sim.ClearFaults()
		_, err := p.Instances.Deleter.Delete(w.Context(), w.Stored(claim))
		w.Expect(err).NotTo(HaveOccurred(), "the clone may still run")
		p.DeleteAll(claim)
	})
	// The shutdown takes longer than one Delete. The Node becomes not ready meanwhile, and the
	// next Delete waits for the shutdown.
	testenv.With(testenv.Settings(func(s *instance.Settings) {
		s.ShutdownTimeout, s.OperationTimeout = 2*time.Minute, 10*time.Second
	})).Subtest(t, "long_shutdown", func(w *testenv.Env, p *testenv.Process) {
		claim := p.Launched("pool-abc", w.NodeClass)
		node := createNode(w, claim, corev1.ConditionTrue)
		w.Expect(w.Sim.SetGuestHealth(w.Intent(claim).VMID, pvesim.HealthHung)).To(Succeed())
		w.Expect(p.Instances.Deleter.Delete(w.Context(), claim)).To(BeFalse())
		testenv.ModifyStatus(w, node, func(node *corev1.Node) { node.Status.Conditions[0].Status = corev1.ConditionUnknown })
		p.DeleteAll(claim)
		expectPowerOff(w, "shutdown")
	})
}

// A guest joined just before its claim was deleted: core did not register its Node, so it does not
// delete it.
func TestDeleteUnregisteredNode(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		uuid func(uid string) string
		want bool // the Node is kept
	}{
		"own_VM":   {strings.ToUpper, false},
		"other_VM": {func(string) string { return "6aa5b4f6-98c9-4a54-8d0c-2d2a6e3f6f0a" }, true},
	} {
		testenv.With(testenv.NoPolling()).Subtest(t, name, func(w *testenv.Env, p *testenv.Process) {
			claim := p.Launched("pool-abc", w.NodeClass)
			testenv.ModifyStatus(w, w.Node(claim), func(node *corev1.Node) { node.Status.NodeInfo.SystemUUID = test.uuid(string(claim.UID)) })
			p.DeleteAll(claim)
			w.Expect(w.Kube.Get(w.Context(), client.ObjectKey{Name: claim.Name}, &corev1.Node{}) == nil).To(Equal(test.want))
		})
	}
}

// Full clones take minutes. Deletes have their own slots.
func TestDeleteDuringClones(t *testing.T) {
	const slots = 4
	testenv.With(testenv.Settings(func(s *instance.Settings) { s.TaskTimeout = time.Hour })).Test(t, func(w *testenv.Env, p *testenv.Process) {
		deleted := p.Launched("pool-deleted", w.NodeClass)
		w.AddFault(pvesim.Fault{Task: "qmclone", Hang: true})
		ctx, end := context.WithCancel(w.Context())
		var launches sync.WaitGroup
		for n := range slots + 1 {
			claim := p.Planned(fmt.Sprintf("pool-%d", n), w.NodeClass)
			launches.Go(func() { _ = p.Instances.Launcher.Launch(ctx, claim, w.NodeClass) })
		}
		// One clone was that of the deleted VM.
		w.Eventually(func() int { return w.Sim.CountRequests("POST", "/nodes/{node}/qemu/{vmid}/clone") }).Should(Equal(1 + slots))
		p.Delete(deleted)
		end()
		launches.Wait()
	})
}

// A guest has the volume of another one, as the CSI driver attaches them. Proxmox deletes a volume
// of the configuration that has the VM's VMID in its name, also after it was detached.
func TestDeleteForeignVolume(t *testing.T) {
	t.Parallel()
	for name, owner := range map[string]int{"other_VMID": 9999, "same_VMID": 30555} {
		volume := fmt.Sprintf("local-lvm:vm-%d-pvc-1", owner)
		testenv.With(testenv.NoPolling(), testenv.Scenario(func(s *pvesim.Scenario) {
			s.Guests = append(s.Guests, pvesim.Guest{VMID: 9998, Name: "csi", Host: "pve1", Config: map[string]string{"memory": "16", "scsi0": volume + ",size=1G"}})
		}), testenv.Settings(func(s *instance.Settings) { s.VMIDs.From, s.VMIDs.To = 30555, 30555 })).Subtest(t, name, func(w *testenv.Env, p *testenv.Process) {
			claim := p.Launched("pool-abc", w.NodeClass)
			setOption(w, claim, "scsi1", volume)
			if owner == w.Intent(claim).VMID {
				expectBlocked(w, p, claim, v1alpha1.EventVolumeAttached)
				w.Expect(w.Running(claim)).To(BeTrue(), "it was not stopped")
				setOption(w, claim, "scsi1", "")
				w.Expect(w.VMConfig(w.Intent(claim)).Options).To(HaveKeyWithValue("unused0", volume))
				expectBlocked(w, p, claim, v1alpha1.EventVolumeAttached)
			} else {
				p.Delete(claim)
			}
			w.Expect(w.Client.Volumes(w.Context(), "pve1", "local-lvm", "images")).To(ContainElement(HaveField("ID", volume)))
		})
	}
}

// A container with the VMID of a Claim is not its VM.
func TestDeleteVMIDOfContainer(t *testing.T) {
	const container = 20150
	testenv.With(testenv.Scenario(func(s *pvesim.Scenario) {
		s.Guests = append(s.Guests, pvesim.Guest{VMID: container, Host: "pve1", Type: "lxc", Config: map[string]string{"memory": "512"}})
	})).Test(t, func(w *testenv.Env, p *testenv.Process) {
		claim, in := launchVM(w, p)
		p.Delete(claim)
		in.VMID = container
		claim.StatusConditions().SetTrue(karpv1.ConditionTypeRegistered)
		w.Clock.Advance(time.Hour)
		claim.Status.ProviderID = in.ProviderID()
		_, err := p.Instances.VMs.Get(w.Context(), v1alpha1.ProviderID{Region: in.Region, VMID: container})
		w.Expect(err).To(MatchError(proxmox.ErrNotFound))
		w.Expect(p.Instances.VMs.MayExist(claim)).To(BeFalse())
		p.Delete(claim)
		w.Expect(w.Sim.Guests()).To(ContainElement(HaveField("VMID", container)))
	})
}

// Only the guest of a ready Node is asked to shut down.
func TestDeleteShutdown(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		timeout time.Duration
		ready   corev1.ConditionStatus // empty: there is no Node
		hung    bool
		call    string
	}{
		"ready":     {10 * time.Second, corev1.ConditionTrue, false, "shutdown"},
		"disabled":  {0, corev1.ConditionTrue, false, "stop"},
		"not_ready": {10 * time.Second, corev1.ConditionFalse, false, "stop"},
		"unknown":   {10 * time.Second, corev1.ConditionUnknown, true, "stop"},
		"no_node":   {10 * time.Second, "", false, "stop"},
		// The Node is ready until the kubelet's lease has expired. Proxmox stops the guest
		// after the timeout.
		"just_hung": {10 * time.Second, corev1.ConditionTrue, true, "shutdown"},
	} {
		testenv.With(testenv.Settings(func(s *instance.Settings) { s.ShutdownTimeout = test.timeout })).Subtest(t, name, func(w *testenv.Env, p *testenv.Process) {
			claim := p.Launched("pool-abc", w.NodeClass)
			if test.ready != "" {
				createNode(w, claim, test.ready)
			}
			if test.hung {
				w.Expect(w.Sim.SetGuestHealth(w.Intent(claim).VMID, pvesim.HealthHung)).To(Succeed())
			}
			p.DeleteAll(claim)
			expectPowerOff(w, test.call)
		})
	}
}

// createNode creates the Node of a claim as its kubelet and core do.
func createNode(w *testenv.Env, claim *karpv1.NodeClaim, ready corev1.ConditionStatus) *corev1.Node {
	w.T.Helper()
	node := w.Node(claim)
	testenv.ModifyStatus(w, node, func(node *corev1.Node) {
		node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready}}
	})
	return node
}

// expectPowerOff checks that a guest was powered off by one call.
func expectPowerOff(w *testenv.Env, want string) {
	w.T.Helper()
	for _, call := range []string{"shutdown", "stop"} {
		w.Expect(w.Sim.CountRequests("POST", "/nodes/{node}/qemu/{vmid}/status/"+call)).To(Equal(map[bool]int{true: 1}[call == want]), call)
	}
}

// Proxmox takes longer for each call than one Delete may take. No call that changes
// something is cut, so no result is lost.
func TestDeleteSlowCalls(t *testing.T) {
	const limit = 20 * time.Second
	testenv.With(testenv.NoPolling(), testenv.Scenario(func(s *pvesim.Scenario) { s.Hosts[0].Cores, s.Hosts[0].Memory = 64, 256*pvesim.GiB }),
		testenv.Settings(func(s *instance.Settings) { s.OperationTimeout = limit })).Test(t, func(w *testenv.Env, p *testenv.Process) {
		var claims []*karpv1.NodeClaim
		for n := range 10 {
			claims = append(claims, p.Launched(fmt.Sprintf("pool-%d", n), w.NodeClass))
		}
		for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodDelete} {
			for _, path := range []string{"/nodes/*/qemu/*", "/nodes/*/qemu/*/status/*"} {
				w.AddFault(pvesim.Fault{Method: method, Path: path, Delay: pvesim.Duration(2 * limit)})
			}
		}
		requests := w.RecordRequests(func() {
			var deletes sync.WaitGroup
			for _, claim := range claims {
				deletes.Go(func() { p.Delete(claim) })
			}
			deletes.Wait()
		})
		w.ExpectNoOrphans()
		destroys := 0
		for _, r := range requests {
			w.Expect(r.Status != 0 || r.Method == http.MethodGet).To(BeTrue(), "%s %s was cut after %s", r.Method, r.Path, r.Took)
			if r.Method == http.MethodDelete && r.Template == "/nodes/{node}/qemu/{vmid}" {
				destroys++
			}
		}
		w.Expect(destroys).To(Equal(len(claims)), "one request destroys each VM")
	})
}
