// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package inventory_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

func TestPollFailure(t *testing.T) {
	t.Parallel()
	c := newCluster("r", host("pve1", 16, 64))
	c.setGuests(vm(100, "pve1", "running", 4, 8))
	i, clock := newInventory(t, c)
	refresh(t, i)
	generation := i.View().Generation

	c.change(func() { c.failure = proxmox.ErrUnreachable })
	for n := range 3 {
		clock.Step(10 * time.Second)
		if err := i.Refresh(t.Context(), "r"); !errors.Is(err, proxmox.ErrUnreachable) {
			t.Fatalf("Refresh returned %v, want the poll's error", err)
		}
		v := i.View()
		if len(v.Snapshots["r"].Guests) != 1 || !v.Snapshots["r"].Taken.Equal(start) {
			t.Fatal("the last good Snapshot was dropped")
		}
		var failure *inventory.PollError
		if !errors.As(v.Failures["r"], &failure) || failure.Count != n+1 || !failure.Since.Equal(start.Add(10*time.Second)) {
			t.Fatalf("the failure is %+v, want failure %d since the first", failure, n+1)
		}
		// The first failure changes nothing; the second makes the Hosts unusable.
		if ok, _ := v.Usable("r", "pve1"); ok != (n == 0) {
			t.Errorf("after %d failures usable is %v", n+1, ok)
		}
	}
	if got := i.View().Generation; got != generation+1 {
		t.Errorf("the generation changed from %d to %d, want one change when the Hosts became unusable", generation, got)
	}
	c.change(func() { c.failure = nil })
	refresh(t, i)
	if v := i.View(); v.Failures["r"] != nil || i.View().Generation != generation+2 {
		t.Error("the View still reports a failure")
	}
}

func TestPollNoQuorum(t *testing.T) {
	t.Parallel()
	c := newCluster("r", host("pve1", 16, 64))
	i, _ := newInventory(t, c)
	refresh(t, i)
	c.change(func() { c.failure = proxmox.ErrNoQuorum })
	if err := i.Refresh(t.Context(), "r"); !errors.Is(err, proxmox.ErrNoQuorum) {
		t.Fatalf("Refresh returned %v, want the poll's error", err)
	}
	ok, reason := i.View().Usable("r", "pve1")
	if want := "the Proxmox cluster has had no quorum since 2026-11-15T08:00:00Z"; ok || !strings.HasPrefix(reason, want) {
		t.Errorf("usable is %v, reason %q, want %q after the first poll", ok, reason, want)
	}
	if err := i.View().Unavailable("r"); !errors.Is(err, proxmox.ErrNoQuorum) {
		t.Errorf("Unavailable returned %v", err)
	}
	c.change(func() { c.failure = nil })
	refresh(t, i)
	if err := i.View().Unavailable("r"); err != nil {
		t.Errorf("Unavailable returned %v after a successful poll", err)
	}
}

func TestPollHangingCluster(t *testing.T) {
	t.Parallel()
	hanging, reachable := newCluster("hanging", host("pve1", 8, 32)), newCluster("reachable", host("pve1", 8, 32))
	hang := make(chan struct{})
	hanging.before = func() { <-hang }
	i, _ := newInventory(t, hanging, reachable)
	ctx, cancel := context.WithCancel(t.Context())
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		if err := i.Start(ctx); err != nil {
			t.Error(err)
		}
	}()
	eventually(t, "the reachable Cluster is read", func() bool { return i.View().Snapshots["reachable"] != nil })
	if i.View().Snapshots["hanging"] != nil {
		t.Error("the hanging Cluster has a Snapshot")
	}
	cancel()
	close(hang)
	<-stopped
	if err := i.View().Failures["hanging"]; err != nil {
		t.Errorf("the shutdown was recorded as a failure: %v", err)
	}
}

func TestPollImplausibleResponse(t *testing.T) {
	t.Parallel()
	full := func() *cluster {
		c := newCluster("r", host("pve1", 16, 64), host("pve2", 16, 64))
		c.resources.Guests = []proxmox.GuestRow{vm(100, "pve1", "running", 4, 8)}
		return c
	}
	for name, c := range map[string]struct {
		change func(*cluster)
		want   string
	}{
		"no_hosts": {func(c *cluster) { c.resources = proxmox.Resources{} }, "lists no hosts"},
		"no_host_sizes": {func(c *cluster) {
			c.resources.Hosts = []proxmox.HostRow{{Name: "pve1", Online: true}, {Name: "pve2", Online: true}}
		}, "Sys.Audit on /nodes"},
		"no_guests_without_privilege": {func(c *cluster) {
			c.resources.Guests = nil
			c.permissions = proxmox.Permissions{"/storage": {"Datastore.Audit": true}}
		}, "VM.Audit on /vms"},
		"no_guests_with_privilege_elsewhere": {func(c *cluster) {
			c.resources.Guests = nil
			c.permissions = proxmox.Permissions{"/nodes": {"VM.Audit": true}}
		}, "VM.Audit on /vms"},
		"no_guests_with_denied_privilege": {func(c *cluster) {
			c.resources.Guests = nil
			c.permissions = proxmox.Permissions{"/": {"VM.Audit": true}, "/pool": {"VM.Audit": true}, "/vms": {}}
		}, "VM.Audit on /vms"},
		"no_guests_in_resource_pool": {func(c *cluster) {
			c.resources.Guests = nil
			c.permissions = proxmox.Permissions{"/pool/karpenter": {"VM.Audit": true}}
		}, ""},
		"no_guests_with_privilege": {func(c *cluster) {
			c.resources.Guests = nil
			c.permissions = proxmox.Permissions{"/vms": {"VM.Audit": true}}
		}, ""},
		"one_host_without_size": {func(c *cluster) { c.resources.Hosts[0].CPUs = 0 }, ""},
		"all_hosts_offline": {func(c *cluster) {
			c.resources.Hosts = []proxmox.HostRow{{Name: "pve1"}, {Name: "pve2"}}
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cluster := full()
			i, _ := newInventory(t, cluster)
			refresh(t, i)
			cluster.change(func() { c.change(cluster) })
			err := i.Refresh(t.Context(), "r")
			if c.want == "" {
				if err != nil {
					t.Errorf("a plausible response was rejected: %v", err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("the error is %v, want %q", err, c.want)
			}
			if len(i.View().Snapshots["r"].Guests) != 1 {
				t.Error("the last good Snapshot was dropped")
			}
		})
	}
}

func TestRefreshAfterChange(t *testing.T) {
	t.Parallel()
	c := newCluster("r", host("pve1", 16, 64))
	read, proceed := make(chan struct{}), make(chan struct{})
	c.during = func() { read <- struct{}{}; <-proceed }
	i, _ := newInventory(t, c)

	refreshed := make(chan error)
	begin := func() { go func() { refreshed <- i.Refresh(t.Context(), "r") }() }
	begin()
	<-read // the first poll has its response
	c.setGuests(vm(100, "pve1", "running", 1, 1))
	begin()
	begin()
	proceed <- struct{}{}
	if err := <-refreshed; err != nil {
		t.Fatal(err)
	}
	if _, ok := i.View().Guest("r", 100); ok {
		t.Fatal("the first poll shows a guest that was created after its response")
	}
	<-read
	proceed <- struct{}{}
	for range 2 {
		select {
		case err := <-refreshed:
			if err != nil {
				t.Fatal(err)
			}
		case <-read: // the third call may have been made after the second poll began
			proceed <- struct{}{}
			if err := <-refreshed; err != nil {
				t.Fatal(err)
			}
		}
	}
	if _, ok := i.View().Guest("r", 100); !ok {
		t.Error("the View after Refresh is older than the call")
	}
}

func TestRefreshCanceled(t *testing.T) {
	t.Parallel()
	c := newCluster("r", host("pve1", 16, 64))
	hang := make(chan struct{})
	c.before = func() { <-hang }
	i, _ := newInventory(t, c)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := i.Refresh(ctx, "r"); !errors.Is(err, context.Canceled) {
		t.Errorf("Refresh returned %v, want context.Canceled", err)
	}
	close(hang)
	eventually(t, "the poll continues for other callers", func() bool { return i.View().Snapshots["r"] != nil })
	if err := i.Refresh(t.Context(), "nowhere"); err == nil {
		t.Error("a region that is not configured was refreshed")
	}
}

func TestObserveDeletedDuringPoll(t *testing.T) {
	t.Parallel()
	c := newCluster("r", host("pve1", 16, 64))
	c.setGuests(vm(20001, "pve1", "running", 4, 8), vm(100, "pve1", "running", 2, 4))
	c.configs[20001] = config("name", "vm-20001")
	i, clock := newInventory(t, c)
	refresh(t, i)

	c.change(func() {
		c.during = func() { // destroyed after the poll read its response
			clock.Step(time.Second)
			i.Ledger().ObserveDeleted("r", 20001)
		}
	})
	refresh(t, i)
	v := i.View()
	if _, ok := v.Guest("r", 20001); ok || v.IsVMIDTaken("r", 20001) || v.Snapshots["r"].Hosts["pve1"].Allocated != amount(2, 4) {
		t.Error("a deleted guest still counts")
	}

	// A later poll shows a new guest with the same VMID.
	c.change(func() { c.during = nil })
	clock.Step(time.Second)
	refresh(t, i)
	if _, ok := i.View().Guest("r", 20001); !ok {
		t.Error("a new guest is hidden by an earlier deletion")
	}
}

func TestGenerationIgnoresNoise(t *testing.T) {
	t.Parallel()
	c := newCluster("r", host("pve1", 16, 64))
	c.setGuests(vm(100, "pve1", "running", 4, 8))
	c.resources.Storages = []proxmox.StorageRow{{Name: "local", Host: "pve1", Available: true, TotalBytes: 100 * gib, UsedBytes: 10 * gib}}
	i, _ := newInventory(t, c)
	refresh(t, i)
	for _, step := range []struct {
		name     string
		change   func()
		relevant bool
	}{
		{"nothing", func() {}, false},
		{"load_and_uptime", func() {
			c.resources.Hosts[0].CPULoad, c.resources.Hosts[0].UsedMemoryBytes = 0.7, gib
			c.resources.Guests[0].UptimeSeconds = 99
		}, false},
		{"small_disk_usage", func() { c.resources.Storages[0].UsedBytes += 1 << 20 }, false},
		{"large_disk_usage", func() { c.resources.Storages[0].UsedBytes += 2 * gib }, true},
		{"guest_stopped", func() { c.resources.Guests[0].Status = "stopped" }, true},
		{"tag", func() { c.resources.Guests[0].Tags = []string{"x"} }, true},
		{"host_in_maintenance", func() { c.resources.Hosts[0].Maintenance = true }, true},
		{"new_guest", func() { c.resources.Guests = append(c.resources.Guests, vm(101, "pve1", "running", 1, 1)) }, true},
	} {
		before := i.View().Generation
		c.change(step.change)
		refresh(t, i)
		if changed := i.View().Generation != before; changed != step.relevant {
			t.Errorf("%s: the generation changed: %v, want %v", step.name, changed, step.relevant)
		}
	}
}

func TestSubscribe(t *testing.T) {
	t.Parallel()
	c := newCluster("r", host("pve1", 16, 64))
	i, _ := newInventory(t, c)
	ctx, cancel := context.WithCancel(t.Context())
	events := i.Subscribe(ctx)
	refresh(t, i)
	reserve(t, i, "a")
	reserve(t, i, "b")
	if e := <-events; e.Object == 0 || e.Object > i.View().Generation {
		t.Errorf("the event has generation %d", e.Object)
	}
	select {
	case e := <-events:
		t.Errorf("unread events were not merged: %v", e)
	default:
	}
	i.Ledger().Release("a")
	<-events
	cancel()
	if _, open := <-events; open {
		t.Error("the channel is open after the context ended")
	}
	i.Ledger().Release("b") // without subscribers
}

func TestNewDuplicateRegion(t *testing.T) {
	t.Parallel()
	a, b := newCluster("r", host("pve1", 1, 1)), newCluster("r", host("pve2", 1, 1))
	if _, err := inventory.New([]proxmox.Client{a, b}, inventory.Options{}); err == nil {
		t.Error("two Clusters with the same region were accepted")
	}
}

func TestRefreshAll(t *testing.T) {
	t.Parallel()
	good, bad := newCluster("good", host("pve1", 1, 2)), newCluster("bad", host("pve1", 1, 2))
	bad.failure = proxmox.ErrUnauthorized
	i, _ := newInventory(t, good, bad)
	err := i.RefreshAll(t.Context())
	if !errors.Is(err, proxmox.ErrUnauthorized) || !strings.Contains(err.Error(), "region bad") || i.View().Snapshots["good"] == nil {
		t.Errorf("the error is %v, want the name of the bad region and the good one read", err)
	}
	if got := i.Regions(); len(got) != 2 || got[0] != "bad" {
		t.Errorf("the regions are %v", got)
	}
}

// eventually waits for a condition that another goroutine causes.
func eventually(t *testing.T, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !done(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("timed out waiting until %s", what)
		}
	}
}
