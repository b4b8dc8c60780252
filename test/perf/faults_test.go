// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package perf_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/test/chaos/lab"
)

// faultyLaunches is the number of launches with faults, and faultProbability the chance of each
// fault at each call or task.
const (
	faultyLaunches   = 100
	faultProbability = 0.02
)

// transientFaults are what a busy Proxmox cluster returns. Polls are affected too.
var transientFaults = []pvesim.Fault{
	{Status: 500, Message: "can't lock file '/var/lock/qemu-server/lock-20001.conf' - got timeout"},
	{Method: "POST", Status: 500, Message: "got no worker upid - start worker failed"},
	{Status: 596},
	{Method: "POST", Status: 596, AfterCall: true},
	{DropBefore: true},
	{Method: "PUT", DropAfter: true},
	{Task: "qmclone", Fail: "can't lock file '/var/lock/pve-manager/pve-storage-local-lvm' - got timeout"},
	{Task: "qmstart", Fail: "can't lock file '/var/lock/qemu-server/lock-20001.conf' - got timeout"},
	{Task: "*", Delay: pvesim.Duration(time.Minute)},
}

// TestFaults launches NodeClaims while calls and tasks fail. A NodeClaim whose launch fails is
// deleted, and Karpenter has to create another.
func TestFaults(t *testing.T) {
	t.Parallel()
	if !long() {
		t.Skip("SKIPPED: the rate needs many launches; run make bench. test/chaos checks each fault")
	}
	env := lab.New(t, lab.Options{Hosts: 10, Speed: 5, Seed: 1, Scenario: largeHosts})
	p := env.StartProcess(lab.ProcessOptions{})
	for _, fault := range transientFaults {
		fault.Probability = faultProbability
		env.AddFault(fault)
	}
	env.Sim.ResetRequests()
	for i := range faultyLaunches {
		env.CreateClaim(fmt.Sprintf("pool-%d", i))
	}
	p.Run()
	for {
		launched, pending := 0, 0
		for _, claim := range env.Claims() {
			switch {
			case p.Instances.VMs.IsLaunched(&claim):
				launched++
			case claim.DeletionTimestamp.IsZero():
				pending++
			}
		}
		if pending == 0 {
			checkCount(t, "failed calls per launch, with faults", float64(failedCalls(env.Sim))/faultyLaunches)
			checkCount(t, "launches that succeed with their first NodeClaim, with faults", float64(launched)/faultyLaunches)
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// failedCalls returns how many calls failed or were dropped.
func failedCalls(sim *pvesim.Simulator) (n int) {
	for _, request := range sim.Requests() {
		if request.Status == 0 || request.Status >= 500 {
			n++
		}
	}
	return n
}
