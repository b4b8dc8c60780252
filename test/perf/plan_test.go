// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package perf_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/test/chaos/lab"
)

// plans times Create's part for n Claims of a class, one after the other as core
// asks at worst.
func plans(t *testing.T, w *lab.World, p *lab.Process, class string, n int) []time.Duration {
	t.Helper()
	var took []time.Duration
	for i := range n {
		name := fmt.Sprintf("%s-plan-%d", class, i)
		w.ClaimOf(class, name)
		began := time.Now()
		if err := p.Act(lab.ActPlan, name); err != nil {
			t.Fatalf("planning %s, %v", name, err)
		}
		took = append(took, time.Since(began))
	}
	return took
}

// selected makes a class whose Template is on one Host only.
func selected(t *testing.T, w *lab.World, name, host string, template int) {
	t.Helper()
	class := w.NewClass(name)
	class.Status.SelectedZones = []string{fmt.Sprintf("%s/%s/%d", lab.Region, host, template)}
	if err := w.Kube.Create(t.Context(), class); err != nil {
		t.Fatal(err)
	}
}

// TestCreateAnswersWhileProxmoxIsSlow fills all slots of one Host with clones that
// take two minutes. Create goes on answering, and another pool launches as ever.
func TestCreateAnswersWhileProxmoxIsSlow(t *testing.T) {
	w := lab.New(t, lab.Options{Hosts: 2, Speed: 1, Scenario: roomy})
	selected(t, w, "slow", "pve1", 9000)
	selected(t, w, "other", "pve2", 9001)
	p := w.Process(lab.Start{Quiet: true})
	undisturbed := repeated(t, w, p, "other", "before")
	if _, err := w.Sim.AddFault(pvesim.Fault{Task: "qmclone", TaskID: "9000", Delay: pvesim.Duration(2 * time.Minute)}); err != nil {
		t.Fatal(err)
	}
	var slow sync.WaitGroup
	for i := range 8 {
		name := fmt.Sprintf("slow-%d", i)
		w.ClaimOf("slow", name)
		slow.Go(func() { _ = p.Act(lab.ActLaunch, name) })
	}
	timed(t, "plan p95 with all slots busy", p95(plans(t, w, p, "slow", repeats(15, 100))))
	timed(t, "launch beside busy slots over undisturbed", repeated(t, w, p, "other", "beside")/undisturbed)
	p.Kill()
	slow.Wait()
}

// TestABrokenClassDelaysNobody launches beside a class whose VMs cannot start.
func TestABrokenClassDelaysNobody(t *testing.T) {
	w := lab.New(t, lab.Options{Hosts: 1, Speed: 1, Scenario: func(s *pvesim.Scenario) {
		roomy(s)
		broken := s.Guests[0]
		broken.VMID, broken.Name, broken.Config = 9100, "broken", map[string]string{}
		for key, value := range s.Guests[0].Config {
			broken.Config[key] = strings.NewReplacer("vmbr0", "vmbr7", "9000", "9100").Replace(value)
		}
		s.Guests = append(s.Guests, broken)
	}})
	selected(t, w, "broken", "pve1", 9100)
	p := w.Process(lab.Start{Quiet: true})
	undisturbed := repeated(t, w, p, w.Class.Name, "before")
	var doomed sync.WaitGroup
	doomed.Go(func() {
		for i := range 8 {
			name := fmt.Sprintf("broken-%d", i)
			w.ClaimOf("broken", name)
			_ = p.Act(lab.ActLaunch, name)
		}
	})
	timed(t, "launch beside a broken class over undisturbed", repeated(t, w, p, w.Class.Name, "beside")/undisturbed)
	doomed.Wait()
}

// repeated launches of a class take so many seconds, as judged.
func repeated(t *testing.T, w *lab.World, p *lab.Process, class, when string) float64 {
	t.Helper()
	var took []float64
	for i := range repeats(3, 5) {
		name := fmt.Sprintf("%s-%s-%d", class, when, i)
		w.ClaimOf(class, name)
		began := time.Now()
		if err := p.Act(lab.ActLaunch, name); err != nil {
			t.Fatalf("launching %s, %v", name, err)
		}
		took = append(took, time.Since(began).Seconds())
	}
	return judge(took)
}

// TestPlansAtScale plans a thousand Claims on a hundred Hosts.
func TestPlansAtScale(t *testing.T) {
	w := lab.New(t, lab.Options{Hosts: repeats(10, 100), Speed: 50, Scenario: roomy})
	p := w.Process(lab.Start{Quiet: true})
	began := time.Now()
	took := plans(t, w, p, w.Class.Name, repeats(100, 1000))
	t.Logf("%d plans on %d hosts: %.0f per second", len(took), len(w.Hosts), float64(len(took))/time.Since(began).Seconds())
	timed(t, "plan p95 on 100 hosts", p95(took))
}
