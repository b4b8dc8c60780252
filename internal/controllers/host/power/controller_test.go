// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package power_test

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	. "github.com/onsi/gomega"
	"github.com/prometheus/client_golang/prometheus"
	testclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/host/power"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/ownership"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// env is a Controller on a simulated Cluster with four Hosts, of which pve3 and pve4 are
// enrolled and idle.
type env struct {
	*WithT
	sim        *pvesim.Simulator
	inventory  *inventory.Inventory
	controller *power.Controller
	clock      *testclock.FakePassiveClock
	registry   *prometheus.Registry
	ctx        context.Context
	log        *strings.Builder
	client     proxmox.Client
	settings   inventory.Settings
	kube       client.Client
	events     *testenv.Recorder
	templates  map[inventory.HostName][]string
}

const settings = `{"home": {"*": {"wattsidle": 60, "wattsfull": 160}, "pve3": {"powermanagement": "Report"}, "pve4": {"powermanagement": "Report"}}}`

func newEnv(t *testing.T) *env {
	t.Helper()
	s := pvesim.DefaultScenario(4)
	s.Guests = slices.DeleteFunc(s.Guests, func(g pvesim.Guest) bool { return g.VMID < 9000 && g.Host != "pve1" })
	s.Guests = append(s.Guests, pvesim.Guest{VMID: 150, Host: "pve4", Status: "running", Config: map[string]string{"memory": "1024", "cores": "1"}})
	s.Hosts[2].Config, s.Hosts[3].Config = map[string]string{"wakeonlan": "BC:24:11:AA:00:03"}, map[string]string{"wakeonlan": "BC:24:11:AA:00:04"}
	return startEnv(t, s, settings)
}

func startEnv(t *testing.T, s *pvesim.Scenario, settings string) *env {
	t.Helper()
	e := &env{WithT: NewWithT(t), clock: testclock.NewFakePassiveClock(time.Now()), log: &strings.Builder{}, kube: testenv.NewFakeKube(t), events: &testenv.Recorder{}}
	e.SetDefaultEventuallyPollingInterval(50 * time.Millisecond) // each poll reads everything
	var err error
	e.sim, err = pvesim.New(s, pvesim.Options{Speed: cmp.Or(s.Speed, 50)})
	e.Expect(err).NotTo(HaveOccurred())
	e.Expect(e.sim.Start(t.Context())).To(Succeed())
	t.Cleanup(e.sim.Close)
	e.client, err = proxmox.New(proxmox.ClusterConfig{
		Region: "home", URLs: []string{e.sim.URL()}, CA: string(e.sim.CAPEM()), TokenID: pvesim.DefaultTokenID, TokenSecret: pvesim.DefaultTokenSecret,
	}, proxmox.Options{DialTimeout: time.Minute})
	e.Expect(err).NotTo(HaveOccurred())
	e.settings, err = inventory.ParseSettings([]byte(settings))
	e.Expect(err).NotTo(HaveOccurred())
	e.ctx = log.IntoContext(t.Context(), funcr.New(func(_, args string) { fmt.Fprintln(e.log, args) }, funcr.Options{}))
	e.start(kubeCluster)
	e.Eventually(func() int {
		e.Expect(e.inventory.RefreshAll(e.ctx)).To(Succeed())
		host, _ := e.inventory.View().Host("home", "pve4")
		return host.Size.CPUs
	}).WithTimeout(time.Minute).Should(BeNumerically(">", 0))
	return e
}

const kubeCluster = "cluster"

// start replaces the process by a new one, which has only what is stored.
func (e *env) start(kubeCluster string) {
	var err error
	e.inventory, err = inventory.New([]proxmox.Client{e.client}, inventory.Options{Settings: e.settings, DetailRange: inventory.VMIDRange{From: 20000, To: 30000}})
	e.Expect(err).NotTo(HaveOccurred())
	e.registry = prometheus.NewRegistry()
	e.controller = power.NewController(power.Deps{
		Clients: map[string]proxmox.Client{"home": e.client}, Inventory: e.inventory, KubeCluster: kubeCluster, Clock: e.clock, Registerer: e.registry,
		Store: e.store(kubeCluster), Recorder: e.events,
		PendingTemplates: func(context.Context) (map[inventory.HostName][]string, error) { return e.templates, nil },
	})
}

func (e *env) store(kubeCluster string) power.Store {
	return power.Store{Kube: e.kube, Namespace: "kube-system", KubeCluster: kubeCluster}
}

// evaluate evaluates the Hosts after some time, and returns the metrics as "name host [reason]".
func (e *env) evaluate(after time.Duration) map[string]float64 {
	e.clock.SetTime(e.clock.Now().Add(after))
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

func TestEvaluate(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	got := e.evaluate(0)
	e.Expect(got).To(HaveKeyWithValue("sleep_possible pve3", 0.0))
	e.Expect(got).To(HaveKeyWithValue("sleep_blocked pve3 NotIdleLongEnough", 1.0))
	e.Expect(got).To(HaveKeyWithValue("sleep_blocked pve4 GuestRunning", 1.0))
	e.Expect(got).NotTo(HaveKey("sleep_possible pve1"), "it is not enrolled")

	got = e.evaluate(31 * time.Minute)
	e.Expect(got).To(HaveKeyWithValue("sleep_possible pve3", 1.0))
	e.Expect(got).NotTo(HaveKey("sleep_blocked pve3 NotIdleLongEnough"))
	e.Expect(got["power_watts pve3"]).To(And(BeNumerically(">=", 60), BeNumerically("<=", 160)))
	e.Expect(got["sleep_savings_watts pve3"]).To(Equal(got["power_watts pve3"]))
	e.Expect(got).To(HaveKeyWithValue("sleep_savings_watts pve4", 0.0))
	e.Expect(e.log.String()).To(And(
		ContainSubstring(`"host could be shut down to save energy" "region"="home" "host"="pve3"`),
		ContainSubstring(`"host stays awake" "region"="home" "host"="pve4" "reasons"="GuestRunning" "message"="guests that run: VM 150"`)))

	e.log.Reset()
	e.evaluate(time.Minute)
	e.Expect(e.log.String()).To(BeEmpty(), "nothing changed")

	// Each host could sleep, but not both: two of four votes are no majority.
	e.Expect(e.sim.PowerOffGuest(150)).To(Succeed())
	e.Eventually(func() map[string]float64 { return e.evaluate(0) }).WithTimeout(time.Minute).Should(HaveKey("sleep_blocked pve4 NotIdleLongEnough"))
	got = e.evaluate(time.Hour)
	e.Expect(got["sleep_possible pve3"] + got["sleep_possible pve4"]).To(Equal(1.0))
	e.Expect(got).To(HaveKey("sleep_blocked pve4 QuorumRequired"))

	for _, request := range e.sim.Requests() {
		e.Expect(request.Method).To(Equal("GET"), request.Path)
	}
}

// A guest that runs for a while makes the host idle from then on only.
func TestEvaluateIdleTime(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.evaluate(0)
	e.Expect(e.evaluate(time.Hour)).To(HaveKeyWithValue("sleep_possible pve3", 1.0))
	e.Expect(e.sim.MigrateGuest(150, "pve3")).To(Succeed())
	e.Eventually(func() map[string]float64 { return e.evaluate(0) }).WithTimeout(time.Minute).Should(HaveKey("sleep_blocked pve3 GuestRunning"))
	e.Expect(e.sim.MigrateGuest(150, "pve4")).To(Succeed())
	e.Eventually(func() map[string]float64 { return e.evaluate(0) }).WithTimeout(time.Minute).Should(HaveKey("sleep_blocked pve3 NotIdleLongEnough"))
}

// Facts are read rarely, and not at all if no host is enrolled.
func TestEvaluateRequests(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	jobs := func() int { return e.sim.CountRequests("GET", "/cluster/backup") }
	for range 10 {
		e.evaluate(0)
	}
	e.Expect(jobs()).To(Equal(1))
	e.evaluate(5 * time.Minute)
	e.Expect(jobs()).To(Equal(2))

	// A host that comes online is read at once.
	e.Expect(e.sim.HostDown("pve3", "noroute")).To(Succeed())
	e.Eventually(func() map[string]float64 { return e.evaluate(0) }).WithTimeout(time.Minute).Should(HaveKey("sleep_blocked pve3 NotOnline"))
	e.Expect(e.sim.HostUp("pve3")).To(Succeed())
	e.Eventually(func() map[string]float64 { return e.evaluate(0) }).WithTimeout(time.Minute).Should(HaveKey("sleep_blocked pve3 NotIdleLongEnough"))
	e.Expect(e.evaluate(0)).NotTo(HaveKey("sleep_blocked pve3 NoWakeAddress"))
	e.Expect(jobs()).To(Equal(4))

	e.inventory.SetSettings(inventory.Settings{})
	e.Expect(e.evaluate(time.Hour)).To(BeEmpty())
	e.Expect(jobs()).To(Equal(4))
}

// If the facts cannot be read, hosts stay awake.
func TestEvaluateUnknownFacts(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.evaluate(0)
	_, err := e.sim.AddFault(pvesim.Fault{Method: "GET", Path: "/cluster/replication", Status: 500, Message: "broken"})
	e.Expect(err).NotTo(HaveOccurred())
	got := e.evaluate(time.Hour)
	e.Expect(got).To(HaveKeyWithValue("sleep_possible pve3", 0.0))
	e.Expect(got).To(HaveKeyWithValue("sleep_blocked pve3 FactsUnknown", 1.0))
	e.Expect(e.log.String()).To(ContainSubstring("reading the replication jobs: failed: broken"))
}

// A host on which a VM of another Kubernetes cluster ran is idle since that was deleted.
func TestIdleAfterOtherCluster(t *testing.T) {
	t.Parallel()
	s := enabledScenario()
	mark := ownership.Mark{VMID: 150, KubeCluster: "other", ClaimUID: "claim"}
	s.Guests = append(s.Guests, pvesim.Guest{VMID: 150, Host: "pve4", Status: "stopped", Config: map[string]string{"memory": "1024", "description": mark.Notes("")}})
	e := startEnv(t, s, enabled)
	e.evaluate(0)
	e.Expect(e.evaluate(31 * time.Minute)).To(HaveKeyWithValue("sleep_blocked pve4 OtherKubernetesCluster", 1.0))
	_, err := e.client.DestroyVM(e.ctx, "pve4", 150)
	e.Expect(err).NotTo(HaveOccurred())
	e.Eventually(func() map[string]float64 { return e.evaluate(0) }).WithTimeout(time.Minute).Should(HaveKeyWithValue("sleep_blocked pve4 NotIdleLongEnough", 1.0))
	e.Expect(e.states()).NotTo(HaveKey("pve4"))
}
