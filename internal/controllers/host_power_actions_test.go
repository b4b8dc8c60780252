// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package controllers_test

import (
	"context"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/declared"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/observed"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/ownership"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// states is the state of each Host that has a record.
type states map[string]declared.SleepState

// asleep is that of newEnabled while pve4 sleeps.
var asleep = states{"pve4": declared.Asleep}

// states returns those in the inventory, and checks that they are the stored ones.
func (e *hostPowerEnv) states() states {
	records, err := e.store(kubeCluster).Load(e.ctx)
	e.Expect(err).NotTo(HaveOccurred())
	stored, shown := states{}, states{}
	for name, record := range records {
		stored[name.Host] = record.State
	}
	for _, host := range e.inventory.View().Hosts() {
		if host.Sleep != "" {
			shown[host.Name] = host.Sleep
		}
	}
	e.Expect(shown).To(HaveLen(len(stored)))
	return stored
}

// expectStates evaluates the Hosts after some time and checks their states.
func (e *hostPowerEnv) expectStates(after time.Duration, want states) {
	e.T.Helper()
	e.evaluate(after)
	e.Expect(e.states()).To(Equal(want), e.logged)
}

// sleepOne puts pve4 to sleep.
func (e *hostPowerEnv) sleepOne() {
	e.T.Helper()
	e.evaluate(0)
	e.expectStates(idleTime, states{"pve4": declared.ShuttingDown})
	e.expectStates(time.Minute, asleep)
}

// reserve plans a VM on pve4.
func (e *hostPowerEnv) reserve() {
	_, err := e.inventory.Ledger().Reserve("claim", func(inventory.View) (inventory.Reservation, error) {
		return inventory.Reservation{Region: testenv.Region, Host: "pve4", VMID: 20001, Amount: observed.Amount{CPUs: 1, MemoryBytes: 1 << 30}}, nil
	})
	e.Expect(err).NotTo(HaveOccurred())
}

// record writes a record about a Host.
func (e *hostPowerEnv) record(host string, state declared.SleepState) {
	e.Expect(e.store(kubeCluster).Put(e.ctx, observed.HostName{Region: testenv.Region, Host: host},
		&declared.Sleep{State: state, KubeCluster: kubeCluster, Since: time.Now()})).To(Succeed())
}

func (e *hostPowerEnv) shutdowns() int { return e.Sim.CountRequests("POST", "/nodes/*/status") }
func (e *hostPowerEnv) wakes() int     { return e.Sim.CountRequests("POST", "/nodes/*/wakeonlan") }

// evaluateWithoutQuorum evaluates the Hosts while their Cluster has no quorum.
func (e *hostPowerEnv) evaluateWithoutQuorum() {
	e.T.Helper()
	e.Expect(e.inventory.RefreshAll(e.ctx)).To(MatchError(proxmox.ErrNoQuorum))
	e.controller.Evaluate(e.ctx)
}

func TestShutDown(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		e := startEnv(t, all)
		e.evaluate(0)
		e.Expect(e.shutdowns()).To(BeZero())
		e.evaluate(idleTime)
		e.Expect(e.states()).To(ConsistOf(declared.ShuttingDown), "one at a time")
		e.evaluate(time.Second)
		e.Expect(e.shutdowns()).To(Equal(1), "the second one not until the first one is off")
		e.evaluate(time.Minute)
		e.Expect(e.states()).To(ConsistOf(declared.Asleep, declared.ShuttingDown))
		e.evaluate(time.Minute)
		got := e.evaluate(time.Hour)
		e.Expect(e.states()).To(ConsistOf(declared.Asleep, declared.Asleep), "three of five votes are needed")
		off, saved := 0.0, 0.0
		for _, host := range e.inventory.View().Hosts() {
			off, saved = off+got["asleep "+host.Name], saved+got["sleep_saved_watts "+host.Name]
			if host.Sleep != "" {
				e.Expect(host.IsAvailable(inventory.Launch) && host.IsAvailable(inventory.Keep) && host.Free.CPUs > 0).To(BeTrue(), "it can be woken")
			}
		}
		e.Expect([]float64{off, saved}).To(Equal([]float64{2, 120}))
		e.Expect(e.Events.Messages("HostShutDown")).To(HaveLen(2))
	})
}

func TestWake(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		e := startEnv(t, enabled)
		e.sleepOne()
		e.Expect(e.evaluate(time.Hour)).To(HaveKeyWithValue("asleep pve4", 1.0))
		e.Expect(e.wakes()).To(BeZero(), "nothing needs it")
		e.reserve()
		e.expectStates(0, states{"pve4": declared.Waking})
		e.expectStates(time.Minute, states{})
		e.Expect(e.wakes()).To(Equal(1))
		e.Expect(e.evaluate(0)).To(And(
			HaveKeyWithValue("power_actions_total Wake pve4 Success", 1.0), HaveKeyWithValue("power_actions_total Shutdown pve4 Success", 1.0)))
		e.Expect(e.Events.Messages("HostWoken")).To(ConsistOf(ContainSubstring("20001 (being launched)")))
		e.evaluate(time.Hour)
		e.Expect(e.shutdowns()).To(Equal(1), "the VM keeps it awake")
	})
}

func TestWakeFailed(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		e := startEnv(t, enabled)
		e.sleepOne()
		e.Expect(e.Sim.SetBootFails("pve4", true)).To(Succeed())
		e.reserve()
		e.evaluate(0)
		e.evaluate(29 * time.Second)
		e.Expect(e.wakes()).To(Equal(1))
		e.evaluate(time.Second)
		e.Expect(e.wakes()).To(Equal(2), "the packet is sent again")
		got := e.evaluate(5 * time.Minute)
		e.Expect(e.states()).To(HaveKeyWithValue("pve4", declared.WakeFailed))
		e.Expect(got).To(HaveKeyWithValue("power_actions_total Wake pve4 Failure", 1.0))
		e.Expect(e.pve4().Obstacle(inventory.Launch).Message).To(ContainSubstring("did not wake up in time"))
		e.Expect(e.Events.Messages("HostWakeFailed")).To(ConsistOf(ContainSubstring("region-1/pve4 did not come online within 5m0s")))
		e.inventory.Ledger().Release("claim")
		e.expectStates(31*time.Minute, asleep) // it is tried again
		e.Expect(e.Sim.HostUp("pve4")).To(Succeed())
		e.expectStates(time.Minute, states{})
	})
}

// A Host that was shut down by an administrator has no record and is not woken.
func TestWakeNoRecord(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		e := startEnv(t, enabled)
		e.evaluate(0)
		e.Expect(e.Sim.ShutdownHost("pve4")).To(Succeed())
		e.Expect(e.evaluate(time.Minute)).To(HaveKey("sleep_blocked pve4 NotOnline"))
		e.reserve()
		e.expectStates(time.Hour, states{})
		e.Expect(e.wakes()).To(BeZero())
	})
}

// Hosts return when power management is turned off, and when another Host fails.
func TestWakeReasons(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		change func(*hostPowerEnv)
		reason string
	}{
		"disabled": {func(e *hostPowerEnv) { e.inventory.SetSettings(declared.Settings{}) }, "powermanagement is None"},
		"template": {func(e *hostPowerEnv) {
			e.templates = map[observed.HostName][]string{{Region: testenv.Region, Host: "pve4"}: {"debian"}}
		}, "templates to build or delete: debian"},
		"host_failed": {func(e *hostPowerEnv) { e.Expect(e.Sim.HostDown("pve2", "noroute")).To(Succeed()) }, "votes"},
	} {
		testenv.RunSimulated(t, name, func(t *testing.T) {
			e := startEnv(t, enabled)
			e.sleepOne()
			test.change(e)
			e.evaluate(time.Minute)
			e.Expect(e.Events.Messages("HostWoken")).To(ConsistOf(ContainSubstring(test.reason)))
			e.expectStates(time.Minute, states{})
		})
	}
}

// Hosts that sleep return when the others have no quorum.
func TestWakeWithoutQuorum(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		e := startEnv(t, enabled)
		e.sleepOne()
		e.Expect(e.Sim.HostDown("pve2", "noroute")).To(Succeed())
		e.Expect(e.Sim.HostDown("pve3", "noroute")).To(Succeed())
		e.evaluateWithoutQuorum()
		e.Expect(e.Events.Messages("HostWoken")).To(ConsistOf("Waking host region-1/pve4: the Proxmox cluster has no quorum"))
		time.Sleep(time.Minute)
		e.evaluateWithoutQuorum() // the first response after quorum returned shows none
		e.expectStates(0, states{})
	})
}

// A host that shuts down while quorum is lost for a moment stays recorded.
func TestShutDownWithoutQuorum(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		e := startEnv(t, enabled)
		e.record("pve4", declared.ShuttingDown)
		e.start(kubeCluster)
		e.evaluate(0)
		e.Sim.SetQuorum(false)
		e.evaluateWithoutQuorum()
		e.Expect(e.wakes()).To(Equal(1))
		e.Sim.SetQuorum(true)
		e.expectStates(0, states{"pve4": declared.ShuttingDown})

		e.Sim.SetQuorum(false)
		e.Expect(e.Sim.HostDown("pve4", "refused")).To(Succeed())
		time.Sleep(time.Minute)
		e.Expect(e.Sim.HostUp("pve4")).To(Succeed())
		e.Sim.SetQuorum(true)
		e.expectStates(5*time.Minute, states{}) // it was off and restarted
		e.Expect(e.Events.Messages("HostShutdownFailed")).To(BeEmpty())
	})
}

// A host that wakes gets another packet while another one shuts down.
func TestWakeDuringShutdown(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		e := startEnv(t, enabled)
		e.sleepOne()
		e.reserve()
		testenv.AddFault(t, e.Sim, pvesim.Fault{Method: "POST", Path: "/nodes/*/wakeonlan", Status: 500, Message: "lost"})
		e.evaluate(0)
		e.Expect(e.wakes()).To(Equal(1))
		e.record("pve3", declared.ShuttingDown)
		e.start(kubeCluster)
		e.evaluate(31 * time.Second)
		e.Expect(e.wakes()).To(Equal(2))
	})
}

// onWrite calls a function when the record is written, which is after the first decision and
// before the request.
func (e *hostPowerEnv) onWrite(do func() error) {
	e.kube = interceptor.NewClient(e.kube.(client.WithWatch), interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			if err := do(); err != nil {
				return err
			}
			return c.Create(ctx, o, opts...)
		},
	})
	e.start(kubeCluster)
}

// Everything is read again after the first decision.
func TestShutDownGuards(t *testing.T) {
	t.Parallel()
	fault := func(path string) func(*hostPowerEnv) {
		return func(e *hostPowerEnv) {
			testenv.AddFault(e.T, e.Sim, pvesim.Fault{Method: "GET", Path: path, Status: 500, Message: "broken"})
		}
	}
	for name, change := range map[string]func(*hostPowerEnv){
		"VM_being_launched": func(e *hostPowerEnv) { e.reserve() },
		"guest":             func(e *hostPowerEnv) { e.Expect(e.Sim.MigrateGuest(150, "pve4")).To(Succeed()) },
		"other_cluster":     func(e *hostPowerEnv) { e.Expect(e.Sim.MigrateGuest(20000, "pve4")).To(Succeed()) },
		"host_failed":       func(e *hostPowerEnv) { e.Expect(e.Sim.HostDown("pve2", "noroute")).To(Succeed()) },
		"HA_rule":           func(e *hostPowerEnv) { e.Sim.AddHAGroup("prefer", "pve4") },
		"maintenance": func(e *hostPowerEnv) {
			e.inventory.SetMaintenance(declared.Maintenance{{Region: testenv.Region, Host: "pve4"}: "disk"})
		},
		"facts": fault("/cluster/tasks"),
		"poll":  fault("/cluster/resources"),
	} {
		testenv.RunSimulated(t, name, func(t *testing.T) {
			e := startEnv(t, enabled, func(s *pvesim.Scenario) {
				s.Version = "8.4"
				mark := ownership.Mark{VMID: 20000, KubeCluster: "other", ClaimUID: "a"}
				s.Guests = append(s.Guests,
					pvesim.Guest{VMID: 150, Host: "pve1", Status: "running", Config: map[string]string{"memory": "1024", "cores": "1"}},
					pvesim.Guest{VMID: 20000, Host: "pve1", Config: map[string]string{"memory": "1024", "description": mark.Notes("")}})
			})
			e.onWrite(func() error { change(e); return nil })
			e.evaluate(0)
			time.Sleep(idleTime)
			e.controller.Evaluate(e.ctx)
			e.Expect(e.shutdowns()).To(BeZero(), e.logged)
			e.Expect(e.states()).To(BeEmpty())
			e.Expect(e.logged()).To(ContainSubstring("pve4"))
		})
	}
}

func TestShutDownPrivilege(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		e := startEnv(t, enabled, withoutPrivilege("Karpenter Sys.PowerMgmt"))
		e.evaluate(0)
		e.Expect(e.evaluate(time.Hour)).To(HaveKey("sleep_blocked pve4 PrivilegeMissing"))
		e.Expect(e.logged()).To(ContainSubstring("lacks Sys.PowerMgmt on /nodes/pve4"))
		e.Expect(e.shutdowns()).To(BeZero())
	})
}

func TestShutDownErrors(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		fault  pvesim.Fault // of the request
		expect func(*hostPowerEnv)
	}{
		"refused": {fault: pvesim.Fault{Status: 500, Message: "broken"}, expect: func(e *hostPowerEnv) {
			e.Expect(e.states()).To(BeEmpty())
			e.Expect(e.Events.Messages("HostShutdownFailed")).To(ConsistOf(ContainSubstring("broken")))
			e.evaluate(time.Minute)
			e.Expect(e.shutdowns()).To(Equal(1), "it is left alone for a while")
			e.evaluate(30 * time.Minute)
			e.Expect(e.shutdowns()).To(Equal(2))
		}},
		"host_unreachable": {fault: pvesim.Fault{Status: 595}, expect: func(e *hostPowerEnv) { e.Expect(e.states()).To(BeEmpty(), "the request had no effect") }},
		"response_lost":    {fault: pvesim.Fault{DropAfter: true}, expect: func(e *hostPowerEnv) { e.expectStates(time.Minute, asleep) }},
		"record_not_written": {expect: func(e *hostPowerEnv) {
			e.Expect(e.shutdowns()).To(BeZero())
			e.Expect(e.states()).To(BeEmpty())
		}},
		"stays_online": {expect: func(e *hostPowerEnv) {
			e.Expect(e.states()).To(HaveKey("pve4"))
			e.evaluate(15*time.Minute - time.Second)
			e.Expect(e.states()).To(HaveKey("pve4"))
			e.expectStates(2*time.Second, states{})
			e.Expect(e.Events.Messages("HostShutdownFailed")).To(ConsistOf(ContainSubstring("still online")))
		}},
	} {
		testenv.RunSimulated(t, name, func(t *testing.T) {
			e := startEnv(t, enabled, func(s *pvesim.Scenario) {
				if name == "stays_online" {
					s.Hosts[3].ShutdownTime = pvesim.Duration(24 * time.Hour)
				}
			})
			if test.fault != (pvesim.Fault{}) {
				test.fault.Method, test.fault.Path, test.fault.Count = "POST", "/nodes/*/status", 1
				testenv.AddFault(t, e.Sim, test.fault)
			}
			if name == "record_not_written" {
				e.onWrite(func() error { return context.DeadlineExceeded })
			}
			e.evaluate(0)
			e.evaluate(idleTime)
			test.expect(e)
		})
	}
}
