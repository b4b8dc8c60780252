// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package launch_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

func TestLaunchAndDelete(t *testing.T) {
	t.Parallel()
	w := testenv.NewFake(t, testenv.Hosts(2))
	p := w.StartProcess(testenv.Settings(func(s *instance.Settings) { s.CloneRecordAfter = time.Hour }))
	claim := p.Launched("pool-abc", w.NodeClass)

	in := w.Intent(claim)
	w.Expect(claim.Annotations).To(HaveKey(v1alpha1.AnnotationLaunchCompleted))
	w.Expect(claim.Annotations[v1alpha1.AnnotationLaunchProgress]).To(ContainSubstring("Started"))
	w.Expect(claim.Annotations).NotTo(HaveKey(v1alpha1.AnnotationLaunchTask), "only that of a long clone")

	cfg, err := w.Client.VMConfig(t.Context(), in.Host, in.VMID)
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(cfg.Name()).To(Equal("pool-abc"))
	w.Expect(cfg.Compute().Cores()).To(Equal(2))
	w.Expect(cfg.Compute().MemoryMiB()).To(Equal(in.MemoryMiB))
	w.Expect(cfg.Tags()).To(ConsistOf("karpenter"))
	w.Expect(strings.ToLower(cfg.SMBIOS().UUID)).To(Equal(string(claim.UID)))
	disk, _ := cfg.Drives().Boot()
	w.Expect(disk.SizeBytes).To(BeNumerically(">=", in.DiskBytes))
	w.Expect(cfg.Network().NICs()[0].MAC).To(Equal(in.MACs["net0"]))
	status, err := w.Client.VMStatus(t.Context(), in.Host, in.VMID)
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(status.Running).To(BeTrue())

	w.Expect(p.Inventory.Refresh(t.Context(), testenv.Region)).To(Succeed())
	w.Eventually(p.Instances.VMs.List).Should(ConsistOf(HaveField("VMID", in.VMID)))

	w.Expect(p.Instances.Deleter.CleanupBootDrive(t.Context(), claim)).To(Succeed())
	w.ExpectNoBootDrives()
	w.ExpectNoTokens()

	p.Delete(w.Stored(claim))
	w.ExpectNoOrphans()
}

func TestLaunchVMIDTaken(t *testing.T) {
	t.Parallel()
	w := testenv.NewFake(t)
	p := w.StartProcess()
	claim := p.Planned("pool-abc", w.NodeClass)
	in := w.Intent(claim)
	// Another VM gets the VMID first.
	w.CloneByHand(in.Host, in.VMID, "foreign")
	err := p.Launch(claim, w.NodeClass)
	var final *instance.LaunchError
	w.Expect(errors.As(err, &final)).To(BeTrue(), "%v", err)
	w.Expect(final.Reason).To(Equal(v1alpha1.EventVMIDTaken))

	p.Delete(claim)
	cfg, err := w.Client.VMConfig(t.Context(), in.Host, in.VMID)
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(cfg.Name()).To(Equal("foreign"))
	w.ExpectNoBootDrives()
	w.ExpectNoTokens()
}

func TestLaunchStartFailure(t *testing.T) {
	t.Parallel()
	w := testenv.NewFake(t, testenv.Scenario(func(s *pvesim.Scenario) {
		for i := range s.Guests {
			if s.Guests[i].VMID == 9000 {
				s.Guests[i].Config["net0"] = "virtio=BC:24:11:00:00:01,bridge=vmbr7"
			}
		}
	}))
	p := w.StartProcess()
	claim := p.Planned("pool-abc", w.NodeClass)
	err := p.Launch(claim, w.NodeClass)
	var final *instance.LaunchError
	w.Expect(errors.As(err, &final)).To(BeTrue(), "%v", err)
	w.Expect(final.Reason).To(Equal(v1alpha1.EventStartFailed))
	w.Expect(final.Error()).To(ContainSubstring("bridge 'vmbr7' does not exist"))
	p.Delete(claim)
	w.ExpectNoOrphans()
}

func TestLaunchFullClone(t *testing.T) {
	t.Parallel()
	w := testenv.NewFake(t)
	p := w.StartProcess()
	w.Expect(w.Intent(p.Launched("linked", w.NodeClass)).FullClone).To(BeFalse())
	w.NodeClass.Spec.BootDevice.FullClone = true
	claim := p.Launched("full", w.NodeClass)
	in := w.Intent(claim)
	w.Expect(in.FullClone).To(BeTrue())
	w.Expect(in.Storage).To(Equal("local-lvm"))
	cfg, err := w.Client.VMConfig(t.Context(), in.Host, in.VMID)
	w.Expect(err).NotTo(HaveOccurred())
	disk, _ := cfg.Drives().Boot()
	w.Expect(disk.VolumeID).To(HavePrefix("local-lvm:vm-"))
	p.Delete(claim)
}

// If resizes are known to be quick, the VM is started in parallel.
func TestLaunchSlowResize(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		fault    pvesim.Fault
		attempts int
	}{
		"slow":   {pvesim.Fault{Task: "resize", Delay: pvesim.Duration(5 * time.Second), Count: 1}, 1},
		"locked": {pvesim.Fault{Task: "resize", Fail: "can't lock file '/var/lock/qemu-server/lock-20001.conf' - got timeout", Count: 1}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := testenv.NewFake(t)
			p := w.StartProcess(testenv.NoPolling())
			p.Delete(p.Launched("measured", w.NodeClass))
			_, err := w.Sim.AddFault(c.fault)
			w.Expect(err).NotTo(HaveOccurred())
			claim := p.Planned("pool-abc", w.NodeClass)
			for attempt := 1; attempt < c.attempts; attempt++ {
				err := p.Launch(claim, w.NodeClass)
				w.Expect(err).To(MatchError(proxmox.ErrLocked))
				w.Expect(err).NotTo(BeAssignableToTypeOf(&instance.LaunchError{}))
			}
			w.Expect(p.Launch(claim, w.NodeClass)).To(Succeed())
			w.Expect(w.Sim.Faults()[0].Hits).To(Equal(1))
			in := w.Intent(claim)
			cfg, err := w.Client.VMConfig(t.Context(), in.Host, in.VMID)
			w.Expect(err).NotTo(HaveOccurred())
			disk, _ := cfg.Drives().Boot()
			w.Expect(disk.SizeBytes).To(Equal(in.DiskBytes))
			status, err := w.Client.VMStatus(t.Context(), in.Host, in.VMID)
			w.Expect(err).NotTo(HaveOccurred())
			w.Expect(status.Running).To(BeTrue())
			p.Delete(w.Stored(claim))
		})
	}
}

func TestLaunchSlowClone(t *testing.T) {
	t.Parallel()
	w := testenv.NewFake(t)
	p := w.StartProcess(testenv.Settings(func(s *instance.Settings) {
		// The upload must end within the timeout, also on a busy machine.
		s.TaskTimeout, s.CloneRefuseAfter = 10*time.Second, 300*time.Millisecond
	}))
	claim := p.Planned("pool-abc", w.NodeClass)
	_, err := w.Sim.AddFault(pvesim.Fault{Task: "qmclone", Hang: true})
	w.Expect(err).NotTo(HaveOccurred())
	var final *instance.LaunchError
	for attempt := 1; attempt <= 5 && final == nil; attempt++ { // the last poll may be in flight at the deadline
		err = p.Launch(w.Stored(claim), w.NodeClass)
		errors.As(err, &final)
	}
	w.Expect(final).NotTo(BeNil(), "%v", err)
	w.Expect(final.Reason).To(Equal(v1alpha1.EventCloneTooSlow))
	w.Expect(p.Instances.CloneTimes.Get(testenv.Region, "pve1", "local-lvm")).To(BeNumerically(">", 300*time.Millisecond))
	p.Delete(w.Stored(claim))
	w.ExpectNoOrphans()

	refusal, warning := p.Instances.CloneTimes.Evaluate(testenv.Region, "pve1", "local-lvm")
	w.Expect(refusal).To(ContainSubstring("clones take about"))
	w.Expect(warning).To(BeEmpty())
	refusal, warning = p.Instances.CloneTimes.Evaluate(testenv.Region, "pve1", "another")
	w.Expect(refusal+warning).To(BeEmpty(), "not measured")
}

// After a restart, a launch or a deletion waits for clones that may be its own, but not for those
// that this process started for other claims.
func TestLaunchBesideOtherClone(t *testing.T) {
	t.Parallel()
	w := testenv.NewFake(t)
	before := w.StartProcess()
	resumed, deleted := before.Planned("pool-a", w.NodeClass), before.Planned("pool-b", w.NodeClass)
	p := w.StartProcess()
	other := p.Planned("pool-c", w.NodeClass)
	w.AddFault(pvesim.Fault{Task: "qmclone", Hang: true, Count: 1})
	ctx, cancel := context.WithCancel(t.Context())
	var launch sync.WaitGroup
	launch.Go(func() { _ = p.Instances.Launcher.Launch(ctx, other, w.NodeClass) })
	defer launch.Wait()
	defer cancel()
	w.Eventually(func() map[string]string { return w.Stored(other).Annotations }).Should(HaveKey(v1alpha1.AnnotationLaunchTask))
	p.MustLaunch(resumed, w.NodeClass)
	p.Delete(deleted)
}

// A VM whose clone ends between two requests of a restarted controller is used.
func TestLaunchCloneEndsDuringResume(t *testing.T) {
	t.Parallel()
	w := testenv.NewFake(t)
	before := w.StartProcess(testenv.Settings(func(s *instance.Settings) { s.CloneRecordAfter = time.Hour }))
	claim := before.Planned("pool-abc", w.NodeClass)
	w.AddFault(pvesim.Fault{Method: "POST", Path: "/nodes/{node}/qemu/{vmid}/status/start", Count: 1, Status: 500, Message: "not now"})
	w.Expect(before.Launch(claim, w.NodeClass)).To(MatchError(ContainSubstring("not now")))
	p := w.StartProcess(testenv.NoPolling())
	// The first two requests of the launch do not find the VM.
	w.AddFault(pvesim.Fault{Method: "GET", Path: "/nodes/{node}/qemu/{vmid}/config", Count: 2, Status: 500, Message: fmt.Sprintf("Configuration file 'nodes/pve1/qemu-server/%d.conf' does not exist", w.Intent(claim).VMID)})
	p.MustLaunch(w.Stored(claim), w.NodeClass)
}

// While the Host of a clone is unreachable, it is unknown how long the clone takes.
func TestLaunchCloneDuringOutage(t *testing.T) {
	t.Parallel()
	w := testenv.NewFake(t)
	p := w.StartProcess(testenv.Settings(func(s *instance.Settings) {
		// There must be a poll within the timeout, also on a busy machine.
		s.TaskTimeout, s.CloneRefuseAfter = 10*time.Second, 300*time.Millisecond
	}))
	claim := p.Planned("pool-abc", w.NodeClass)
	w.AddFault(pvesim.Fault{Task: "qmclone", Hang: true})
	outage := pvesim.Fault{Status: 595, Message: "No route to host"}
	for _, outage.Path = range []string{"/nodes/*/tasks", "/nodes/*/tasks/*/status"} {
		w.AddFault(outage)
	}
	err := p.Launch(claim, w.NodeClass)
	for retry := 1; retry < 5 && !errors.Is(err, proxmox.ErrHostUnreachable); retry++ { // the last poll may be in flight at the deadline
		err = p.Launch(w.Stored(claim), w.NodeClass)
	}
	w.Expect(err).To(MatchError(proxmox.ErrHostUnreachable))
	_, final := errors.AsType[*instance.LaunchError](err)
	w.Expect(final).To(BeFalse(), "%v", err)
	refusal, warning := p.Instances.CloneTimes.Evaluate(testenv.Region, "pve1", "local-lvm")
	w.Expect(refusal + warning).To(BeEmpty())
}

// Proxmox would clone to a host that is offline, and the VM could not be deleted.
func TestLaunchHostOffline(t *testing.T) {
	t.Parallel()
	w := testenv.NewFake(t, testenv.Hosts(2))
	p := w.StartProcess()
	claim := p.Planned("pool-abc", w.NodeClass, func(c *karpv1.NodeClaim) {
		c.Spec.Requirements = append(c.Spec.Requirements, karpv1.NodeSelectorRequirementWithMinValues{
			Key: corev1.LabelTopologyZone, Operator: corev1.NodeSelectorOpIn, Values: []string{"pve2"},
		})
	})
	w.Expect(w.Sim.HostDown("pve2", "noroute")).To(Succeed())
	w.Eventually(func() bool {
		w.Expect(p.Inventory.RefreshAll(t.Context())).To(Succeed())
		return p.Inventory.View().Snapshots[testenv.Region].Hosts["pve2"].Online
	}).Should(BeFalse())
	err := p.Launch(claim, w.NodeClass)
	failure, final := errors.AsType[*instance.LaunchError](err)
	w.Expect(final).To(BeTrue(), "%v", err)
	w.Expect(failure.Reason).To(Equal(v1alpha1.EventInsufficientCapacity))
	w.Expect(w.Sim.CountRequests("POST", "/nodes/{node}/qemu/{vmid}/clone")).To(BeZero())
}

// If the status of the task cannot be read, the clone continues.
func TestLaunchPollingCloneFails(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]pvesim.Fault{
		"token_replaced": {Status: 401, Message: "authentication failure"},
		"no_quorum":      {Status: 500, Message: "cluster not ready - no quorum?"},
		"other_error":    {Status: 500, Message: "internal error"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := testenv.NewFake(t)
			w.NodeClass.Spec.BootDevice.FullClone = true
			p := w.StartProcess()
			claim := p.Planned("pool-abc", w.NodeClass)
			answer.Method, answer.Path, answer.Count = "GET", "/nodes/*/tasks/*qmclone*/status", 1
			w.AddFault(answer)
			w.Expect(p.Launch(claim, w.NodeClass)).To(Succeed())
			w.Expect(w.Sim.CountRequests("POST", "/nodes/{node}/qemu/{vmid}/clone")).To(Equal(1))
		})
	}
}

// The retry timeout restarts with each phase.
func TestLaunchRetryTimeoutRestarts(t *testing.T) {
	t.Parallel()
	w := testenv.NewFake(t)
	p := w.StartProcess(testenv.Settings(func(s *instance.Settings) { s.LaunchRetryTimeout = time.Second }))
	claim := p.Planned("pool-abc", w.NodeClass)
	w.AddFault(pvesim.Fault{Method: "POST", Path: "/nodes/{node}/qemu/{vmid}/clone", Count: 1, Status: 500, Message: "got no worker upid - start worker failed"})
	w.AddFault(pvesim.Fault{Task: "qmclone", Delay: pvesim.Duration(75 * time.Second), Count: 1}) // 1.5 s real time
	w.AddFault(pvesim.Fault{Method: "PUT", Path: "/nodes/{node}/qemu/{vmid}/config", Count: 1, Status: 500, Message: "can't lock file '/var/lock/qemu-server/lock-1.conf' - got timeout"})
	w.Expect(p.Launch(claim, w.NodeClass)).To(MatchError(proxmox.ErrBusy))
	err := p.Launch(w.Stored(claim), w.NodeClass)
	w.Expect(err).To(MatchError(proxmox.ErrLocked))
	var final *instance.LaunchError
	w.Expect(errors.As(err, &final)).To(BeFalse(), "the timeout restarted: %v", err)
	w.Expect(p.Launch(w.Stored(claim), w.NodeClass)).To(Succeed())
}

// A request in flight has an effect even if it is canceled: an attempt that fails must
// wait for it, or the next one would add the rule twice.
func TestLaunchFirewallRuleInFlight(t *testing.T) {
	t.Parallel()
	w := testenv.NewFake(t)
	p := w.StartProcess()
	claim := p.Planned("pool-abc", w.NodeClass)
	w.AddFault(pvesim.Fault{Method: "POST", Path: "/nodes/{node}/qemu/{vmid}/firewall/rules", Delay: pvesim.Duration(20 * time.Second), Count: 1})
	w.AddFault(pvesim.Fault{Method: "PUT", Path: "/nodes/{node}/qemu/{vmid}/config", Count: 1, Status: 500, Message: "can't lock file '/var/lock/qemu-server/lock-1.conf' - got timeout"})
	w.Expect(p.Launch(claim, w.NodeClass)).To(MatchError(proxmox.ErrLocked))
	w.Expect(w.Sim.FirewallGroups()[w.Intent(claim).VMID]).To(HaveLen(1))
}

func TestLaunchTransientErrors(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]pvesim.Fault{
		"no_worker_for_clone":       {Method: "POST", Path: "/nodes/{node}/qemu/{vmid}/clone", Count: 2, Status: 500, Message: "got no worker upid - start worker failed"},
		"storage_lock_during_clone": {Task: "qmclone", Count: 1, Fail: "clone failed: can't lock file '/var/lock/pve-manager/pve-storage-local-lvm' - got timeout"},
		"lock_during_config_write":  {Method: "PUT", Path: "/nodes/{node}/qemu/{vmid}/config", Count: 1, Status: 500, Message: "can't lock file '/var/lock/qemu-server/lock-20001.conf' - got timeout"},
		"lost_response_to_start":    {Method: "POST", Path: "/nodes/{node}/qemu/{vmid}/status/start", Count: 1, DropAfter: true},
		"status_596_for_upload":     {Method: "POST", Path: "/nodes/{node}/storage/{storage}/upload", Count: 1, Status: 596, Message: "Broken pipe"},
		"temporarily_no_quorum":     {Method: "POST", Path: "/nodes/{node}/qemu/{vmid}/clone", Count: 1, Status: 500, Message: "cluster not ready - no quorum?"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := testenv.NewFake(t)
			p := w.StartProcess()
			claim := p.Planned("pool-abc", w.NodeClass)
			_, err := w.Sim.AddFault(fault)
			w.Expect(err).NotTo(HaveOccurred())
			// Like the launch controller: retry unless the error is final.
			w.Eventually(func() error {
				err := p.Launch(w.Stored(claim), w.NodeClass)
				if final, ok := errors.AsType[*instance.LaunchError](err); ok {
					return StopTrying(fmt.Sprintf("final: %s", final.Reason)).Wrap(err)
				}
				return err
			}).WithPolling(50 * time.Millisecond).Should(Succeed())
			w.Expect(w.VMs()).To(HaveLen(1))
			p.Delete(w.Stored(claim))
			w.ExpectNoOrphans()
		})
	}
}

func TestLaunchFinalErrors(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		fault  pvesim.Fault
		reason string
		want   string
	}{
		"storage_full": {
			pvesim.Fault{Task: "qmclone", Fail: "clone failed: lvcreate 'pve/vm-1-disk-0' error: No space left on device"}, v1alpha1.EventStorageFull, "No space left",
		},
		"missing_privilege": {
			pvesim.Fault{Method: "PUT", Path: "/nodes/{node}/qemu/{vmid}/config", Status: 403, Message: "Permission check failed (/vms/1, VM.Config.CPU)"}, v1alpha1.EventPermissionMissing, "VM.Config.CPU",
		},
		"missing_template": {
			pvesim.Fault{Method: "POST", Path: "/nodes/{node}/qemu/{vmid}/clone", Status: 500, Message: "unable to find configuration file for VM 9000 on node 'pve1'"}, v1alpha1.EventCloneFailed, "9000",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := testenv.NewFake(t)
			p := w.StartProcess()
			claim := p.Planned("pool-abc", w.NodeClass)
			_, err := w.Sim.AddFault(test.fault)
			w.Expect(err).NotTo(HaveOccurred())
			err = p.Launch(claim, w.NodeClass)
			var final *instance.LaunchError
			w.Expect(errors.As(err, &final)).To(BeTrue(), "%v", err)
			w.Expect(final.Reason).To(Equal(test.reason), final.Error())
			w.Expect(final.Error()).To(ContainSubstring(test.want))
			w.Sim.ClearFaults()
			p.Delete(w.Stored(claim))
			w.ExpectNoOrphans()
		})
	}
}
