// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package perf_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/test/chaos/lab"
)

// timePlans measures Create's part for n NodeClaims of a class in sequence, the worst case in
// core.
func timePlans(t *testing.T, env *lab.Env, p *lab.Process, class string, n int) []time.Duration {
	t.Helper()
	var took []time.Duration
	for i := range n {
		took = append(took, timeStep(t, env, p, lab.StepPlan, class, fmt.Sprintf("%s-plan-%d", class, i)))
	}
	return took
}

// createClassOn creates a class whose template is on one host only.
func createClassOn(t *testing.T, env *lab.Env, name, host string, template int) {
	t.Helper()
	class := env.NewClass(name)
	class.Status.SelectedZones = []string{fmt.Sprintf("%s/%s/%d", testenv.Region, host, template)}
	testenv.Must(t, env.Kube.Create(t.Context(), class))
}

// TestPlanWithSlowProxmox fills all clone slots of one host with clones that take two minutes.
// Plans must still be fast, and a NodePool on another host must launch at normal speed.
func TestPlanWithSlowProxmox(t *testing.T) {
	env := lab.New(t, lab.Options{Hosts: 2, Speed: speed(1), Scenario: largeHosts})
	createClassOn(t, env, "slow", "pve1", 9000)
	createClassOn(t, env, "other", "pve2", 9001)
	p := env.StartProcess(lab.ProcessOptions{Quiet: true})
	baseline := launchSeconds(t, env, p, "other", "before")
	env.AddFault(pvesim.Fault{Task: "qmclone", TaskID: "9000", Delay: pvesim.Duration(2 * time.Minute)})
	var slow sync.WaitGroup
	for i := range 8 {
		name := fmt.Sprintf("slow-%d", i)
		env.CreateClaimOf("slow", name)
		slow.Go(func() { _ = p.RunStep(lab.StepLaunch, name) })
	}
	checkTime(t, "plan p95 over a launch, all slots busy", p95(timePlans(t, env, p, "slow", repeats(15, 100)))/baseline)
	checkTime(t, "launch beside busy slots over baseline", launchSeconds(t, env, p, "other", "beside")/baseline)
	p.Kill()
	slow.Wait()
}

// TestLaunchBesideBrokenClass launches while the VMs of another class fail to start.
func TestLaunchBesideBrokenClass(t *testing.T) {
	env := lab.New(t, lab.Options{Hosts: 1, Speed: speed(1), Scenario: func(s *pvesim.Scenario) {
		largeHosts(s)
		broken := s.Guests[0]
		broken.VMID, broken.Name, broken.Config = 9100, "broken", map[string]string{}
		for key, value := range s.Guests[0].Config {
			broken.Config[key] = strings.NewReplacer("vmbr0", "vmbr7", "9000", "9100").Replace(value)
		}
		s.Guests = append(s.Guests, broken)
	}})
	createClassOn(t, env, "broken", "pve1", 9100)
	p := env.StartProcess(lab.ProcessOptions{Quiet: true})
	baseline := launchSeconds(t, env, p, env.Class.Name, "before")
	var broken sync.WaitGroup
	broken.Go(func() {
		for i := range 8 {
			name := fmt.Sprintf("broken-%d", i)
			env.CreateClaimOf("broken", name)
			_ = p.RunStep(lab.StepLaunch, name)
		}
	})
	checkTime(t, "launch beside a broken class over baseline", launchSeconds(t, env, p, env.Class.Name, "beside")/baseline)
	broken.Wait()
}

// launchSeconds launches several NodeClaims of a class and returns the representative
// duration.
func launchSeconds(t *testing.T, env *lab.Env, p *lab.Process, class, when string) float64 {
	t.Helper()
	var took []float64
	for i := range repeats(3, 5) {
		took = append(took, timeStep(t, env, p, lab.StepLaunch, class, fmt.Sprintf("%s-%s-%d", class, when, i)).Seconds())
	}
	return representative(took)
}

// TestPlanAtScale plans a thousand NodeClaims on a hundred hosts. Hash units are measured in
// between, because load on the machine affects both.
func TestPlanAtScale(t *testing.T) {
	env := lab.New(t, lab.Options{Hosts: repeats(10, 100), Speed: 50, Scenario: largeHosts})
	p := env.StartProcess(lab.ProcessOptions{Quiet: true})
	var plans, units []time.Duration
	for i := range repeats(100, 1000) {
		plans = append(plans, timeStep(t, env, p, lab.StepPlan, env.Class.Name, fmt.Sprint("plan-", i)))
		units = append(units, timeHashes())
	}
	checkTime(t, "plan p95 on 100 hosts, hash units", p95(plans)/p95(units))
}
