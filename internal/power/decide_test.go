// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package power_test

import (
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/declared"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/power"
)

var now = time.Date(2026, 11, 16, 12, 0, 0, 0, time.UTC)

// idleHost returns a Host that no guard keeps awake.
func idleHost(name string) power.Host {
	return power.Host{
		Name: name, State: power.Awake, Votes: 1, IdleSince: now.Add(-time.Hour),
		Settings:    declared.PowerSettings{Mode: declared.PowerReport, IdleTime: 30 * time.Minute, MinAwake: 1, WattsIdle: 50, WattsFull: 150},
		WakeAddress: "BC:24:11:00:00:01", Templates: []string{"ubuntu"},
	}
}

// idleRegion returns five Hosts; only the first one is enrolled.
func idleRegion() power.Region {
	region := power.Region{Now: now}
	for _, name := range []string{"a", "b", "c", "d", "e"} {
		host := idleHost(name)
		if name != "a" {
			host.Settings.Mode = declared.PowerNone
		}
		region.Hosts = append(region.Hosts, host)
	}
	return region
}

// states returns a change of the states of Hosts that are not enrolled.
func states(states ...power.State) func(*power.Region, *power.Host) {
	return func(region *power.Region, _ *power.Host) {
		for n, state := range states {
			region.Hosts[n+1].State = state
		}
	}
}

// nightly returns the start of a backup job.
func nightly(in time.Duration) map[string]time.Time {
	return map[string]time.Time{"nightly": now.Add(in)}
}

// Every guard alone keeps a Host awake.
func TestGuards(t *testing.T) {
	t.Parallel()
	window, err := declared.ParseSettings([]byte(`{"r": {"*": {"sleepwindow": {"schedule": "0 19 * * *", "duration": "11h"}}}}`))
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	for name, test := range map[string]struct {
		change func(region *power.Region, host *power.Host)
		reason power.ReasonType
		text   string
	}{
		"offline":           {func(_ *power.Region, h *power.Host) { h.State = power.Offline }, power.NotOnline, "not online"},
		"boots":             {func(_ *power.Region, h *power.Host) { h.State = power.Waking }, power.NotOnline, "not online"},
		"unknown":           {func(_ *power.Region, h *power.Host) { h.Unknown = []string{"reading the votes failed"} }, power.FactsUnknown, "reading the votes failed"},
		"maintenance":       {func(_ *power.Region, h *power.Host) { h.Maintenance = "in maintenance by anna" }, power.InMaintenance, "by anna"},
		"own_VM":            {func(_ *power.Region, h *power.Host) { h.VMs = []string{"VM 20000"} }, power.InUse, "VM 20000"},
		"other_cluster":     {func(_ *power.Region, h *power.Host) { h.OtherVMs = []string{"VM 20001"} }, power.OtherCluster, "VM 20001"},
		"running_guest":     {func(_ *power.Region, h *power.Host) { h.Running = []string{"VM 101"} }, power.GuestRunning, "VM 101"},
		"guest_with_onboot": {func(_ *power.Region, h *power.Host) { h.OnBoot = []string{"VM 102"} }, power.GuestStartsOnBoot, "VM 102"},
		"HA":                {func(_ *power.Region, h *power.Host) { h.HA = []string{"prefer-a"} }, power.HighAvailability, "prefer-a"},
		"Ceph": {
			func(_ *power.Region, h *power.Host) { h.Ceph = strings.Fields("mon.a osd.0 osd.1 osd.2 osd.3 osd.4") },
			power.CephDaemon, "mon.a, osd.0, osd.1, osd.2, osd.3 and 1 more",
		},
		"replication": {func(_ *power.Region, h *power.Host) { h.Replications = []string{"101-0"} }, power.Replication, "101-0"},
		"task":        {func(_ *power.Region, h *power.Host) { h.Tasks = []string{"vzdump 101"} }, power.TaskRunning, "vzdump 101"},
		"template":    {func(_ *power.Region, h *power.Host) { h.Templates = []string{"ubuntu", "talos"} }, power.OnlyTemplate, "awake has the templates: talos"},
		"pending_template": {
			func(_ *power.Region, h *power.Host) { h.PendingTemplates = []string{"debian"} }, power.TemplatePending, "templates to build or delete: debian",
		},
		"export":    {func(_ *power.Region, h *power.Host) { h.Exports = []string{"nas"} }, power.StorageExported, "nas"},
		"privilege": {func(_ *power.Region, h *power.Host) { h.PrivilegeMissing = "k@pve lacks Sys.PowerMgmt on /nodes/a" }, power.PrivilegeMissing, "Sys.PowerMgmt"},
		"only_URL": {func(r *power.Region, _ *power.Host) {
			r.Endpoints = []string{"a", "b"}
			r.Hosts[1].State, r.Hosts[1].Votes = power.Asleep, 0
		}, power.OnlyURL, "URL"},
		"no_address":      {func(_ *power.Region, h *power.Host) { h.WakeAddress = "" }, power.NoWakeAddress, "MAC address"},
		"idle_time":       {func(_ *power.Region, h *power.Host) { h.IdleSince = now.Add(-time.Minute) }, power.NotIdleLongEnough, "2026-11-16T11:59:00Z"},
		"sleep_window":    {func(_ *power.Region, h *power.Host) { h.Settings.SleepWindow = window.For("r", "a").Power.SleepWindow }, power.OutsideSleepWindow, "sleepwindow"},
		"backup_due":      {func(_ *power.Region, h *power.Host) { h.Backups = nightly(50 * time.Minute) }, power.BackupDue, "nightly"},
		"minimum":         {func(_ *power.Region, h *power.Host) { h.Settings.MinAwake = 5 }, power.MinimumAwake, "requires 5"},
		"minimum_other":   {func(r *power.Region, _ *power.Host) { r.Hosts[3].Settings.MinAwake = 5 }, power.MinimumAwake, "requires 5"},
		"votes":           {func(_ *power.Region, h *power.Host) { h.Votes = 4 }, power.QuorumRequired, "without it, 4 of 8 votes remain"},
		"hosts_down":      {states(power.Offline, power.Offline), power.QuorumRequired, "without it, 2 of 5 votes remain"},
		"host_shuts_down": {states(power.ShuttingDown, power.Asleep), power.QuorumRequired, "without it, 2 of 5 votes remain"},
		"host_boots":      {states(power.Waking, power.Asleep), power.QuorumRequired, "without it, 2 of 5 votes remain"},
		"another_host_may_fail": {
			states(power.Offline), power.QuorumRequired, "without it, 3 of 5 votes remain, which is no majority if another host fails",
		},
		"QDevice_disconnected": {
			func(r *power.Region, _ *power.Host) { r.Hosts[4].State, r.QDeviceVotes = power.Offline, 4 },
			power.QuorumRequired, "without it, 3 of 9 votes remain",
		},
	} {
		g := NewWithT(t)
		region := idleRegion()
		test.change(&region, &region.Hosts[0])
		decisions := power.Decide(region)
		g.Expect(decisions).NotTo(BeEmpty(), name)
		g.Expect(decisions[0]).To(And(HaveField("Host", "a"), HaveField("Action", power.Keep)), name)
		g.Expect(decisions[0].Reasons).To(ConsistOf(HaveField("Type", test.reason)), name)
		g.Expect(decisions[0].Message()).To(ContainSubstring(test.text), name)
	}
}

func TestSleep(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(region *power.Region){
		"nothing_keeps_it_awake": func(*power.Region) {},
		"backup_later":           func(r *power.Region) { r.Hosts[0].Backups = nightly(2 * time.Hour) },
		"QDevice": func(r *power.Region) {
			states(power.Offline, power.Offline)(r, nil)
			r.QDeviceVotes, r.QDeviceConnected = 4, true
		},
		"other_URL":     func(r *power.Region) { r.Endpoints = []string{"a", "b"} },
		"load_balancer": func(r *power.Region) { r.Endpoints = []string{"a", ""} },
	} {
		region := idleRegion()
		change(&region)
		NewWithT(t).Expect(power.Decide(region)).To(ConsistOf(And(HaveField("Action", power.Sleep), HaveField("Message()", BeEmpty()))), name)
	}
}

// Hosts that use more energy sleep first, and decisions take each other into account.
func TestSleepOrder(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	region := idleRegion()
	for i := range region.Hosts {
		region.Hosts[i].Settings.Mode, region.Hosts[i].Settings.WattsIdle = declared.PowerReport, float64(10*i)
	}
	var sleep []string
	for _, d := range power.Decide(region) {
		if d.Action == power.Sleep {
			sleep = append(sleep, d.Host)
		} else if d.Reasons[0].Type != power.QuorumRequired {
			t.Errorf("%s: %+v", d.Host, d.Reasons)
		}
	}
	g.Expect(sleep).To(Equal([]string{"d", "e"}), "hosts to shut down")
	region = idleRegion()
	for i := range region.Hosts {
		region.Hosts[i].Settings.Mode, region.Hosts[i].Votes = declared.PowerReport, 0
		region.Hosts[i].Templates = nil
	}
	region.Hosts[0].Templates, region.Hosts[1].Templates = []string{"ubuntu"}, []string{"ubuntu"}
	region.QDeviceVotes, region.QDeviceConnected = 1, true
	for _, d := range power.Decide(region) {
		g.Expect(d.Action == power.Keep).To(Equal(d.Host == "b"), "%s: %s %s, want one host with the template", d.Host, d.Action, d.Message())
	}
}

func TestWake(t *testing.T) {
	t.Parallel()
	type reasons = map[string]power.ReasonType
	for name, test := range map[string]struct {
		change func(*power.Region)
		want   reasons
	}{
		"not_needed":   {func(*power.Region) {}, reasons{}},
		"minimum":      {func(r *power.Region) { r.Hosts[0].Settings.MinAwake = 4 }, reasons{"e": power.MinimumAwake}},
		"backup":       {func(r *power.Region) { r.Hosts[3].Backups = nightly(time.Minute) }, reasons{"d": power.BackupDue}},
		"template":     {func(r *power.Region) { r.Hosts[3].PendingTemplates = []string{"debian"} }, reasons{"d": power.TemplatePending}},
		"VM_to_launch": {func(r *power.Region) { r.Hosts[3].VMs = []string{"20000 (being launched)"} }, reasons{"d": power.InUse}},
		"disabled":     {func(r *power.Region) { r.Hosts[4].Settings.Mode = declared.PowerReport }, reasons{"e": power.NotEnabled}},
		"not_enrolled": {func(r *power.Region) { r.Hosts[4].Settings.Mode = declared.PowerNone }, reasons{"e": power.NotEnabled}},
		"host_failed": {
			func(r *power.Region) { r.Hosts[0].State = power.Offline }, reasons{"d": power.QuorumRequired, "e": power.QuorumRequired},
		},
		"maintenance": {
			func(r *power.Region) { r.Hosts[0].Settings.MinAwake, r.Hosts[4].Maintenance = 4, "by anna" },
			reasons{"d": power.MinimumAwake},
		},
	} {
		region := idleRegion()
		for i := range region.Hosts {
			region.Hosts[i].Settings.Mode = declared.PowerEnabled
		}
		region.Hosts[3].State, region.Hosts[4].State, region.Hosts[3].Settings.WattsIdle = power.Asleep, power.Asleep, 99
		test.change(&region)
		got := reasons{}
		for _, d := range power.Decide(region) {
			if d.Action == power.Wake {
				got[d.Host] = d.Reasons[0].Type
			}
			NewWithT(t).Expect(d.Action).NotTo(Equal(power.Sleep), "%s: %s is shut down", name, d.Host)
		}
		NewWithT(t).Expect(got).To(Equal(test.want), name)
	}
}

func TestEnergy(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	host := idleHost("a")
	for _, test := range []struct {
		state power.State
		load  float64
		want  float64
	}{{power.Awake, 0, 50}, {power.Awake, 0.5, 100}, {power.Awake, 2, 150}, {power.Waking, 0, 50}, {power.Asleep, 0.5, 0}, {power.Offline, 0.5, 0}} {
		host.State, host.CPULoad = test.state, test.load
		used, saved := host.Energy()
		g.Expect(used.Watts).To(Equal(test.want), "%s with load %v", test.state, test.load)
		g.Expect(saved.Watts == 50).To(Equal(test.state == power.Asleep), "%s with load %v", test.state, test.load)
	}
	host.State, host.Settings.WattsFull = power.Awake, 0
	used, _ := host.Energy()
	g.Expect(used.Watts).To(Equal(50.0), "without wattsfull")
}
