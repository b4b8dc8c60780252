// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package controllers_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/host/power"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/declared"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/observed"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/ownership"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

const (
	kubeCluster = "cluster"
	// enabled lets the controller shut pve4 down.
	enabled = `{"region-1": {"*": {"wattsidle": 60, "wattsfull": 160}, "pve4": {"powermanagement": "Enabled"}}}`
	// all enrolls all Hosts.
	all = `{"region-1": {"*": {"wattsidle": 60, "wattsfull": 160, "powermanagement": "Enabled"}}}`
	// reported enrolls two Hosts, which stay awake.
	reported = `{"region-1": {"*": {"wattsidle": 60, "wattsfull": 160}, "pve3": {"powermanagement": "Report"}, "pve4": {"powermanagement": "Report"}}}`
	// idleTime is longer than a Host must be idle.
	idleTime = 31 * time.Minute
)

// hostPowerEnv is a Controller on a simulated Cluster.
type hostPowerEnv struct {
	*testenv.Env
	inventory  *inventory.Inventory
	controller *power.Controller
	registry   *prometheus.Registry
	ctx        context.Context
	log        *testenv.Log
	kube       client.Client
	templates  map[observed.HostName][]string
}

// newHostPowerEnv returns an env with four Hosts, of which pve3 and pve4 are enrolled. A guest runs on pve4.
func newHostPowerEnv(t *testing.T) *hostPowerEnv {
	t.Helper()
	return newPowerEnv(t, 4, reported, func(s *pvesim.Scenario) {
		s.Guests = slices.DeleteFunc(s.Guests, func(g pvesim.Guest) bool { return g.VMID < 9000 && g.Host != "pve1" })
		s.Guests = append(s.Guests, pvesim.Guest{VMID: 150, Host: "pve4", Status: "running", Config: map[string]string{"memory": "1024", "cores": "1"}})
		s.Hosts[2].Config, s.Hosts[3].Config = map[string]string{"wakeonlan": "BC:24:11:AA:00:03"}, map[string]string{"wakeonlan": "BC:24:11:AA:00:04"}
	})
}

// startEnv returns an env with five Hosts that vote and can be woken, with a template on each. The
// account may shut them down.
func startEnv(t *testing.T, settings string, changes ...func(*pvesim.Scenario)) *hostPowerEnv {
	t.Helper()
	return newPowerEnv(t, 5, settings, append([]func(*pvesim.Scenario){allowSleep}, changes...)...)
}

func allowSleep(s *pvesim.Scenario) {
	s.Votes = &pvesim.Votes{}
	s.Guests = slices.DeleteFunc(s.Guests, func(g pvesim.Guest) bool { return g.VMID < 9000 })
	s.Roles[0].Privileges = append(s.Roles[0].Privileges, "Sys.PowerMgmt")
	for i := range s.Hosts {
		s.Hosts[i].Config = map[string]string{"wakeonlan": fmt.Sprintf("BC:24:11:AA:00:%02d", i)}
		s.Hosts[i].ShutdownTime, s.Hosts[i].BootTime = pvesim.Duration(5*time.Second), pvesim.Duration(10*time.Second)
	}
}

func newPowerEnv(t *testing.T, hosts int, settings string, changes ...func(*pvesim.Scenario)) *hostPowerEnv {
	t.Helper()
	parsed, err := declared.ParseSettings([]byte(settings))
	testenv.Must(t, err)
	w := testenv.New(t, testenv.NeverPolled(), testenv.Hosts(hosts), testenv.Scenario(changes...), testenv.HostSettings(parsed))
	e := &hostPowerEnv{Env: w, kube: w.Kube}
	e.ctx, e.log = testenv.RecordLog(t.Context())
	e.start(kubeCluster)
	e.Expect(e.inventory.RefreshAll(e.ctx)).To(Succeed())
	return e
}

// start replaces the process by a new one, which has only what is stored.
func (e *hostPowerEnv) start(kubeCluster string) {
	e.inventory = e.StartProcess().Inventory
	e.manage(kubeCluster)
}

// manage replaces the controller.
func (e *hostPowerEnv) manage(kubeCluster string) {
	e.registry = prometheus.NewRegistry()
	e.controller = power.NewController(power.Deps{
		Clients: e.Clients, Inventory: e.inventory, KubeCluster: kubeCluster, Clock: e.Clock, Registerer: e.registry,
		Store: e.store(kubeCluster), Recorder: e.Events,
		PendingTemplates: func(context.Context) (map[observed.HostName][]string, error) { return e.templates, nil },
	})
}

func (e *hostPowerEnv) store(kubeCluster string) power.Store {
	return power.Store{Kube: e.kube, Namespace: e.Name, KubeCluster: kubeCluster}
}

func (e *hostPowerEnv) logged() string { return strings.Join(e.log.Lines(""), "\n") }

// evaluate evaluates the Hosts after some time, and returns the metrics as "name host [reason]".
func (e *hostPowerEnv) evaluate(after time.Duration) map[string]float64 {
	time.Sleep(after)
	e.Expect(e.inventory.RefreshAll(e.ctx)).To(Succeed())
	e.controller.Evaluate(e.ctx)
	families, err := e.registry.Gather()
	e.Expect(err).NotTo(HaveOccurred())
	out := map[string]float64{}
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			key := []string{strings.TrimPrefix(family.GetName(), "karpenter_proxmox_host_")}
			for _, label := range metric.GetLabel() {
				if label.GetName() != "region" {
					key = append(key, label.GetValue())
				}
			}
			out[strings.Join(key, " ")] = metric.GetGauge().GetValue() + metric.GetCounter().GetValue()
		}
	}
	return out
}

// pve4 returns the state of that Host.
func (e *hostPowerEnv) pve4() inventory.HostState {
	host, _ := e.inventory.View().Host(testenv.Region, "pve4")
	return host
}

func TestEvaluate(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		e := newHostPowerEnv(t)
		got := e.evaluate(0)
		e.Expect(got).To(And(HaveKeyWithValue("sleep_possible pve3", 0.0),
			HaveKeyWithValue("sleep_blocked pve3 NotIdleLongEnough", 1.0), HaveKeyWithValue("sleep_blocked pve4 GuestRunning", 1.0)))
		e.Expect(got).NotTo(HaveKey("sleep_possible pve1"), "it is not enrolled")

		got = e.evaluate(idleTime)
		e.Expect(got).To(And(HaveKeyWithValue("sleep_possible pve3", 1.0), Not(HaveKey("sleep_blocked pve3 NotIdleLongEnough")),
			HaveKeyWithValue("power_watts pve3", And(BeNumerically(">=", 60), BeNumerically("<=", 160))),
			HaveKeyWithValue("sleep_savings_watts pve3", got["power_watts pve3"]), HaveKeyWithValue("sleep_savings_watts pve4", 0.0)))
		e.Expect(e.logged()).To(And(
			ContainSubstring(`"host could be shut down to save energy" "region"="region-1" "host"="pve3"`),
			ContainSubstring(`"host stays awake" "region"="region-1" "host"="pve4" "reasons"="GuestRunning" "message"="guests that run: VM 150"`)))

		before := e.logged()
		e.evaluate(time.Minute)
		e.Expect(e.logged()).To(Equal(before), "nothing changed")

		// Each host could sleep, but not both: two of four votes are no majority.
		e.Expect(e.Sim.PowerOffGuest(150)).To(Succeed())
		e.Expect(e.evaluate(time.Minute)).To(HaveKey("sleep_blocked pve4 NotIdleLongEnough"))
		got = e.evaluate(time.Hour)
		e.Expect(got["sleep_possible pve3"] + got["sleep_possible pve4"]).To(Equal(1.0))
		e.Expect(got).To(HaveKey("sleep_blocked pve4 QuorumRequired"))
		e.Expect(e.Sim.Requests()).To(HaveEach(HaveField("Method", "GET")))
	})
}

// A guest that runs for a while makes the host idle from then on only. If the facts cannot be read,
// hosts stay awake.
func TestEvaluateIdleTime(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		e := newHostPowerEnv(t)
		e.evaluate(0)
		e.Expect(e.evaluate(time.Hour)).To(HaveKeyWithValue("sleep_possible pve3", 1.0))
		e.Expect(e.Sim.MigrateGuest(150, "pve3")).To(Succeed())
		e.Expect(e.evaluate(time.Minute)).To(HaveKey("sleep_blocked pve3 GuestRunning"))
		e.Expect(e.Sim.MigrateGuest(150, "pve4")).To(Succeed())
		e.Expect(e.evaluate(time.Minute)).To(HaveKey("sleep_blocked pve3 NotIdleLongEnough"))
		testenv.AddFault(t, e.Sim, pvesim.Fault{Method: "GET", Path: "/cluster/replication", Status: 500, Message: "broken"})
		e.Expect(e.evaluate(time.Hour)).To(And(HaveKeyWithValue("sleep_possible pve3", 0.0), HaveKeyWithValue("sleep_blocked pve3 FactsUnknown", 1.0)))
		e.Expect(e.logged()).To(ContainSubstring("reading the replication jobs: failed: broken"))
	})
}

// Facts are read rarely, and not at all if no host is enrolled.
func TestEvaluateRequests(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		e := newHostPowerEnv(t)
		jobs := func() int { return e.Sim.CountRequests("GET", "/cluster/backup") }
		for range 10 {
			e.evaluate(0)
		}
		e.Expect(jobs()).To(Equal(1))
		e.evaluate(5 * time.Minute)
		e.Expect(jobs()).To(Equal(2))

		// A host that comes online is read at once.
		e.Expect(e.Sim.HostDown("pve3", "noroute")).To(Succeed())
		e.Expect(e.evaluate(time.Minute)).To(HaveKey("sleep_blocked pve3 NotOnline"))
		e.Expect(e.Sim.HostUp("pve3")).To(Succeed())
		e.Expect(e.evaluate(time.Minute)).To(And(HaveKey("sleep_blocked pve3 NotIdleLongEnough"), Not(HaveKey("sleep_blocked pve3 NoWakeAddress"))))
		e.Expect(jobs()).To(Equal(4))

		e.inventory.SetSettings(declared.Settings{})
		e.Expect(e.evaluate(time.Hour)).To(BeEmpty())
		e.Expect(jobs()).To(Equal(4))
	})
}

// A host on which a VM of another Kubernetes cluster ran is idle since that was deleted.
func TestIdleAfterOtherCluster(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		mark := ownership.Mark{VMID: 150, KubeCluster: "other", ClaimUID: "claim"}
		e := startEnv(t, enabled, func(s *pvesim.Scenario) {
			s.Guests = append(s.Guests, pvesim.Guest{VMID: 150, Host: "pve4", Config: map[string]string{"memory": "1024", "description": mark.Notes("")}})
		})
		e.evaluate(0)
		e.Expect(e.evaluate(idleTime)).To(HaveKeyWithValue("sleep_blocked pve4 OtherKubernetesCluster", 1.0))
		_, err := e.Client.DestroyVM(e.ctx, "pve4", 150)
		e.Expect(err).NotTo(HaveOccurred())
		e.Expect(e.evaluate(time.Minute)).To(HaveKeyWithValue("sleep_blocked pve4 NotIdleLongEnough", 1.0))
		e.Expect(e.states()).To(BeEmpty())
	})
}

// A replica that is not the leader shows the hosts that the leader shut down and woke.
func TestFollow(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		e := startEnv(t, enabled)
		replica := e.StartProcess().Inventory
		follow := func() inventory.HostState {
			t.Helper()
			e.Expect(replica.RefreshAll(e.ctx)).To(Succeed())
			e.Expect(e.store(kubeCluster).Follow(e.ctx, replica)).To(Succeed())
			host, _ := replica.View().Host(testenv.Region, "pve4")
			return host
		}
		e.Expect(follow().Sleep).To(BeEmpty())
		e.sleepOne()
		e.Expect(follow()).To(And(HaveField("Sleep", declared.Asleep), HaveField("Conditions", ContainElement(HaveField("Reason", inventory.PowerUnknown)))))
		e.reserve()
		e.evaluate(0)
		e.expectStates(time.Minute, states{})
		e.Expect(follow().Sleep).To(BeEmpty())

		replica.SetSleeping(nil) // it becomes the leader
		e.record("pve4", declared.Asleep)
		e.Expect(follow()).To(And(HaveField("Sleep", BeEmpty()), HaveField("Conditions", BeEmpty())), "the leader knows better")
	})
}
