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

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/test/chaos/lab"
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
	s.T.Helper()
	s.mustConverge("before the disturbances")
	for period := 1; period == 1 || time.Now().Before(deadline); period++ {
		s.disturb(min(disturbanceTime, max(0, time.Until(deadline))))
		s.recover()
		took := s.mustConverge(fmt.Sprintf("after disturbances %v", s.Done))
		s.T.Logf("period %d: %v; converged after %s", period, s.Done, took.Round(time.Second))
	}
	s.stopMonitor()
	s.removeAll()
}

// mustConverge waits until all invariants hold and returns how long that took.
func (s *soak) mustConverge(when string) time.Duration {
	s.T.Helper()
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
			s.T.Logf("%s: waiting for:\n%s", when, lines(violations))
		}
		s.actAsAdmin()
		time.Sleep(500 * time.Millisecond)
	}
}

// disturb runs random disturbances for some time.
func (s *soak) disturb(duration time.Duration) {
	s.T.Helper()
	for end := time.Now().Add(duration); time.Now().Before(end); {
		time.Sleep(time.Duration(500+s.Rand.IntN(3500)) * time.Millisecond)
		s.failIfBroken()
		s.DisturbWithOutages(map[string]func(){
			"apps scaled": s.scaleApp, "controllers killed": s.killController, "maintenance toggled": s.toggleMaintenance, "faults": s.addFaults,
			"guests powered off": s.powerOff, "guests sick": s.sicken, "claims deleted": s.deleteClaim, "images changed": s.changeImage,
			"tags changed": s.changeTags,
		})
	}
}

// recover ends all faults and outages.
func (s *soak) recover() {
	s.T.Helper()
	s.EndOutages()
	if s.maintenance != "" {
		s.toggleMaintenance()
	}
	s.startForeignGuests()
}

// startForeignGuests starts the guests of other users that stopped with their hosts.
func (s *soak) startForeignGuests() {
	s.T.Helper()
	stopped := map[int]bool{}
	for _, guest := range s.proxmox.Guests() {
		stopped[guest.VMID] = guest.Status == "stopped"
	}
	for _, guest := range s.before.Guests {
		if guest.Status == "running" && stopped[guest.VMID] {
			testenv.Must(s.T, s.proxmox.API.Start(s.T.Context(), guest))
		}
	}
}

func (s *soak) scaleApp() {
	app := lab.Pick(s.Rand, slices.Sorted(maps.Keys(apps)))
	s.scale(app, s.Rand.IntN(apps[app].replicas+1))
}

func (s *soak) scale(app string, replicas int) {
	s.T.Helper()
	s.replicas[app] = replicas
	testenv.Must(s.T, harness.Scale(s.T.Context(), s.kube, app, int32(replicas)))
}

func (s *soak) killController() {
	s.controller.Kill()
	testenv.Must(s.T, s.controller.StartProcess())
}

// toggleMaintenance puts a host into maintenance, or ends that.
func (s *soak) toggleMaintenance() {
	if host := s.maintenance; host != "" {
		s.maintenance = ""
		testenv.Must(s.T, s.proxmox.SetMaintenance(host, false))
		return
	}
	s.maintenance = lab.Pick(s.Rand, s.Hosts)
	testenv.Must(s.T, s.proxmox.SetMaintenance(s.maintenance, true))
}

// addFaults replaces all faults with failures of calls and tasks.
func (s *soak) addFaults() {
	s.proxmox.ClearFaults()
	testenv.Must(s.T, s.proxmox.AddFaults([]pvesim.Fault{
		{Probability: 0.05, Status: 500, Message: "internal error"},
		{Probability: 0.02, DropBefore: true},
		{Probability: 0.02, DropAfter: true},
		{Task: lab.Pick(s.Rand, []string{"qmclone", "qmstart", "qmdestroy", "qmstop", "qmcreate", "resize"}), Probability: 0.2, Fail: "soak: this task fails"},
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
	return lab.Pick(s.Rand, vmids), true
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
		_ = s.proxmox.SetGuestHealth(vmid, lab.Pick(s.Rand, []pvesim.Health{pvesim.HealthSick, pvesim.HealthHung})) // it may be off
	}
}

func (s *soak) deleteClaim() {
	claims := &karpv1.NodeClaimList{}
	testenv.Must(s.T, s.kube.List(s.T.Context(), claims))
	if len(claims.Items) > 0 {
		testenv.Must(s.T, client.IgnoreNotFound(s.kube.Delete(s.T.Context(), &claims.Items[s.Rand.IntN(len(claims.Items))])))
	}
}

// changeImage changes the image of the template, so a new template is built on each host and
// all Nodes are replaced.
func (s *soak) changeImage() {
	s.patch(s.template, `{"spec":{"sourceImage":{"url":%q}}}`, fmt.Sprintf("%s/noble-%d.img", s.images, s.Rand.IntN(1000)))
}

// changeTags changes the tags of the VMs in place.
func (s *soak) changeTags() {
	s.patch(s.kit.Class, `{"spec":{"tags":[%q]}}`, fmt.Sprintf("soak-%d", s.Rand.IntN(1000)))
}

func (s *soak) patch(object client.Object, format, value string) {
	s.T.Helper()
	testenv.Must(s.T, s.kube.Patch(s.T.Context(), object, client.RawPatch(types.MergePatchType, fmt.Appendf(nil, format, value))))
}
