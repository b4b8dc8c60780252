// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package inventory_test

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/funcr"
	. "github.com/onsi/gomega"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/declared"
)

func TestLoadSettings(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	file := filepath.Join(t.TempDir(), "hosts.json")
	err := os.WriteFile(file, []byte(`{"cluster-1": {
	  "*":    {"reservedmemory": 2147483648},
	  "pve1": {"cores": 32, "sockets": 2, "threads": 2, "uncorecaches": 4, "reservedcpus": [0, 32],
	           "nodes": {"0": {"cpus": "0-7,32-39", "memsize": 68719476736}, "1": {"cpus": "8-15", "memory": "64Gi"}}}
	}}`), 0o600)
	g.Expect(err).NotTo(HaveOccurred())
	settings, err := declared.LoadSettings(file)
	g.Expect(err).NotTo(HaveOccurred())
	s := settings.For("cluster-1", "pve1")
	g.Expect([]any{s.ReservedMemoryBytes, s.ReservedCPUs.String(), s.CPURatio, s.Excluded}).To(Equal([]any{2 * gib, "0,32", 1.0, false}))
	g.Expect([]int{s.Topology.Sockets, s.Topology.Cores, s.Topology.Threads, s.Topology.UncoreCaches}).To(Equal([]int{2, 32, 2, 4}))
	for id, cpus := range map[int]int{0: 16, 1: 8} {
		g.Expect(s.Topology.Cells[id]).To(And(HaveField("CPUs.Size()", cpus), HaveField("MemoryBytes", 64*gib)))
	}
	settings, err = declared.LoadSettings("")
	g.Expect(err).NotTo(HaveOccurred())
	s = settings.For("any", "host")
	g.Expect([]any{s.ReservedMemoryBytes, s.CPURatio, s.MemoryRatio, s.StorageHighWater, s.StorageThinFactor}).To(Equal([]any{gib, 1.0, 1.0, 0.9, 1.0}))
	g.Expect(declared.LoadSettings("/nowhere/hosts.json")).Error().To(MatchError(ContainSubstring("/nowhere/hosts.json")))
	g.Expect(os.WriteFile(file, []byte(`{"a": {"b": {"x": 1}}}`), 0o600)).To(Succeed())
	g.Expect(declared.LoadSettings(file)).Error().To(MatchError(ContainSubstring(file + `: region "a", host "b"`)))
}

func TestParseSettingsSpecificity(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	settings, err := declared.ParseSettings([]byte(`{
	  "*":         {"pve-a-1": {"cpuratio": 5, "excluded": true}, "*": {"memoryratio": 1.5}},
	  "cluster-1": {"*": {"cpuratio": 2}, "pve-*": {"cpuratio": 3}, "pve-a-*": {"cpuratio": 4}, "pve-a-1": {"storagehighwater": 0.5}}
	}`))
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	for name, want := range map[string]float64{"pve-a-1": 4, "pve-a-2": 4, "pve-b": 3, "other": 2} {
		g.Expect(settings.For("cluster-1", name)).To(And(HaveField("CPURatio", want), HaveField("MemoryRatio", 1.5)), name)
	}
	g.Expect(settings.For("cluster-1", "pve-a-1")).To(And(HaveField("StorageHighWater", 0.5), HaveField("Excluded", true)), "fields of every matching entry")
}

func TestParseSettingsInvalid(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ file, want string }{
		"invalid_JSON":         {`{"a": `, `unexpected end of JSON input (want {"region": {"host": {"field": value}}})`},
		"wrong_form":           {`{"a": {"b": 1}}`, `cannot unmarshal number`},
		"duplicate_host":       {`{"a": {"b": {}, "b": {}}, "a": {}}`, `duplicate field "a.b"`},
		"duplicate_field":      {`{"a": {"b": {"cores": 1, "cores": 2}}}`, `duplicate field "a.b.cores"`},
		"unknown_field":        {`{"a": {"b": {"coers": 1}}}`, `region "a", host "b": field "coers" is unknown, want one of cores, cpuratio, energyprice, excluded,`},
		"empty_host":           {`{"a": {"": {}}}`, `found the name ""`},
		"bad_pattern":          {`{"a": {"[": {}}}`, `found the name "["`},
		"negative_memory":      {`{"a": {"b": {"reservedmemory": -1}}}`, `region "a", host "b": field "reservedmemory": found -1, want bytes or a quantity such as "4Gi", not negative`},
		"null_memory":          {`{"a": {"b": {"reservedmemory": null}}}`, `field "reservedmemory": found null, want bytes`},
		"extreme_exponent":     {`{"a": {"b": {"reservedmemory": "1e-999999999"}}}`, `field "reservedmemory": found "1e-999999999", want bytes`},
		"memory_too_large":     {`{"a": {"b": {"reservedmemory": "1e99"}}}`, `field "reservedmemory": found "1e99", want bytes`},
		"memory_not_a_number":  {`{"a": {"b": {"reservedmemory": "much"}}}`, `field "reservedmemory": found "much", want bytes`},
		"CPU_list_as_string":   {`{"a": {"b": {"reservedcpus": "0-1"}}}`, `field "reservedcpus": found "0-1", want a list of CPU numbers such as [0, 1]`},
		"negative_CPU":         {`{"a": {"b": {"reservedcpus": [-1]}}}`, `want a list of CPU numbers`},
		"duplicate_CPU":        {`{"a": {"b": {"reservedcpus": [1, 1]}}}`, `want each CPU number once`},
		"zero_ratio":           {`{"a": {"b": {"cpuratio": 0}}}`, `field "cpuratio": found 0, want a number above 0 and up to 64`},
		"ratio_too_large":      {`{"a": {"b": {"memoryratio": 150}}}`, `want a number above 0 and up to 64`},
		"high_water_too_large": {`{"a": {"b": {"storagehighwater": 90}}}`, `want a number above 0 and up to 1`},
		"reserve":              {`{"a": {"b": {"reserve": "largest"}}}`, `region "a", host "b": field "reserve": found "largest", want "None" or "LargestHost"`},
		"powermanagement":      {`{"a": {"b": {"powermanagement": "on"}}}`, `field "powermanagement": found "on", want "None", "Report" or "Enabled"`},
		"waketimeout":          {`{"a": {"b": {"waketimeout": "11m"}}}`, `field "waketimeout": found "11m", want a duration such as "5m", above 0 and up to 10m0s`},
		"idletime":             {`{"a": {"b": {"idletime": 30}}}`, `field "idletime": found 30, want a duration such as "30m", above 0`},
		"idletime_negative":    {`{"a": {"b": {"idletime": "-1m"}}}`, `want a duration such as "30m", above 0`},
		"minawake":             {`{"a": {"b": {"minawake": -1}}}`, `field "minawake": found -1, want a whole number, not negative`},
		"energyprice":          {`{"a": {"b": {"energyprice": "0.3 EUR"}}}`, `field "energyprice": found "0.3 EUR", want a number above 0 and up to 100000`},
		"wattsidle":            {`{"a": {"b": {"wattsidle": "80 W"}}}`, `field "wattsidle": found "80 W", want a number above 0 and up to 100000`},
		"sleepwindow":          {`{"a": {"b": {"sleepwindow": "nightly"}}}`, `field "sleepwindow": found "nightly", want {"schedule": "0 19 * * *", "duration": "11h"}`},
		"sleepwindow_schedule": {`{"a": {"b": {"sleepwindow": {"schedule": "19:00", "duration": "1h"}}}}`, `(schedule: found "19:00", want five fields of cron)`},
		"sleepwindow_duration": {`{"a": {"b": {"sleepwindow": {"schedule": "0 19 * * *"}}}}`, `(duration: want a duration such as "30m", above 0)`},
		"reserve_as_boolean":   {`{"a": {"b": {"reserve": true}}}`, `field "reserve": found true, want "None" or "LargestHost"`},
		"excluded":             {`{"a": {"b": {"excluded": "yes"}}}`, `field "excluded": found "yes", want true or false`},
		"fraction":             {`{"a": {"b": {"cores": 1.5}}}`, `field "cores": found 1.5, want a whole number`},
		"cell_name":            {`{"a": {"b": {"nodes": {"x": {}}}}}`, `cell "x" is not a number`},
		"cell_CPUs":            {`{"a": {"b": {"nodes": {"0": {"cpus": "7-1"}}}}}`, `cpus of cell 0: found "7-1", want a list of CPUs`},
		"cells_overlap":        {`{"a": {"b": {"nodes": {"0": {"cpus": "0-7"}, "1": {"cpus": "6-9"}}}}}`, `region "a", host "b": field "nodes": found {"0": {"cpus": "0-7"}, "1": {"cpus": ..., want each CPU in one cell (cells 0 and 1 both have 6-7)`},
		"siblings":             {`{"a": {"b": {"siblings": "twins"}}}`, `region "a", host "b": field "siblings": found "twins", want "spread"`},
		"cell_field":           {`{"a": {"b": {"nodes": {"0": {"cpu": "1"}}}}}`, `unknown field "0.cpu"`},
	} {
		_, err := declared.ParseSettings([]byte(c.file))
		NewWithT(t).Expect(err).To(MatchError(And(ContainSubstring(c.want), Not(ContainSubstring("\n")))), name)
	}
}

func FuzzParseSettings(f *testing.F) {
	f.Add([]byte(`{"r": {"pve-*": {"reservedcpus": [0], "nodes": {"0": {"cpus": "0-3", "memsize": 1}}, "cpuratio": 1.5}}}`))
	f.Add([]byte(`{"r": {"*": {"reservedmemory": "4Gi"}}}`))
	f.Add([]byte(`{"r": {"[a-": {}}}`))
	f.Add([]byte(`{"*": {"*": {"nodes": {"0": {"cpus": "0-99999999999"}}}}}`))
	f.Add([]byte(`{"*": {"*": {"nodes": {"0": {"memsize": 1, "memory": "x\ny"}}, "siblings": "spread", "excluded": true}}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		settings, err := declared.ParseSettings(data)
		if err != nil {
			if !strings.Contains(err.Error(), "want") || strings.Contains(err.Error(), "\n") {
				t.Errorf("the error is %q, want one line with what is allowed", err)
			}
			return
		}
		s := settings.For("r", "pve-1")
		if s.CPURatio <= 0 || s.MemoryRatio <= 0 || s.ReservedMemoryBytes < 0 || s.StorageHighWater <= 0 || s.StorageHighWater > 1 {
			t.Errorf("invalid settings were accepted: %+v", s)
		}
		for id, cell := range s.Topology.Cells {
			if id < 0 || cell.MemoryBytes < 0 || cell.CPUs.Size() > 1<<14 {
				t.Errorf("cell %d was accepted: %+v", id, cell)
			}
		}
	})
}

const oneReloadError = `
# HELP karpenter_proxmox_settings_reload_errors_total Changes of the host settings file that were rejected. The last good settings remain in effect.
# TYPE karpenter_proxmox_settings_reload_errors_total counter
karpenter_proxmox_settings_reload_errors_total 1
`

func TestWatchSettings(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		file := filepath.Join(t.TempDir(), "hosts.json")
		write := func(text string) { g.Expect(os.WriteFile(file, []byte(text), 0o600)).To(Succeed()) }
		write(`{"r": {"pve1": {"cpuratio": 2}}}`)
		settings, err := declared.LoadSettings(file)
		g.Expect(err).NotTo(HaveOccurred())
		registry := prometheus.NewRegistry()
		i := newInventoryWith(t, inventory.Options{Settings: settings, Registerer: registry}, newCluster("r", host("pve1", 16, 64)))
		refresh(t, i)
		watch := inventory.WatchSettings(i, file)
		go func() { _ = watch.Start(t.Context()) }()
		check := func() {
			time.Sleep(inventory.DefaultPollInterval)
			synctest.Wait()
		}
		cpus := func() int { return hostState(i.View(), "pve1").Allocatable.CPUs }
		generation := i.View().Generation
		check()
		g.Expect(cpus()).To(BeEquivalentTo(32))
		g.Expect(i.View().Generation).To(Equal(generation))
		write(`{"r": {"*": {"cpuratio": 3}}}`)
		check()
		g.Expect(cpus()).To(Equal(48))
		g.Expect(i.View().Generation).NotTo(Equal(generation))
		write(`{"r": {"*": {"cpuratio": "many"}}}`)
		check()
		check()
		g.Expect(cpus()).To(BeEquivalentTo(48), "want 48: an invalid file changes nothing")
		g.Expect(testutil.GatherAndCompare(registry, strings.NewReader(oneReloadError), "karpenter_proxmox_settings_reload_errors_total")).To(Succeed())
		g.Expect(os.Remove(file)).To(Succeed())
		check()
		write(`{"r": {"pve?": {"excluded": true}}}`)
		check()
		g.Expect(hostState(i.View(), "pve1")).To(haveReasons(inventory.Excluded))
	})
}

func TestDuplicateHostNames(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	settings, err := declared.ParseSettings([]byte(`{"west": {"pve1": {"pricefactor": 0.5}}}`))
	g.Expect(err).NotTo(HaveOccurred())
	var mu sync.Mutex
	all := ""
	i := newInventoryWith(t, inventory.Options{Settings: settings, Log: funcr.New(func(_, line string) {
		mu.Lock()
		defer mu.Unlock()
		all += line
	}, funcr.Options{})}, newCluster("east", host("pve1", 16, 64), host("pve2", 16, 64)), newCluster("west", host("pve1", 16, 64)))
	for range 2 {
		g.Expect(i.RefreshAll(t.Context())).To(Succeed())
	}
	mu.Lock()
	defer mu.Unlock()
	for _, want := range []string{"two Proxmox clusters have a host of the same name", "different price factors", `"factors"=[1 0.5]`} {
		g.Expect(strings.Count(all, want)).To(BeEquivalentTo(1), "the log contains")
	}
}

func TestPowerSettings(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	settings, err := declared.ParseSettings([]byte(`{"home": {
	  "*":    {"powermanagement": "Report", "idletime": "15m", "waketimeout": "8m", "minawake": 2, "wattsidle": 60, "wattsfull": 180,
	           "sleepwindow": {"schedule": "0 19 * * mon-fri", "duration": "11h"}},
	  "pve1": {"powermanagement": "None"},
	  "pve4": {"powermanagement": "Enabled"},
	  "pve2": {"sleepwindow": {"schedule": "0 0 30 2 *", "duration": "1h"}}
	}}`))
	g.Expect(err).NotTo(HaveOccurred())
	power := settings.For("home", "pve3").Power
	if power.Mode != declared.PowerReport || power.IdleTime != 15*time.Minute || power.WakeTimeout != 8*time.Minute || power.MinAwake != 2 || power.WattsIdle != 60 || power.WattsFull != 180 {
		t.Errorf("pve3 has %+v", power)
	}
	for at, want := range map[string]bool{
		"2026-11-16T18:59:00Z": false, "2026-11-16T19:00:00Z": true, "2026-11-17T05:59:00Z": true, "2026-11-17T06:01:00Z": false,
		"2026-11-14T22:00:00Z":      false, // a Saturday
		"2026-11-16T19:30:00+02:00": false,
	} {
		moment, err := time.Parse(time.RFC3339, at)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(power.SleepWindow.Contains(moment)).To(Equal(want), "the window contains %s", at)
		g.Expect(settings.For("home", "pve2").Power.SleepWindow.Contains(moment)).To(BeFalse(), "a window that never begins contains %s", at)
		g.Expect(settings.For("other", "pve1").Power.SleepWindow.Contains(moment)).To(BeTrue(), "no window does not contain %s", at)
	}
	g.Expect(settings.For("home", "pve4").Power.Mode).To(Equal(declared.PowerEnabled))
	g.Expect(settings.For("home", "pve1").Power.Mode).To(Equal(declared.PowerNone))
	if power := settings.For("other", "pve1").Power; power.Mode != declared.PowerNone || power.IdleTime != 30*time.Minute || power.WakeTimeout != 5*time.Minute || power.MinAwake != 1 {
		t.Errorf("the defaults are %+v", power)
	}
}
