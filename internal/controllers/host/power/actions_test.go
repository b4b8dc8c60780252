// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package power_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/ownership"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

const (
	enabled = `{"home": {"*": {"wattsidle": 60, "wattsfull": 160}, "pve4": {"powermanagement": "Enabled"}}}`
	// all enrolls all Hosts.
	all = `{"home": {"*": {"wattsidle": 60, "wattsfull": 160, "powermanagement": "Enabled"}}}`
)

// enabledScenario returns five Hosts that vote and can be woken, with a template on each. The
// account may shut them down.
func enabledScenario() *pvesim.Scenario {
	s := pvesim.DefaultScenario(5)
	s.Votes = &pvesim.Votes{}
	s.Guests = slices.DeleteFunc(s.Guests, func(g pvesim.Guest) bool { return g.VMID < 9000 })
	s.Roles[0].Privileges = append(s.Roles[0].Privileges, "Sys.PowerMgmt")
	for i := range s.Hosts {
		s.Hosts[i].Config = map[string]string{"wakeonlan": fmt.Sprintf("BC:24:11:AA:00:%02d", i)}
		s.Hosts[i].ShutdownTime, s.Hosts[i].BootTime = pvesim.Duration(5*time.Second), pvesim.Duration(10*time.Second)
	}
	return s
}

// states returns the state of each Host in the inventory that has a record, and checks that it is
// the stored one.
func (e *env) states() map[string]inventory.SleepState {
	records, err := e.store(kubeCluster).Load(e.ctx)
	e.Expect(err).NotTo(HaveOccurred())
	stored, shown := map[string]inventory.SleepState{}, map[string]inventory.SleepState{}
	for name, record := range records {
		stored[name.Host] = record.State
	}
	for _, host := range e.inventory.View().Hosts() {
		if host.Sleep != "" {
			shown[host.Name] = host.Sleep
		}
	}
	if len(stored) != len(shown) {
		return map[string]inventory.SleepState{"stored and shown differ": inventory.SleepState(fmt.Sprint(stored, shown))}
	}
	return stored
}

// evaluateUntil evaluates the Hosts until the states are as given. The clock does not advance.
func (e *env) evaluateUntil(want map[string]inventory.SleepState) {
	e.Eventually(func() map[string]inventory.SleepState { e.evaluate(0); return e.states() }).WithTimeout(time.Minute).Should(Equal(want), e.log.String)
}

// sleepOne puts pve4 to sleep.
func (e *env) sleepOne() {
	e.evaluate(0)
	e.evaluate(31 * time.Minute)
	e.evaluateUntil(map[string]inventory.SleepState{"pve4": inventory.Asleep})
}

// reserve plans a VM on pve4.
func (e *env) reserve() {
	_, err := e.inventory.Ledger().Reserve("claim", func(inventory.View) (inventory.Reservation, error) {
		return inventory.Reservation{Region: "home", Host: "pve4", VMID: 20001, Amount: inventory.Amount{CPUs: 1, MemoryBytes: 1 << 30}}, nil
	})
	e.Expect(err).NotTo(HaveOccurred())
}

func (e *env) shutdowns() int { return e.sim.CountRequests("POST", "/nodes/*/status") }
func (e *env) wakes() int     { return e.sim.CountRequests("POST", "/nodes/*/wakeonlan") }

func TestShutDown(t *testing.T) {
	t.Parallel()
	e := startEnv(t, enabledScenario(), all)
	e.evaluate(0)
	e.Expect(e.shutdowns()).To(BeZero())
	e.evaluate(31 * time.Minute)
	e.Expect(e.states()).To(HaveLen(1), "one at a time")
	e.Expect(e.shutdowns()).To(Equal(1))
	e.Eventually(func() map[string]inventory.SleepState {
		e.evaluate(0)
		states, shuttingDown := e.states(), 0
		for _, state := range states {
			if state == inventory.ShuttingDown {
				shuttingDown++
			}
		}
		e.Expect(shuttingDown).To(BeNumerically("<=", 1), "the second one not until the first one is off")
		return states
	}).WithTimeout(time.Minute).Should(And(HaveLen(2), Not(ContainElement(inventory.ShuttingDown))))
	got := e.evaluate(time.Hour)
	e.Expect(e.states()).To(HaveLen(2), "three of five votes are needed")
	asleep, saved := 0.0, 0.0
	for _, host := range []string{"pve1", "pve2", "pve3", "pve4", "pve5"} {
		asleep, saved = asleep+got["asleep "+host], saved+got["sleep_saved_watts "+host]
	}
	e.Expect([]float64{asleep, saved}).To(Equal([]float64{2, 120}))
	e.Expect(e.events.Messages("HostShutDown")).To(HaveLen(2))
	for _, host := range e.inventory.View().Hosts() {
		if host.Sleep != "" {
			e.Expect(host).To(And(HaveField("Unusable", ""), HaveField("OutOfService", BeEmpty()), HaveField("Free.CPUs", BeNumerically(">", 0))), "it can be woken")
		}
	}
}

func TestWake(t *testing.T) {
	t.Parallel()
	e := startEnv(t, enabledScenario(), enabled)
	e.sleepOne()
	e.Expect(e.evaluate(time.Hour)).To(HaveKeyWithValue("asleep pve4", 1.0))
	e.Expect(e.wakes()).To(BeZero(), "nothing needs it")
	e.reserve()
	e.evaluate(0)
	e.Expect(e.states()).To(HaveKeyWithValue("pve4", inventory.Waking))
	e.Expect(e.wakes()).To(Equal(1))
	e.evaluateUntil(map[string]inventory.SleepState{})
	e.Expect(e.wakes()).To(Equal(1))
	e.Expect(e.evaluate(0)).To(And(HaveKeyWithValue("power_actions_total Wake pve4 Success", 1.0), HaveKeyWithValue("power_actions_total Shutdown pve4 Success", 1.0)))
	e.Expect(e.events.Messages("HostWoken")).To(ConsistOf(ContainSubstring("20001 (being launched)")))
	e.evaluate(time.Hour)
	e.Expect(e.shutdowns()).To(Equal(1), "the VM keeps it awake")
}

// A Host that was shut down by an administrator has no record and is not woken.
func TestWakeNoRecord(t *testing.T) {
	t.Parallel()
	e := startEnv(t, enabledScenario(), enabled)
	e.evaluate(0)
	e.Expect(e.sim.ShutdownHost("pve4")).To(Succeed())
	e.Eventually(func() map[string]float64 { return e.evaluate(0) }).WithTimeout(time.Minute).Should(HaveKey("sleep_blocked pve4 NotOnline"))
	e.reserve()
	e.evaluate(time.Hour)
	e.Expect(e.states()).To(BeEmpty())
	e.Expect(e.wakes()).To(BeZero())
}

func TestWakeFailed(t *testing.T) {
	t.Parallel()
	e := startEnv(t, enabledScenario(), enabled)
	e.sleepOne()
	e.Expect(e.sim.SetBootFails("pve4", true)).To(Succeed())
	e.reserve()
	e.evaluate(0)
	e.evaluate(31 * time.Second)
	e.Expect(e.wakes()).To(Equal(2), "the packet is sent again")
	got := e.evaluate(5 * time.Minute)
	e.Expect(e.states()).To(HaveKeyWithValue("pve4", inventory.WakeFailed))
	e.Expect(got).To(HaveKeyWithValue("power_actions_total Wake pve4 Failure", 1.0))
	host, _ := e.inventory.View().Host("home", "pve4")
	e.Expect(host.Unusable).To(ContainSubstring("did not wake up in time"))
	e.Expect(e.events.Messages("HostWakeFailed")).To(ConsistOf(ContainSubstring("home/pve4 did not come online within 5m0s")))
	e.inventory.Ledger().Release("claim")
	e.evaluate(31 * time.Minute)
	e.Expect(e.states()).To(HaveKeyWithValue("pve4", inventory.Asleep), "it is tried again")
	e.Expect(e.sim.HostUp("pve4")).To(Succeed())
	e.evaluateUntil(map[string]inventory.SleepState{})
}

// Hosts return when power management is turned off, and when another Host fails.
func TestWakeReasons(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		change func(*env)
		reason string
	}{
		"disabled": {func(e *env) { e.inventory.SetSettings(inventory.Settings{}) }, "powermanagement is None"},
		"minimum": {func(e *env) {
			settings, err := inventory.ParseSettings([]byte(`{"home": {"*": {"minawake": 5}, "pve4": {"powermanagement": "Enabled"}}}`))
			e.Expect(err).NotTo(HaveOccurred())
			e.inventory.SetSettings(settings)
		}, "minawake"},
		"template": {func(e *env) {
			e.templates = map[inventory.HostName][]string{{Region: "home", Host: "pve4"}: {"debian"}}
		}, "templates to build or delete: debian"},
		"host_failed": {func(e *env) { e.Expect(e.sim.HostDown("pve2", "noroute")).To(Succeed()) }, "votes"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := startEnv(t, enabledScenario(), enabled)
			e.sleepOne()
			test.change(e)
			e.Eventually(func() []string { e.evaluate(0); return e.events.Messages("HostWoken") }).WithTimeout(time.Minute).Should(ConsistOf(ContainSubstring(test.reason)))
			e.evaluateUntil(map[string]inventory.SleepState{})
		})
	}
}

// Hosts that sleep return when the others have no quorum.
func TestWakeWithoutQuorum(t *testing.T) {
	t.Parallel()
	e := startEnv(t, enabledScenario(), enabled)
	e.sleepOne()
	e.Expect(e.sim.HostDown("pve2", "noroute")).To(Succeed())
	e.Expect(e.sim.HostDown("pve3", "noroute")).To(Succeed())
	e.Expect(e.inventory.RefreshAll(e.ctx)).To(MatchError(proxmox.ErrNoQuorum))
	e.controller.Evaluate(e.ctx)
	e.Expect(e.events.Messages("HostWoken")).To(ConsistOf("Waking host home/pve4: the Proxmox cluster has no quorum"))
	e.Eventually(func() error { return e.inventory.RefreshAll(e.ctx) }).WithTimeout(time.Minute).Should(Succeed())
	e.evaluateUntil(map[string]inventory.SleepState{})
}

// A host that shuts down while quorum is lost for a moment stays recorded.
func TestShutDownWithoutQuorum(t *testing.T) {
	t.Parallel()
	e := startEnv(t, enabledScenario(), enabled)
	e.Expect(e.store(kubeCluster).Put(e.ctx, inventory.HostName{Region: "home", Host: "pve4"}, &inventory.Sleep{State: inventory.ShuttingDown, KubeCluster: kubeCluster, Since: e.clock.Now()})).To(Succeed())
	e.start(kubeCluster)
	e.evaluate(0)
	e.sim.SetQuorum(false)
	e.Expect(e.inventory.RefreshAll(e.ctx)).To(MatchError(proxmox.ErrNoQuorum))
	e.controller.Evaluate(e.ctx)
	e.Expect(e.sim.CountRequests("POST", "/nodes/{node}/wakeonlan")).To(Equal(1))
	e.sim.SetQuorum(true)
	e.Eventually(func() error { return e.inventory.RefreshAll(e.ctx) }).WithTimeout(time.Minute).Should(Succeed())
	e.evaluate(0)
	e.Expect(e.states()).To(Equal(map[string]inventory.SleepState{"pve4": inventory.ShuttingDown}))

	e.sim.SetQuorum(false)
	e.Expect(e.sim.HostDown("pve4", "refused")).To(Succeed())
	e.Expect(e.sim.HostUp("pve4")).To(Succeed())
	e.sim.SetQuorum(true)
	e.clock.SetTime(e.clock.Now().Add(5 * time.Minute))
	e.Eventually(func() error { return e.inventory.RefreshAll(e.ctx) }).WithTimeout(time.Minute).Should(Succeed())
	e.Eventually(func() map[string]inventory.SleepState { e.evaluate(0); return e.states() }).WithTimeout(time.Minute).Should(BeEmpty(), "it was off and restarted")
	e.Expect(e.events.Messages("HostShutdownFailed")).To(BeEmpty())
}

// A host that wakes gets another packet while another one shuts down.
func TestWakeDuringShutdown(t *testing.T) {
	t.Parallel()
	e := startEnv(t, enabledScenario(), enabled)
	e.sleepOne()
	e.reserve()
	wakes := func() int { return e.sim.CountRequests("POST", "/nodes/{node}/wakeonlan") }
	_, err := e.sim.AddFault(pvesim.Fault{Method: "POST", Path: "/nodes/*/wakeonlan", Status: 500, Message: "lost"})
	e.Expect(err).NotTo(HaveOccurred())
	e.evaluate(0)
	e.Expect(wakes()).To(Equal(1))
	e.Expect(e.store(kubeCluster).Put(e.ctx, inventory.HostName{Region: "home", Host: "pve3"}, &inventory.Sleep{State: inventory.ShuttingDown, KubeCluster: kubeCluster, Since: e.clock.Now()})).To(Succeed())
	e.start(kubeCluster)
	e.evaluate(31 * time.Second)
	e.Expect(wakes()).To(Equal(2))
}

// onWrite calls a function when the record is written, which is after the first decision and
// before the request.
func (e *env) onWrite(do func()) {
	plain, done := e.kube.(client.WithWatch), false
	once := func() {
		if !done {
			done = true
			do()
		}
	}
	e.kube = interceptor.NewClient(plain, interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			once()
			return c.Create(ctx, o, opts...)
		},
	})
	e.start(kubeCluster)
}

// Everything is read again after the first decision.
func TestShutDownGuards(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*env){
		"VM_being_launched": func(e *env) { e.reserve() },
		"guest":             func(e *env) { e.Expect(e.sim.MigrateGuest(150, "pve4")).To(Succeed()) },
		"other_cluster":     func(e *env) { e.Expect(e.sim.MigrateGuest(20000, "pve4")).To(Succeed()) },
		"host_failed":       func(e *env) { e.Expect(e.sim.HostDown("pve2", "noroute")).To(Succeed()) },
		"HA_rule":           func(e *env) { e.sim.AddHAGroup("prefer", "pve4") },
		"maintenance": func(e *env) {
			e.inventory.SetMaintenance(inventory.Maintenance{{Region: "home", Host: "pve4"}: "disk"})
		},
		"facts": func(e *env) {
			_, err := e.sim.AddFault(pvesim.Fault{Method: "GET", Path: "/cluster/tasks", Status: 500, Message: "broken"})
			e.Expect(err).NotTo(HaveOccurred())
		},
		"poll": func(e *env) {
			_, err := e.sim.AddFault(pvesim.Fault{Method: "GET", Path: "/cluster/resources", Status: 500, Message: "broken"})
			e.Expect(err).NotTo(HaveOccurred())
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := enabledScenario()
			s.Version = "8.4"
			mark := ownership.Mark{VMID: 20000, KubeCluster: "other", ClaimUID: "a"}
			s.Guests = append(s.Guests,
				pvesim.Guest{VMID: 150, Host: "pve1", Status: "running", Config: map[string]string{"memory": "1024", "cores": "1"}},
				pvesim.Guest{VMID: 20000, Host: "pve1", Config: map[string]string{"memory": "1024", "description": mark.Notes("")}})
			e := startEnv(t, s, enabled)
			e.onWrite(func() { change(e) })
			e.Eventually(func() bool {
				e.evaluate(0)
				host, _ := e.inventory.View().Host("home", "pve4")
				return host.OfflineSince.IsZero()
			}).Should(BeTrue())
			e.clock.SetTime(e.clock.Now().Add(31 * time.Minute))
			e.controller.Evaluate(e.ctx)
			e.Expect(e.shutdowns()).To(BeZero(), e.log.String)
			e.Expect(e.states()).To(BeEmpty())
			e.Expect(e.log.String()).To(ContainSubstring("pve4"))
		})
	}
}

func TestShutDownPrivilege(t *testing.T) {
	t.Parallel()
	s := enabledScenario()
	s.Roles[0].Privileges = slices.DeleteFunc(s.Roles[0].Privileges, func(p string) bool { return p == "Sys.PowerMgmt" })
	e := startEnv(t, s, enabled)
	e.evaluate(0)
	e.Expect(e.evaluate(time.Hour)).To(HaveKey("sleep_blocked pve4 PrivilegeMissing"))
	e.Expect(e.log.String()).To(ContainSubstring("lacks Sys.PowerMgmt on /nodes/pve4"))
	e.Expect(e.shutdowns()).To(BeZero())
}

func TestShutDownErrors(t *testing.T) {
	t.Parallel()
	t.Run("refused", func(t *testing.T) {
		t.Parallel()
		e := startEnv(t, enabledScenario(), enabled)
		_, err := e.sim.AddFault(pvesim.Fault{Method: "POST", Path: "/nodes/*/status", Status: 500, Message: "broken", Count: 1})
		e.Expect(err).NotTo(HaveOccurred())
		e.evaluate(0)
		e.evaluate(31 * time.Minute)
		e.Expect(e.states()).To(BeEmpty())
		e.Expect(e.events.Messages("HostShutdownFailed")).To(ConsistOf(ContainSubstring("broken")))
		e.evaluate(time.Minute)
		e.Expect(e.shutdowns()).To(Equal(1), "it is left alone for a while")
		e.evaluate(30 * time.Minute)
		e.Expect(e.shutdowns()).To(Equal(2))
	})
	t.Run("host_unreachable", func(t *testing.T) {
		t.Parallel()
		e := startEnv(t, enabledScenario(), enabled)
		_, err := e.sim.AddFault(pvesim.Fault{Method: "POST", Path: "/nodes/*/status", Status: 595, Count: 1})
		e.Expect(err).NotTo(HaveOccurred())
		e.evaluate(0)
		e.evaluate(31 * time.Minute)
		e.Expect(e.states()).To(BeEmpty(), "the request had no effect")
	})
	t.Run("response_lost", func(t *testing.T) {
		t.Parallel()
		e := startEnv(t, enabledScenario(), enabled)
		_, err := e.sim.AddFault(pvesim.Fault{Method: "POST", Path: "/nodes/*/status", DropAfter: true, Count: 1})
		e.Expect(err).NotTo(HaveOccurred())
		e.sleepOne()
	})
	t.Run("stays_online", func(t *testing.T) {
		t.Parallel()
		s := enabledScenario()
		s.Hosts[3].ShutdownTime = pvesim.Duration(24 * time.Hour)
		e := startEnv(t, s, enabled)
		e.evaluate(0)
		e.evaluate(31 * time.Minute)
		e.evaluate(14 * time.Minute)
		e.Expect(e.states()).To(HaveKey("pve4"))
		e.evaluate(2 * time.Minute)
		e.Expect(e.states()).To(BeEmpty())
		e.Expect(e.events.Messages("HostShutdownFailed")).To(ConsistOf(ContainSubstring("still online")))
	})
	t.Run("record_not_written", func(t *testing.T) {
		t.Parallel()
		e := startEnv(t, enabledScenario(), enabled)
		e.kube = interceptor.NewClient(e.kube.(client.WithWatch), interceptor.Funcs{
			Create: func(context.Context, client.WithWatch, client.Object, ...client.CreateOption) error {
				return context.DeadlineExceeded
			},
		})
		e.start(kubeCluster)
		e.evaluate(0)
		e.evaluate(31 * time.Minute)
		e.Expect(e.shutdowns()).To(BeZero())
		e.Expect(e.states()).To(BeEmpty())
	})
}
