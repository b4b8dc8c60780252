// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox_test

import (
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// withPower lets the token turn hosts off and on; pve2 can be woken.
func withPower(s *pvesim.Scenario) {
	s.Roles[0].Privileges = append(s.Roles[0].Privileges, "Sys.PowerMgmt")
	s.Hosts[1].Config = map[string]string{"wakeonlan": "mac=BC:24:11:AA:00:02,bind-interface=eno1"}
}

func TestShutdownAndWake(t *testing.T) {
	simulated(t, func(t *testing.T, g *WithT) {
		ctx := t.Context()
		_, c := simulate(t, "9.2", withPower)
		online := func() bool {
			time.Sleep(5 * time.Minute)
			all, err := c.Resources(ctx)
			g.Expect(err).NotTo(HaveOccurred())
			return all.Hosts[1].Online
		}
		g.Expect(online()).To(BeTrue())
		g.Expect(c.WakeAddress(ctx, "pve1")).To(BeEmpty())
		g.Expect(c.WakeAddress(ctx, "pve2")).To(Equal("BC:24:11:AA:00:02"))
		g.Expect(c.HostAddresses(ctx)).To(HaveKeyWithValue("pve2", "10.97.0.3"))

		g.Expect(c.Shutdown(ctx, "pve2")).To(Succeed())
		g.Expect(online()).To(BeFalse())
		g.Expect(c.WakeAddress(ctx, "pve2")).Error().To(MatchError(proxmox.ErrHostUnreachable))
		g.Expect(c.HostAddresses(ctx)).NotTo(HaveKey("pve2"))
		g.Expect(c.Wake(ctx, "pve2")).To(Equal("BC:24:11:AA:00:02"))
		g.Expect(online()).To(BeTrue())
		g.Expect(c.Wake(ctx, "pve1")).Error().To(MatchError(ContainSubstring("'pve1' is local node")))
	})
}

func TestWithoutPower(t *testing.T) {
	simulated(t, func(t *testing.T, g *WithT) {
		_, c := simulate(t, "8.4", func(s *pvesim.Scenario) { s.Cluster, s.Hosts, s.Guests = "", s.Hosts[:1], nil })
		forbidden := MatchError(ContainSubstring("Sys.PowerMgmt is missing on /nodes/pve1"))
		g.Expect(c.Shutdown(t.Context(), "pve1")).To(forbidden)
		g.Expect(c.Wake(t.Context(), "pve1")).Error().To(forbidden)
		g.Expect(c.CephDaemons(t.Context())).Error().To(MatchError(proxmox.ErrNotFound), "Ceph is not installed")
		g.Expect(c.Votes(t.Context())).To(Equal(proxmox.Votes{Hosts: map[string]int{}}), "a host without a cluster")
	})
}

func TestPowerGuards(t *testing.T) {
	t.Parallel()
	for _, release := range []string{"8.4", "9.2"} {
		runSimulated(t, release, func(t *testing.T, g *WithT) {
			ctx := t.Context()
			sim, c := simulate(t, release, withPower, func(s *pvesim.Scenario) {
				s.Votes = &pvesim.Votes{QDevice: true}
				s.Hosts[0].Votes = 2
				s.Hosts[0].Ceph = []string{"osd.1", "mon", "mgr"}
				s.BackupJobs = []pvesim.BackupJob{
					{ID: "all", Schedule: "daily", NextRun: pvesim.Duration(time.Hour)}, {ID: "one", Host: "pve2", VMs: []int{101, 102}}, {ID: "off", Disabled: true},
					{ID: "pool", Pool: "prod"}, {ID: "rest", Exclude: []int{101, 102}},
				}
				s.Pools = append(s.Pools, pvesim.Pool{ID: "prod"})
				s.ReplicationJobs = []pvesim.ReplicationJob{{VMID: 101, Target: "pve2"}, {VMID: 102, Target: "pve1", Disabled: true}}
			})

			g.Expect(c.Votes(ctx)).To(Equal(proxmox.Votes{Hosts: map[string]int{"pve1": 2, "pve2": 1}, QDevice: 1, QDeviceConnected: true}))
			g.Expect(c.CephDaemons(ctx)).To(Equal(map[string][]string{"pve1": {"mgr.pve1", "mon.pve1", "osd.1"}}))
			g.Expect(c.HasCeph(ctx, "pve1")).To(BeTrue())
			g.Expect(c.HasCeph(ctx, "pve2")).To(BeFalse())
			g.Expect(c.HAPreferences(ctx, proxmox.Version{Release: release})).To(BeEmpty())
			jobs, err := c.BackupJobs(ctx)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(jobs).To(HaveLen(4))
			g.Expect(jobs[0].NextRun).To(BeTemporally("~", time.Now().Add(time.Hour), time.Second))
			g.Expect([]any{jobs[1].ID, jobs[1].Host, jobs[1].VMs}).To(Equal([]any{"one", "pve2", []int{101, 102}}))
			g.Expect(jobs[2]).To(And(HaveField("Pool", "prod"), HaveField("VMs", BeEmpty())))
			g.Expect(jobs[3]).To(And(HaveField("Pool", ""), HaveField("Excluded", []int{101, 102})))
			g.Expect(c.ReplicationJobs(ctx)).To(Equal([]proxmox.ReplicationJob{{ID: "101-0", VMID: 101, Target: "pve2"}}))

			g.Expect(sim.AddFault(pvesim.Fault{Task: "qmstop", Hang: true})).Error().NotTo(HaveOccurred())
			task, err := c.StopVM(ctx, "pve2", 102)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(c.AllRunningTasks(ctx)).To(HaveExactElements(HaveField("UPID", task)))
		})
	}
}

// The votes of a QDevice depend on its algorithm. An unknown one is an error, so no host is shut
// down.
func TestQDeviceVotes(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		device string
		votes  int
		failed bool
	}{
		"none":          {`{}`, 0, false},
		"ffsplit":       {`{"Algorithm":"Fifty-Fifty split","State":"Connected"}`, 1, false},
		"lms":           {`{"Algorithm":"LMS","State":"Connected"}`, 2, false},
		"two_hosts_lms": {`{"Algorithm":"2 Node LMS","State":"Connected"}`, 2, false},
		"unknown":       {`{"Algorithm":"Test","State":"Connected"}`, 0, true},
		"unreadable":    {`{"State":"Connecting"}`, 0, true},
	} {
		runSimulated(t, name, func(t *testing.T, g *WithT) {
			c, _ := clientOf(t, func(r request) reply {
				if strings.HasPrefix(r.uri, "/cluster/config/nodes") {
					return data(`[{"node":"a","quorum_votes":"1"},{"node":"b","quorum_votes":"1"},{"node":"c","quorum_votes":"1"}]`)
				}
				return data(test.device)
			})
			g.Expect(c.URLHosts()).To(Equal([]string{"127.0.0.1"}))
			if test.failed {
				g.Expect(c.Votes(t.Context())).Error().To(MatchError(ContainSubstring("found algorithm")))
			} else {
				g.Expect(c.Votes(t.Context())).To(HaveField("QDevice", test.votes))
			}
		})
	}
}
