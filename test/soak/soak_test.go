// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/test/harness"
)

const (
	// disturbanceTime is how long disturbances last before everything must converge.
	disturbanceTime = time.Minute
	// convergenceTimeout includes Karpenter's own intervals and the replacement of all Nodes
	// within the disruption budget.
	convergenceTimeout = 8 * time.Minute
)

// TestSoak runs for the duration SOAK, half of it with each version of Proxmox VE. SOAK_SEED
// repeats the decisions of an earlier run.
func TestSoak(t *testing.T) {
	if os.Getenv("SOAK") == "" {
		t.Skip("SKIPPED: SOAK must be a duration; make soak sets it")
	}
	duration, err := time.ParseDuration(os.Getenv("SOAK"))
	if err != nil {
		t.Fatalf("SOAK: %v, want a duration such as 1h", err)
	}
	seed := uint64(time.Now().UnixNano())
	if text := os.Getenv("SOAK_SEED"); text != "" {
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatalf("SOAK_SEED: %v, want a number", err)
		}
	}
	t.Logf("SOAK_SEED=%d", seed)
	for i, version := range []string{"8.4", "9.2"} {
		t.Run(version, func(t *testing.T) {
			s := newSoak(t, version, rand.New(rand.NewPCG(seed, uint64(i))))
			s.run(time.Now().Add(duration / 2))
		})
	}
}

// run disturbs and converges until the deadline, then deletes everything.
func (s *soak) run(deadline time.Time) {
	s.t.Helper()
	s.mustConverge("before the disturbances")
	for period := 1; period == 1 || time.Now().Before(deadline); period++ {
		s.disturb(min(disturbanceTime, max(0, time.Until(deadline))))
		s.recover()
		took := s.mustConverge(fmt.Sprintf("after disturbances %v", s.done))
		s.t.Logf("period %d: %v; converged after %s", period, s.done, took.Round(time.Second))
	}
	s.stopMonitor()
	s.removeAll()
}

// mustConverge waits until all invariants hold and returns how long that took.
func (s *soak) mustConverge(when string) time.Duration {
	s.t.Helper()
	began, logged := time.Now(), time.Now()
	for {
		violations := s.violations()
		took := time.Since(began)
		if len(violations) == 0 {
			return took
		}
		s.failIfBroken()
		if took > convergenceTimeout {
			s.fail(fmt.Sprintf("%s: violations after %s", when, took.Round(time.Second)), violations)
		}
		if time.Since(logged) > 30*time.Second {
			logged = time.Now()
			s.t.Logf("%s: waiting for:\n%s", when, lines(violations))
		}
		s.actAsAdmin()
		time.Sleep(500 * time.Millisecond)
	}
}

// outages are the outages in effect.
type outages struct {
	down, hanging         map[string]bool
	noQuorum, partitioned bool
	maintenance           string
}

// disturb runs random disturbances for some time.
func (s *soak) disturb(duration time.Duration) {
	s.t.Helper()
	disturbances := map[string]func(){
		"apps scaled": s.scaleApp, "controllers killed": s.killController, "hosts toggled": s.toggleHost, "quorum toggled": s.toggleQuorum,
		"partitions toggled": s.togglePartition, "hangs toggled": s.toggleHang, "maintenance toggled": s.toggleMaintenance,
		"load": s.addLoad, "faults": s.addFaults, "guests powered off": s.powerOff, "guests sick": s.sicken, "claims deleted": s.deleteClaim,
		"images changed": s.changeImage, "tags changed": s.changeTags,
	}
	names := slices.Sorted(maps.Keys(disturbances))
	for end := time.Now().Add(duration); time.Now().Before(end); {
		time.Sleep(time.Duration(500+s.rand.IntN(3500)) * time.Millisecond)
		s.failIfBroken()
		chosen := names[s.rand.IntN(len(names))]
		disturbances[chosen]()
		s.done[chosen]++
	}
}

// recover ends all faults and outages.
func (s *soak) recover() {
	s.t.Helper()
	s.proxmox.ClearFaults()
	s.proxmox.SetQuorum(true)
	s.proxmox.Heal()
	for host := range s.outages.hanging {
		s.must(s.proxmox.SetHang(host, false))
	}
	for host := range s.outages.down {
		s.must(s.proxmox.HostUp(host))
	}
	if host := s.outages.maintenance; host != "" {
		s.must(s.proxmox.SetMaintenance(host, false))
	}
	s.startForeignGuests()
	s.outages = outages{hanging: map[string]bool{}, down: map[string]bool{}}
}

// startForeignGuests starts the guests of other users that stopped with their hosts.
func (s *soak) startForeignGuests() {
	s.t.Helper()
	stopped := map[int]bool{}
	for _, guest := range s.proxmox.Guests() {
		stopped[guest.VMID] = guest.Status == "stopped"
	}
	for _, guest := range s.before.Guests {
		if guest.Status == "running" && stopped[guest.VMID] {
			s.must(s.proxmox.API.Start(s.t.Context(), guest))
		}
	}
}

func (s *soak) pickHost() string { return s.hostNames()[s.rand.IntN(hosts)] }

func (s *soak) scaleApp() {
	names := slices.Sorted(maps.Keys(apps))
	app := names[s.rand.IntN(len(names))]
	s.scale(app, s.rand.IntN(apps[app].replicas+1))
}

func (s *soak) scale(app string, replicas int) {
	s.t.Helper()
	s.replicas[app] = replicas
	s.must(harness.Scale(s.t.Context(), s.kube, app, int32(replicas)))
}

func (s *soak) killController() {
	s.controller.Kill()
	s.must(s.controller.StartProcess())
}

// toggleHost cuts the power of a host or restores it. One of four hosts may be down: two would
// be the end of the quorum.
func (s *soak) toggleHost() {
	host := s.pickHost()
	for down := range s.outages.down {
		delete(s.outages.down, down)
		s.must(s.proxmox.HostUp(down))
		return
	}
	s.outages.down[host] = true
	s.must(s.proxmox.HostDown(host, []string{"refused", "noroute", "timeout"}[s.rand.IntN(3)]))
}

func (s *soak) toggleQuorum() {
	s.outages.noQuorum = !s.outages.noQuorum
	s.proxmox.SetQuorum(!s.outages.noQuorum)
}

func (s *soak) togglePartition() {
	host := s.pickHost()
	if s.outages.partitioned = !s.outages.partitioned; s.outages.partitioned {
		s.must(s.proxmox.Partition(host))
	} else {
		s.proxmox.Heal()
	}
}

func (s *soak) toggleHang() {
	host := s.pickHost()
	s.outages.hanging[host] = !s.outages.hanging[host]
	s.must(s.proxmox.SetHang(host, s.outages.hanging[host]))
}

func (s *soak) toggleMaintenance() {
	host := s.pickHost()
	if s.outages.maintenance != "" {
		host = s.outages.maintenance
	}
	on := s.outages.maintenance == ""
	s.must(s.proxmox.SetMaintenance(host, on))
	s.outages.maintenance = ""
	if on {
		s.outages.maintenance = host
	}
}

// addLoad replaces all faults with what overloaded hosts do.
func (s *soak) addLoad() {
	s.proxmox.ClearFaults()
	s.must(s.proxmox.AddFaults(pvesim.LoadFaults()))
}

// addFaults replaces all faults with failures of calls and tasks.
func (s *soak) addFaults() {
	s.proxmox.ClearFaults()
	s.must(s.proxmox.AddFaults([]pvesim.Fault{
		{Probability: 0.05, Status: 500, Message: "internal error"},
		{Probability: 0.02, DropBefore: true},
		{Probability: 0.02, DropAfter: true},
		{Task: []string{"qmclone", "qmstart", "qmdestroy", "qmstop", "qmcreate", "resize"}[s.rand.IntN(6)], Probability: 0.2, Fail: "soak: this task fails"},
	}))
}

// pickVM returns the VMID of a random VM of ours.
func (s *soak) pickVM() (vmid int, ok bool) {
	var vmids []int
	for _, guest := range s.proxmox.Guests() {
		if s.isNode(guest) {
			vmids = append(vmids, guest.VMID)
		}
	}
	if len(vmids) == 0 {
		return 0, false
	}
	return vmids[s.rand.IntN(len(vmids))], true
}

func (s *soak) powerOff() {
	if vmid, ok := s.pickVM(); ok {
		_ = s.proxmox.PowerOffGuest(vmid) // it may already be off
	}
}

// sicken makes a guest sick until Karpenter replaces it. One at a time: Karpenter repairs none
// if more than a fifth of the Nodes is not ready.
func (s *soak) sicken() {
	if slices.ContainsFunc(s.proxmox.Guests(), func(guest pvesim.GuestState) bool { return guest.VMID == s.sick }) {
		return
	}
	if vmid, ok := s.pickVM(); ok {
		s.sick = vmid
		_ = s.proxmox.SetGuestHealth(vmid, []pvesim.Health{pvesim.HealthSick, pvesim.HealthHung}[s.rand.IntN(2)]) // it may be off
	}
}

func (s *soak) deleteClaim() {
	claims := &karpv1.NodeClaimList{}
	s.must(s.kube.List(s.t.Context(), claims))
	if len(claims.Items) > 0 {
		s.must(client.IgnoreNotFound(s.kube.Delete(s.t.Context(), &claims.Items[s.rand.IntN(len(claims.Items))])))
	}
}

// changeImage changes the image of the template, so a new template is built on each host and
// all Nodes are replaced.
func (s *soak) changeImage() {
	url := fmt.Sprintf("%s/noble-%d.img", s.images, s.rand.IntN(1000))
	s.must(s.kube.Patch(s.t.Context(), s.template, client.RawPatch("application/merge-patch+json", fmt.Appendf(nil, `{"spec":{"sourceImage":{"url":%q}}}`, url))))
}

// changeTags changes the tags of the VMs in place.
func (s *soak) changeTags() {
	tag := fmt.Sprintf("soak-%d", s.rand.IntN(1000))
	s.must(s.kube.Patch(s.t.Context(), s.kit.Class, client.RawPatch("application/merge-patch+json", fmt.Appendf(nil, `{"spec":{"tags":[%q]}}`, tag))))
}
