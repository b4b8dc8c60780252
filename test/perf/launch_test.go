// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package perf_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/test/chaos/lab"
)

// lessons is how many launches teach how long tasks take.
const lessons = 8

// unhurried is slower than real time: what a busy machine adds to each call counts for
// less. When everything is measured, it hardly counts at all.
func unhurried() float64 {
	if long() {
		return 0.15
	}
	return 0.5
}

// launched launches a Claim and says how long that took, in real time.
func launched(t *testing.T, w *lab.World, p *lab.Process, name string) time.Duration {
	t.Helper()
	w.Claim(name)
	began := time.Now()
	if err := p.Act(lab.ActLaunch, name); err != nil {
		t.Fatalf("launching %s, %v", name, err)
	}
	return time.Since(began)
}

func deleted(t *testing.T, w *lab.World, p *lab.Process, name string) {
	t.Helper()
	w.Delete(name)
	for range 100 {
		if err := p.Act(lab.ActDelete, name); err != nil {
			t.Fatalf("deleting %s, %v", name, err)
		}
		if len(w.Claims()) == 0 {
			return
		}
	}
	t.Fatalf("%s was not deleted", name)
}

func TestCallsPerNode(t *testing.T) {
	t.Parallel()
	w := lab.New(t, lab.Options{Speed: 5})
	p := w.Process(lab.Start{Quiet: true})
	var launches, deletes []float64
	for i := range lessons + repeats(3, 7) {
		name := fmt.Sprintf("pool-%d", i)
		w.Sim.ResetRequests()
		launched(t, w, p, name)
		launch := len(w.Sim.Requests())
		// By then a poll has seen it.
		if err := p.Refresh(); err != nil {
			t.Fatal(err)
		}
		w.Sim.ResetRequests()
		deleted(t, w, p, name)
		if i >= lessons {
			launches, deletes = append(launches, float64(launch)), append(deletes, float64(len(w.Sim.Requests())))
		}
	}
	count(t, "calls per launch", judge(launches))
	count(t, "calls per delete", judge(deletes))
}

// on moves the disks of all guests to a storage of that type and profile.
func on(kind, profile string) func(*pvesim.Scenario) {
	return func(s *pvesim.Scenario) {
		s.Latency = map[string]string{kind: profile}
		disk := &s.Storages[1]
		disk.Type = kind
		if kind == "rbd" {
			disk.Shared = true
		}
		if kind != "dir" {
			return
		}
		disk.Path = "/mnt/images"
		for i := range s.Guests {
			vmid := s.Guests[i].VMID
			for key, value := range s.Guests[i].Config {
				for _, prefix := range []string{"base", "vm"} {
					value = strings.Replace(value, fmt.Sprintf("local-lvm:%s-%d-disk-0", prefix, vmid), fmt.Sprintf("local-lvm:%d/%s-%d-disk-0.qcow2", vmid, prefix, vmid), 1)
				}
				s.Guests[i].Config[key] = strings.Replace(value, fmt.Sprintf("local-lvm:vm-%d-cloudinit", vmid), fmt.Sprintf("local-lvm:%d/vm-%d-cloudinit.qcow2", vmid, vmid), 1)
			}
		}
	}
}

// TestLaunchTime compares the time from a Claim to its started VM with what
// Proxmox's own tasks take, on storages of each kind.
func TestLaunchTime(t *testing.T) {
	for profile, kind := range map[string]string{"nvme-lvmthin": "lvmthin", "zfs": "zfspool", "ceph": "rbd", "hdd-dir": "dir", "ssd-dir": "dir"} {
		if profile != "nvme-lvmthin" && !long() {
			continue
		}
		t.Run(profile, func(t *testing.T) {
			t.Parallel() // they mostly wait
			w := lab.New(t, lab.Options{Speed: unhurried(), Scenario: on(kind, profile)})
			var o *observer
			p := w.Process(lab.Start{Quiet: true, Client: func(c proxmox.Client) proxmox.Client { o = observe(c); return o }})
			name := "launch over critical path, " + profile
			var ratios []float64
			for i := range lessons + repeats(4, 5) {
				claim := fmt.Sprintf("pool-%d", i)
				took := launched(t, w, p, claim)
				path := o.criticalPath()
				ratio := took.Seconds() / path.Seconds()
				t.Logf("after %2d launches: %s, critical path %s, ratio %.3f", i, took.Round(time.Millisecond), path.Round(time.Millisecond), ratio)
				deleted(t, w, p, claim)
				if i < lessons {
					continue
				}
				ratios = append(ratios, ratio)
				if !long() && ratio <= limit(t, name)*slack {
					break
				}
			}
			timed(t, name, judge(ratios))
		})
	}
}
