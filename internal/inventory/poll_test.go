// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package inventory_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

func TestPollFailure(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	c := newCluster("r", host("pve1", 16, 64))
	c.setGuests(vm(100, "pve1", "running", 4, 8))
	i, clock := newPolled(t, c)
	generation := i.View().Generation

	c.change(func() { c.failure = proxmox.ErrUnreachable })
	for n := range 3 {
		clock.Step(10 * time.Second)
		g.Expect(i.Refresh(t.Context(), "r")).To(MatchError(proxmox.ErrUnreachable))
		v := i.View()
		g.Expect(v.Snapshots["r"].Guests).To(HaveLen(1), "the last good Snapshot was dropped")
		g.Expect(v.Snapshots["r"].Taken.Equal(start)).To(BeTrue(), "the last good Snapshot was dropped")
		var failure *inventory.PollError
		if !errors.As(v.Failures["r"], &failure) || failure.Count != n+1 || !failure.Since.Equal(start.Add(10*time.Second)) {
			t.Fatalf("the failure is %+v, want failure %d since the first", failure, n+1)
		}
		// The first failure changes nothing; the second makes the Hosts unusable.
		ok, _ := v.Usable("r", "pve1")
		g.Expect(ok).To(Equal(n == 0), "after %d failures usable", n+1)
	}
	g.Expect(i.View().Generation).To(Equal(generation+1), "want one change when the Hosts became unusable")
	c.change(func() { c.failure = nil })
	refresh(t, i)
	g.Expect(i.View().Failures["r"]).To(Succeed())
	g.Expect(i.View().Generation).To(Equal(generation + 2))
}

func TestPollNoQuorum(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	c := newCluster("r", host("pve1", 16, 64))
	i, _ := newPolled(t, c)
	c.change(func() { c.failure = proxmox.ErrNoQuorum })
	g.Expect(i.Refresh(t.Context(), "r")).To(MatchError(proxmox.ErrNoQuorum))
	ok, reason := i.View().Usable("r", "pve1")
	if want := "the Proxmox cluster has had no quorum since 2026-11-15T08:00:00Z"; ok || !strings.HasPrefix(reason, want) {
		t.Errorf("usable is %v, reason %q, want %q after the first poll", ok, reason, want)
	}
	g.Expect(i.View().Unavailable("r")).To(MatchError(proxmox.ErrNoQuorum))
	c.change(func() { c.failure = nil })
	refresh(t, i)
	g.Expect(i.View().Unavailable("r")).To(Succeed())
}

func TestPollHangingCluster(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		hanging, reachable := newCluster("hanging", host("pve1", 8, 32)), newCluster("reachable", host("pve1", 8, 32))
		hang := make(chan struct{})
		hanging.before = func() { <-hang }
		i, _ := newInventory(t, hanging, reachable)
		ctx, cancel := context.WithCancel(t.Context())
		stopped := make(chan error)
		go func() { stopped <- i.Start(ctx) }()
		synctest.Wait()
		g.Expect(i.View().Snapshots["reachable"]).NotTo(BeNil())
		g.Expect(i.View().Snapshots["hanging"]).To(BeNil(), "the hanging Cluster has a Snapshot")
		cancel()
		close(hang)
		g.Expect(<-stopped).To(Succeed())
		g.Expect(i.View().Failures["hanging"]).To(Succeed(), "the shutdown was recorded as a failure")
	})
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
		"all_hosts_offline":     {func(c *cluster) { c.resources.Hosts = []proxmox.HostRow{{Name: "pve1"}, {Name: "pve2"}} }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := NewWithT(t)
			cluster := full()
			i, _ := newPolled(t, cluster)
			cluster.change(func() { c.change(cluster) })
			err := i.Refresh(t.Context(), "r")
			if c.want == "" {
				g.Expect(err).NotTo(HaveOccurred(), "a plausible response was rejected")
				return
			}
			g.Expect(err).To(MatchError(ContainSubstring(c.want)))
			g.Expect(i.View().Snapshots["r"].Guests).To(HaveLen(1), "the last good Snapshot was dropped")
		})
	}
}

func TestRefreshAfterChange(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
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
	g.Expect(<-refreshed).To(Succeed())
	if _, ok := i.View().Guest("r", 100); ok {
		t.Fatal("the first poll shows a guest that was created after its response")
	}
	<-read
	proceed <- struct{}{}
	for range 2 {
		select {
		case err := <-refreshed:
			g.Expect(err).NotTo(HaveOccurred())
		case <-read: // the third call may have been made after the second poll began
			proceed <- struct{}{}
			g.Expect(<-refreshed).To(Succeed())
		}
	}
	if _, ok := i.View().Guest("r", 100); !ok {
		t.Error("the View after Refresh is older than the call")
	}
}

func TestRefreshCanceled(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		c := newCluster("r", host("pve1", 16, 64))
		hang := make(chan struct{})
		c.before = func() { <-hang }
		i, _ := newInventory(t, c)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		g.Expect(i.Refresh(ctx, "r")).To(MatchError(context.Canceled))
		close(hang)
		synctest.Wait()
		g.Expect(i.View().Snapshots["r"]).NotTo(BeNil(), "the poll continues for other callers")
		g.Expect(i.Refresh(t.Context(), "nowhere")).To(HaveOccurred(), "a region that is not configured was refreshed")
	})
}

func TestObserveDeletedDuringPoll(t *testing.T) {
	t.Parallel()
	c := newCluster("r", host("pve1", 16, 64))
	c.setGuests(vm(20001, "pve1", "running", 4, 8), vm(100, "pve1", "running", 2, 4))
	c.configs[20001] = config("name", "vm-20001")
	i, clock := newPolled(t, c)

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
	g := NewWithT(t)
	c := newCluster("r", host("pve1", 16, 64))
	c.setGuests(vm(100, "pve1", "running", 4, 8))
	c.resources.Storages = []proxmox.StorageRow{{Name: "local", Host: "pve1", Available: true, TotalBytes: 100 * gib, UsedBytes: 10 * gib}}
	i, _ := newPolled(t, c)
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
		g.Expect(i.View().Generation != before).To(Equal(step.relevant), "%s: the generation changed", step.name)
	}
}

func TestSubscribe(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
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
	_, open := <-events
	g.Expect(open).To(BeFalse(), "the channel is open after the context ended")
	i.Ledger().Release("b") // without subscribers
}

func TestNewDuplicateRegion(t *testing.T) {
	t.Parallel()
	a, b := newCluster("r", host("pve1", 1, 1)), newCluster("r", host("pve2", 1, 1))
	NewWithT(t).Expect(inventory.New([]proxmox.Client{a, b}, inventory.Options{})).Error().To(HaveOccurred(), "two Clusters with the same region were accepted")
}

func TestRefreshAll(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	good, bad := newCluster("good", host("pve1", 1, 2)), newCluster("bad", host("pve1", 1, 2))
	bad.failure = proxmox.ErrUnauthorized
	i, _ := newInventory(t, good, bad)
	g.Expect(i.RefreshAll(t.Context())).To(And(MatchError(proxmox.ErrUnauthorized), MatchError(ContainSubstring("region bad"))))
	g.Expect(i.View().Snapshots["good"]).NotTo(BeNil(), "want the name of the bad region and the good one read")
	g.Expect(i.Regions()).To(Equal([]string{"bad", "good"}))
}
