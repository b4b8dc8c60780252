// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instance_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/ownership"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

func TestLaunchImpossible(t *testing.T) {
	t.Parallel()
	testenv.With(testenv.NoPolling()).Subtest(t, "VMID_taken", func(w *testenv.Env, p *testenv.Process) {
		claim := p.Planned("pool-abc", w.NodeClass)
		in := w.Intent(claim)
		w.CloneByHand(in.Host, in.VMID, "foreign")
		w.Expect(p.Launch(claim, w.NodeClass)).To(testenv.HaveReason(v1alpha1.EventVMIDTaken))
		p.Delete(claim)
		w.Expect(w.VMConfig(in).Name()).To(Equal("foreign"))
		w.ExpectNoBootDrives()
		w.ExpectNoTokens()
	})
	// Proxmox would clone to a host that is offline, and the VM could not be deleted.
	testenv.With(testenv.Hosts(2)).Subtest(t, "host_offline", func(w *testenv.Env, p *testenv.Process) {
		claim := p.Planned("pool-abc", w.NodeClass, testenv.OnHost("pve2"))
		w.Expect(w.Sim.HostDown("pve2", "noroute")).To(Succeed())
		w.Clock.Advance(time.Minute)
		w.Expect(p.Launch(claim, w.NodeClass)).To(testenv.HaveReason(v1alpha1.EventInsufficientCapacity))
		w.Expect(w.Sim.CountRequests("POST", "/nodes/{node}/qemu/{vmid}/clone")).To(BeZero())
	})
}

const noWorker = "got no worker upid - start worker failed"

// Errors after which a launch is retried.
func TestLaunchTransientErrors(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]pvesim.Fault{
		"no_worker_for_clone":       {Method: "POST", Path: "/nodes/{node}/qemu/{vmid}/clone", Count: 2, Status: 500, Message: noWorker},
		"storage_lock_during_clone": {Task: "qmclone", Count: 1, Fail: "clone failed: can't lock file '/var/lock/pve-manager/pve-storage-local-lvm' - got timeout"},
		"lock_during_config_write":  lockedConfig,
		"lost_response_to_start":    {Method: "POST", Path: "/nodes/{node}/qemu/{vmid}/status/start", Count: 1, DropAfter: true},
		"status_596_for_upload":     {Method: "POST", Path: "/nodes/{node}/storage/{storage}/upload", Count: 1, Status: 596, Message: "Broken pipe"},
		"temporarily_no_quorum":     {Method: "POST", Path: "/nodes/{node}/qemu/{vmid}/clone", Count: 1, Status: 500, Message: "cluster not ready - no quorum?"},
	} {
		testenv.With().Subtest(t, name, func(w *testenv.Env, p *testenv.Process) {
			claim := p.Planned("pool-abc", w.NodeClass)
			w.AddFault(fault)
			p.MustLaunch(claim, w.NodeClass)
			w.Expect(w.VMs()).To(HaveLen(1))
			p.DeleteAll(claim)
		})
	}
}

// Errors after which a launch fails.
func TestLaunchFinalErrors(t *testing.T) {
	t.Parallel()
	const noRoot = "region " + testenv.Region + ": the cloud config has no login of root"
	for name, test := range map[string]struct {
		scenario     func(*pvesim.Scenario)
		class        func(*v1alpha1.ProxmoxNodeClassSpec)
		fault        pvesim.Fault
		reason, want string
	}{
		"storage_full": {
			fault:  pvesim.Fault{Task: "qmclone", Fail: "clone failed: lvcreate 'pve/vm-1-disk-0' error: No space left on device"},
			reason: v1alpha1.EventStorageFull, want: "No space left",
		},
		// Other users can fill a storage after the launch was planned.
		"disk_storage_full": {
			fault:  pvesim.Fault{Method: "PUT", Path: "/nodes/*/qemu/*/config", Status: 500, Message: "lvcreate 'fast/vm-1-disk-1': no space left on device"},
			reason: v1alpha1.EventStorageFull, want: "no space left",
		},
		"missing_privilege": {
			fault:  pvesim.Fault{Method: "PUT", Path: "/nodes/{node}/qemu/{vmid}/config", Status: 403, Message: "Permission check failed (/vms/1, VM.Config.CPU)"},
			reason: v1alpha1.EventPermissionMissing, want: "VM.Config.CPU",
		},
		"missing_template": {
			fault:  pvesim.Fault{Method: "POST", Path: "/nodes/*/qemu/*/clone", Status: 500, Message: "unable to find configuration file for VM 9000 on node 'pve1'"},
			reason: v1alpha1.EventCloneFailed, want: "9000",
		},
		"missing_bridge": {
			scenario: templatesWith(map[string]string{"net0": "virtio=BC:24:11:00:00:01,bridge=vmbr7"}),
			reason:   v1alpha1.EventStartFailed, want: "bridge 'vmbr7' does not exist",
		},
		"invalid_tag": {
			class:  func(c *v1alpha1.ProxmoxNodeClassSpec) { c.Tags = []string{"{{ .Region }}/k8s"} },
			reason: v1alpha1.EventBootDataFailed, want: `spec.tags[0] "{{ .Region }}/k8s" renders to "region-1/k8s", which is not a tag`,
		},
		"unknown_HA_rule": {
			scenario: func(s *pvesim.Scenario) {
				s.Version, s.Roles[0].Privileges = "9.2", append(s.Roles[0].Privileges, "Sys.Console")
			},
			class: func(c *v1alpha1.ProxmoxNodeClassSpec) {
				c.HighAvailability = &v1alpha1.HighAvailability{Rules: []string{"rack2"}}
			},
			reason: v1alpha1.EventProxmoxRefused, want: `HA rule "rack2" does not exist`,
		},
		"encryption_without_root": {
			class:  func(c *v1alpha1.ProxmoxNodeClassSpec) { c.Hardware = encrypted },
			reason: v1alpha1.EventPermissionMissing, want: "setting amd-sev of VM",
		},
		"plan9_without_root": {
			scenario: mapped("pve1"),
			class: func(c *v1alpha1.ProxmoxNodeClassSpec) {
				c.Shares = []v1alpha1.Share{{Mapping: "data", Type: v1alpha1.ShareTypePlan9, MountPath: "/mnt/data"}}
			},
			reason: v1alpha1.EventPermissionMissing, want: "which only root may do: " + noRoot,
		},
	} {
		options := []testenv.Option{testenv.NoPolling()}
		if test.scenario != nil {
			options = append(options, testenv.Scenario(test.scenario))
		}
		testenv.With(options...).Subtest(t, name, func(w *testenv.Env, p *testenv.Process) {
			if test.class != nil {
				test.class(&w.NodeClass.Spec)
			}
			claim := p.Planned("pool-abc", w.NodeClass)
			if test.fault.Status != 0 || test.fault.Task != "" {
				w.AddFault(test.fault)
			}
			w.Expect(p.Launch(claim, w.NodeClass)).To(And(testenv.HaveReason(test.reason), MatchError(ContainSubstring(test.want))))
			w.Sim.ClearFaults()
			p.DeleteAll(claim)
		})
	}
}

// If resizes are known to be quick, the VM is started in parallel.
func TestLaunchSlowResize(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		fault  pvesim.Fault
		locked bool
	}{
		"slow":   {pvesim.Fault{Task: "resize", Delay: pvesim.Duration(5 * time.Second), Count: 1}, false},
		"locked": {pvesim.Fault{Task: "resize", Fail: "can't lock file '/var/lock/qemu-server/lock-20001.conf' - got timeout", Count: 1}, true},
	} {
		testenv.With(testenv.NoPolling()).Subtest(t, name, func(w *testenv.Env, p *testenv.Process) {
			p.Delete(p.Launched("measured", w.NodeClass))
			w.AddFault(c.fault)
			claim := p.Planned("pool-abc", w.NodeClass)
			if c.locked {
				w.Expect(p.Launch(claim, w.NodeClass)).To(And(MatchError(proxmox.ErrLocked), Not(BeAssignableToTypeOf(&instance.LaunchError{}))))
			}
			w.Expect(p.Launch(claim, w.NodeClass)).To(Succeed())
			w.Expect(w.Sim.Faults()[0].Hits).To(Equal(1))
			w.Expect(bootDisk(w, w.Intent(claim)).SizeBytes).To(Equal(w.Intent(claim).DiskBytes))
			w.Expect(w.Running(claim)).To(BeTrue())
		})
	}
}

// refuseSlowClones refuses Hosts whose clones take longer than ten seconds.
var refuseSlowClones = testenv.With(testenv.NoPolling(), testenv.Settings(func(s *instance.Settings) { s.CloneRefuseAfter = 10 * time.Second }))

func TestLaunchClone(t *testing.T) {
	t.Parallel()
	refuseSlowClones.Subtest(t, "slow", func(w *testenv.Env, p *testenv.Process) {
		claim := p.Planned("pool-abc", w.NodeClass)
		w.AddFault(pvesim.Fault{Task: "qmclone", Hang: true})
		w.Expect(p.Launch(claim, w.NodeClass)).To(testenv.HaveReason(v1alpha1.EventCloneTooSlow))
		w.Expect(p.Instances.Health.CloneTime(testenv.Region, "pve1", "local-lvm")).To(BeNumerically(">", 10*time.Second))
		p.DeleteAll(claim)

		refusal, warning := p.Instances.Health.EvaluateClones(testenv.Region, "pve1", "local-lvm")
		w.Expect(refusal).To(ContainSubstring("clones take about"))
		w.Expect(warning).To(BeEmpty())
		refusal, warning = p.Instances.Health.EvaluateClones(testenv.Region, "pve1", "another")
		w.Expect(refusal+warning).To(BeEmpty(), "not measured")
	})
	// While the Host of a clone is unreachable, it is unknown how long the clone takes.
	refuseSlowClones.Subtest(t, "during_outage", func(w *testenv.Env, p *testenv.Process) {
		claim := p.Planned("pool-abc", w.NodeClass)
		w.AddFault(pvesim.Fault{Task: "qmclone", Hang: true})
		for _, path := range []string{"/nodes/*/tasks", "/nodes/*/tasks/*/status"} {
			w.AddFault(pvesim.Fault{Path: path, Status: 595, Message: "No route to host"})
		}
		w.Expect(p.Launch(claim, w.NodeClass)).To(And(MatchError(proxmox.ErrHostUnreachable), Not(BeAssignableToTypeOf(&instance.LaunchError{}))))
		refusal, warning := p.Instances.Health.EvaluateClones(testenv.Region, "pve1", "local-lvm")
		w.Expect(refusal + warning).To(BeEmpty())
	})
	// After a restart, a launch or a deletion waits for clones that may be its own, but not for those
	// that this process started for other claims.
	testenv.With().Subtest(t, "beside_another", func(w *testenv.Env, p *testenv.Process) {
		resumed, deleted := p.Planned("pool-a", w.NodeClass), p.Planned("pool-b", w.NodeClass)
		p = w.StartProcess()
		other := p.Planned("pool-c", w.NodeClass)
		w.AddFault(pvesim.Fault{Task: "qmclone", Hang: true, Count: 1})
		ctx, cancel := context.WithCancel(w.Context())
		var launch sync.WaitGroup
		launch.Go(func() { _ = p.Instances.Launcher.Launch(ctx, other, w.NodeClass) })
		defer launch.Wait()
		defer cancel()
		w.Eventually(func() int { return w.Sim.CountRequests("POST", "/nodes/{node}/qemu/{vmid}/clone") }).Should(Equal(1))
		w.Clock.Sleep(time.Second) // the response is received
		p.MustLaunch(resumed, w.NodeClass)
		p.Delete(deleted)
	})
	// A VM whose clone ends between two requests of a restarted controller is used.
	testenv.With(testenv.NoPolling()).Subtest(t, "ends_during_resume", func(w *testenv.Env, p *testenv.Process) {
		claim := p.Planned("pool-abc", w.NodeClass)
		w.AddFault(pvesim.Fault{Method: "POST", Path: "/nodes/{node}/qemu/{vmid}/status/start", Count: 1, Status: 500, Message: "not now"})
		w.Expect(p.Launch(claim, w.NodeClass)).To(MatchError(ContainSubstring("not now")))
		p = w.StartProcess(testenv.NoPolling())
		// The first two requests of the launch do not find the VM.
		missing := fmt.Sprintf("Configuration file 'nodes/pve1/qemu-server/%d.conf' does not exist", w.Intent(claim).VMID)
		w.AddFault(pvesim.Fault{Method: "GET", Path: "/nodes/{node}/qemu/{vmid}/config", Count: 2, Status: 500, Message: missing})
		p.MustLaunch(w.Stored(claim), w.NodeClass)
	})
}

// If the status of the task cannot be read, the clone continues.
func TestLaunchPollingCloneFails(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]pvesim.Fault{
		"token_replaced": {Status: 401, Message: "authentication failure"},
		"other_error":    {Status: 500, Message: "internal error"},
	} {
		testenv.With(testenv.NoPolling()).Subtest(t, name, func(w *testenv.Env, p *testenv.Process) {
			w.NodeClass.Spec.BootDevice.FullClone = true
			claim := p.Planned("pool-abc", w.NodeClass)
			answer.Method, answer.Path, answer.Count = "GET", "/nodes/*/tasks/*qmclone*/status", 1
			w.AddFault(answer)
			w.Expect(p.Launch(claim, w.NodeClass)).To(Succeed())
			w.Expect(w.Sim.CountRequests("POST", "/nodes/{node}/qemu/{vmid}/clone")).To(Equal(1))
			w.Expect(w.Intent(claim)).To(And(HaveField("FullClone", true), HaveField("Storage", "local-lvm")))
			w.Expect(bootDisk(w, w.Intent(claim)).VolumeID).To(HavePrefix("local-lvm:vm-"))
		})
	}
}

func TestLaunchRetry(t *testing.T) {
	t.Parallel()
	// The retry timeout restarts with each phase.
	testenv.With(testenv.NoPolling(), testenv.Settings(func(s *instance.Settings) {
		s.LaunchRetryTimeout, s.TaskTimeout = time.Minute, 2*time.Minute
	})).Subtest(t, "timeout_restarts", func(w *testenv.Env, p *testenv.Process) {
		claim := p.Planned("pool-abc", w.NodeClass)
		w.AddFault(pvesim.Fault{Method: "POST", Path: "/nodes/{node}/qemu/{vmid}/clone", Count: 1, Status: 500, Message: noWorker})
		w.AddFault(pvesim.Fault{Task: "qmclone", Delay: pvesim.Duration(75 * time.Second), Count: 1})
		w.AddFault(lockedConfig)
		w.Expect(p.Launch(claim, w.NodeClass)).To(MatchError(proxmox.ErrBusy))
		w.Expect(p.Launch(w.Stored(claim), w.NodeClass)).To(And(MatchError(proxmox.ErrLocked), Not(BeAssignableToTypeOf(&instance.LaunchError{}))))
		w.Expect(p.Launch(w.Stored(claim), w.NodeClass)).To(Succeed())
	})
	// A request in flight has an effect even if it is canceled: an attempt that fails must
	// wait for it, or the next one would add the rule twice.
	testenv.With(testenv.NoPolling()).Subtest(t, "firewall_rule_in_flight", func(w *testenv.Env, p *testenv.Process) {
		claim := p.Planned("pool-abc", w.NodeClass)
		w.AddFault(pvesim.Fault{Method: "POST", Path: "/nodes/{node}/qemu/{vmid}/firewall/rules", Delay: pvesim.Duration(20 * time.Second), Count: 1})
		w.AddFault(lockedConfig)
		w.Expect(p.Launch(claim, w.NodeClass)).To(MatchError(proxmox.ErrLocked))
		w.Expect(w.Sim.FirewallGroups()[w.Intent(claim).VMID]).To(HaveLen(1))
	})
}

// lockedConfig fails one write of a configuration.
var lockedConfig = pvesim.Fault{
	Method: "PUT", Path: "/nodes/{node}/qemu/{vmid}/config", Count: 1, Status: 500,
	Message: "can't lock file '/var/lock/qemu-server/lock-20001.conf' - got timeout",
}

func TestLaunchResumed(t *testing.T) {
	t.Parallel()
	// The controller is killed between clone and configuration, and the class was changed. The mark describes
	// the VM as it is configured, not as it was cloned.
	testenv.With(testenv.Scenario(func(s *pvesim.Scenario) {
		s.Storages = append(s.Storages, pvesim.Storage{ID: "nas", Type: "nfs", Content: []string{"iso"}, Shared: true, Size: pvesim.TiB})
	})).Subtest(t, "with_changed_class", func(w *testenv.Env, p *testenv.Process) {
		w.NodeClass.Spec.MetadataOptions.Storage = "local"
		claim := p.Planned("pool-abc", w.NodeClass)
		w.AddFault(pvesim.Fault{Method: "PUT", Path: "/nodes/*/qemu/*/config", Status: 500, Message: "busy", Count: 1})
		w.Expect(p.Launch(claim, w.NodeClass)).NotTo(Succeed())
		mark, _ := ownership.Read(w.VMConfig(w.Intent(claim)).Description())
		w.Expect(mark.Boot).To(HaveField("Storage", "local"))

		w.NodeClass.Spec.MetadataOptions.Storage = "nas"
		p = w.StartProcess()
		p.MustLaunch(w.Stored(claim), w.NodeClass)
		mark, _ = ownership.Read(w.VMConfig(w.Intent(claim)).Description())
		w.Expect(mark.Boot).To(HaveField("Storage", "nas"))
		w.Expect(mark.Source).To(HaveField("VMID", w.Intent(claim).TemplateID))
		w.Expect(p.Instances.Deleter.CleanupBootDrive(w.Context(), w.Stored(claim))).To(Succeed())
		w.Expect(w.Volumes("pve1", "nas", "iso")).To(BeEmpty())
	})
	// The controller is killed after the start, and the class does not select the host any more. The VM stays: it is
	// only planned for a host of the class before it is configured.
	testenv.With(testenv.Hosts(2)).Subtest(t, "on_deselected_host", func(w *testenv.Env, p *testenv.Process) {
		claim := p.Launched("pool-abc", w.NodeClass, testenv.OnHost("pve2"))
		w.NodeClass.Status.SelectedZones = slices.DeleteFunc(w.NodeClass.Status.SelectedZones, func(zone string) bool { return strings.Contains(zone, "pve2") })
		p = w.StartProcess()
		w.Expect(p.Instances.VMs.IsLaunched(claim)).To(BeFalse())
		w.Expect(p.Launch(w.Stored(claim), w.NodeClass)).To(Succeed())
		w.Expect(w.Running(claim)).To(BeTrue())
	})
	// Another process cleans up the boot drive when it has polled the VM.
	testenv.With(testenv.NoPolling()).Subtest(t, "cleanup_of_unknown_VM", func(w *testenv.Env, p *testenv.Process) {
		claim := p.Launched("pool-abc", w.NodeClass)
		w.Expect(w.BootDrives("pve1")).To(HaveLen(1))
		p = w.StartProcess(testenv.NeverPolled())
		w.Expect(p.Instances.Deleter.CleanupBootDrive(w.Context(), claim)).To(MatchError(instance.ErrNotPolled))
		w.Expect(w.BootDrives("pve1")).To(HaveLen(1))
		p.Refresh()
		w.Expect(p.Instances.Deleter.CleanupBootDrive(w.Context(), claim)).To(Succeed())
		w.Expect(w.BootDrives("pve1")).To(BeEmpty())
	})
}
