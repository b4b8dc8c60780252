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

	"github.com/go-logr/logr/funcr"
	. "github.com/onsi/gomega"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	testclock "k8s.io/utils/clock/testing"

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

	c.change(func() { c.failures["resources"] = proxmox.ErrUnreachable })
	for n := range 3 {
		clock.Step(10 * time.Second)
		g.Expect(i.Refresh(t.Context(), "r")).To(MatchError(proxmox.ErrUnreachable))
		v := i.View()
		g.Expect(v.Snapshots["r"]).To(And(HaveField("Guests", HaveLen(1)), HaveField("Taken", BeTemporally("==", start))), "the last good Snapshot")
		failure, _ := errors.AsType[*inventory.PollError](v.Failures["r"])
		g.Expect(failure).To(And(HaveField("Count", n+1), HaveField("Since", BeTemporally("==", start.Add(10*time.Second)))))
		// The first failure changes nothing; the second makes the Hosts unusable.
		g.Expect(unusable(v, "pve1") == "").To(Equal(n == 0), "after %d failures usable", n+1)
	}
	g.Expect(i.View().Generation).To(Equal(generation+1), "want one change when the Hosts became unusable")
	c.change(func() { c.failures["resources"] = nil })
	refresh(t, i)
	g.Expect(i.View().Failures["r"]).To(Succeed())
	g.Expect(i.View().Generation).To(Equal(generation + 2))
}

func TestPollNoQuorum(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	c := newCluster("r", host("pve1", 16, 64))
	i, _ := newPolled(t, c)
	c.change(func() { c.failures["resources"] = proxmox.ErrNoQuorum })
	g.Expect(i.Refresh(t.Context(), "r")).To(MatchError(proxmox.ErrNoQuorum))
	g.Expect(unusable(i.View(), "pve1")).To(HavePrefix("the Proxmox cluster has had no quorum since 2026-11-15T08:00:00Z"))
	g.Expect(i.View().Unavailable("r")).To(MatchError(proxmox.ErrNoQuorum))
	c.change(func() { c.failures["resources"] = nil })
	refresh(t, i)
	g.Expect(i.View().Unavailable("r")).To(Succeed())
	c.change(func() { c.failures["resources"] = errors.Join(errors.New("401"), proxmox.ErrUnauthorized) })
	g.Expect(i.Refresh(t.Context(), "r")).To(MatchError(proxmox.ErrUnauthorized))
	g.Expect(unusable(i.View(), "pve1")).NotTo(BeEmpty(), "with invalid credentials")
}

func TestPollHangingCluster(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		hanging, reachable := newCluster("hanging", host("pve1", 8, 32)), newCluster("reachable", host("pve1", 8, 32))
		hang := make(chan struct{})
		hanging.on["resources"] = func() { <-hang }
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
	noGuests := func(permissions proxmox.Permissions) func(*cluster) {
		return func(c *cluster) { c.resources.Guests, c.permissions = nil, permissions }
	}
	type privileges = proxmox.Permissions
	audit := map[string]bool{"VM.Audit": true}
	for name, test := range map[string]struct {
		change func(*cluster)
		want   string
	}{
		"no_hosts": {func(c *cluster) { c.resources = proxmox.Resources{} }, "lists no hosts"},
		"no_host_sizes": {func(c *cluster) {
			c.resources.Hosts = []proxmox.HostRow{{Name: "pve1", Online: true}, {Name: "pve2", Online: true}}
		}, "Sys.Audit on /nodes"},
		"no_guests_without_privilege":        {noGuests(privileges{"/storage": {"Datastore.Audit": true}}), "VM.Audit on /vms"},
		"no_guests_with_privilege_elsewhere": {noGuests(privileges{"/nodes": audit}), "VM.Audit on /vms"},
		"no_guests_with_denied_privilege":    {noGuests(privileges{"/": audit, "/pool": audit, "/vms": {}}), "VM.Audit on /vms"},
		"no_guests_in_resource_pool":         {noGuests(privileges{"/pool/karpenter": audit}), ""},
		"no_guests_with_privilege":           {noGuests(privileges{"/vms": audit}), ""},
		"one_host_without_size":              {func(c *cluster) { c.resources.Hosts[0].CPUs = 0 }, ""},
		"all_hosts_offline":                  {func(c *cluster) { c.resources.Hosts = []proxmox.HostRow{{Name: "pve1"}, {Name: "pve2"}} }, ""},
	} {
		g := NewWithT(t)
		c := newCluster("r", host("pve1", 16, 64), host("pve2", 16, 64))
		c.setGuests(vm(100, "pve1", "running", 4, 8))
		i, _ := newPolled(t, c)
		c.change(func() { test.change(c) })
		err := i.Refresh(t.Context(), "r")
		if test.want == "" {
			g.Expect(err).NotTo(HaveOccurred(), name)
			continue
		}
		g.Expect(err).To(MatchError(ContainSubstring(test.want)), name)
		g.Expect(i.View().Snapshots["r"].Guests).To(HaveLen(1), "%s: the last good Snapshot was dropped", name)
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
	_, found := i.View().Guest("r", 100)
	g.Expect(found).To(BeFalse(), "the first poll shows a guest that was created after its response")
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
	_, found = i.View().Guest("r", 100)
	g.Expect(found).To(BeTrue(), "the View after Refresh is older than the call")
}

func TestRefreshCanceled(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		c := newCluster("r", host("pve1", 16, 64))
		hang := make(chan struct{})
		c.on["resources"] = func() { <-hang }
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
	g := NewWithT(t)
	g.Expect(i.View().IsVMIDTaken("r", 20001)).To(BeFalse())
	g.Expect(i.View().Snapshots["r"]).To(And(HaveField("Guests", HaveLen(1)), HaveField("Hosts", HaveKeyWithValue("pve1", HaveField("Allocated", amount(2, 4))))))

	// A later poll shows a new guest with the same VMID.
	c.change(func() { c.during = nil })
	clock.Step(time.Second)
	refresh(t, i)
	g.Expect(i.View().Snapshots["r"].Guests).To(HaveLen(2), "a new guest is hidden by an earlier deletion")
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
	i, _ := newInventory(t, newCluster("r", host("pve1", 16, 64)))
	ctx, cancel := context.WithCancel(t.Context())
	events := i.Subscribe(ctx)
	refresh(t, i)
	reserve(t, i, "a")
	reserve(t, i, "b")
	g.Expect((<-events).Object).To(And(BeNumerically(">", 0), BeNumerically("<=", i.View().Generation)))
	g.Expect(events).NotTo(Receive(), "unread events are merged")
	i.Ledger().Release("a")
	<-events
	cancel()
	_, open := <-events
	g.Expect(open).To(BeFalse(), "the channel is open after the context ended")
	i.Ledger().Release("b") // without subscribers
}

func TestRefreshAll(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	good, bad := newCluster("good", host("pve1", 1, 2)), newCluster("bad", host("pve1", 1, 2))
	bad.failures["resources"] = proxmox.ErrUnauthorized
	i, _ := newInventory(t, good, bad)
	g.Expect(i.RefreshAll(t.Context())).To(And(MatchError(proxmox.ErrUnauthorized), MatchError(ContainSubstring("region bad"))))
	g.Expect(i.View().Snapshots["good"]).NotTo(BeNil(), "want the name of the bad region and the good one read")
	g.Expect(i.Regions()).To(Equal([]string{"bad", "good"}))
	g.Expect(inventory.New([]proxmox.Client{good, newCluster("good")}, inventory.Options{})).Error().To(HaveOccurred(), "the same region twice")
}

func TestLogHostChanges(t *testing.T) {
	t.Parallel()
	var lines []string
	c := newCluster("r", host("pve1", 16, 64), host("pve2", 16, 64))
	i := newInventoryWith(t, inventory.Options{Log: funcr.New(func(_, line string) {
		if strings.Contains(line, `"msg"="host is`) {
			lines = append(lines, line)
		}
	}, funcr.Options{})}, c)
	for _, online := range []bool{true, false, false, true, true} {
		c.change(func() { c.resources.Hosts[1].Online = online })
		refresh(t, i)
	}
	NewWithT(t).Expect(lines).To(HaveExactElements(
		ContainSubstring(`"msg"="host is offline" "region"="r" "host"="pve2"`), ContainSubstring(`"msg"="host is online again" "region"="r" "host"="pve2"`),
	))
}

func TestMetrics(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	c := newCluster("r", host("pve1", 16, 65), host("pve2", 16, 65))
	c.setGuests(vm(100, "pve1", "running", 4, 8))
	c.resources.Hosts[1].Online = false
	clock, registry := testclock.NewFakeClock(start), prometheus.NewRegistry()
	i := newInventoryWith(t, inventory.Options{Clock: clock, Registerer: registry}, c)
	refresh(t, i)
	reserve(t, i, "a")
	clock.Step(7 * time.Second)
	c.change(func() { c.failures["resources"] = proxmox.ErrUnreachable })
	_ = i.Refresh(t.Context(), "r")

	const want = `
# HELP karpenter_proxmox_cluster_quorate 0 while a Proxmox cluster reports that it has no quorum, 1 otherwise.
# TYPE karpenter_proxmox_cluster_quorate gauge
karpenter_proxmox_cluster_quorate{region="r"} 1
# HELP karpenter_proxmox_host_cpus CPUs of a host: allocatable by settings, allocated to guests, reserved for VMs being launched, free.
# TYPE karpenter_proxmox_host_cpus gauge
karpenter_proxmox_host_cpus{host="pve1",region="r",state="allocatable"} 16
karpenter_proxmox_host_cpus{host="pve1",region="r",state="allocated"} 4
karpenter_proxmox_host_cpus{host="pve1",region="r",state="reserved"} 2
karpenter_proxmox_host_cpus{host="pve1",region="r",state="free"} 10
karpenter_proxmox_host_cpus{host="pve2",region="r",state="allocatable"} 16
karpenter_proxmox_host_cpus{host="pve2",region="r",state="allocated"} 0
karpenter_proxmox_host_cpus{host="pve2",region="r",state="reserved"} 0
karpenter_proxmox_host_cpus{host="pve2",region="r",state="free"} 16
# HELP karpenter_proxmox_host_online 1 if Proxmox reports a host as online, 0 if not, as of the last good snapshot.
# TYPE karpenter_proxmox_host_online gauge
karpenter_proxmox_host_online{host="pve1",region="r"} 1
karpenter_proxmox_host_online{host="pve2",region="r"} 0
# HELP karpenter_proxmox_host_usable 1 if a host accepts new VMs, 0 if not.
# TYPE karpenter_proxmox_host_usable gauge
karpenter_proxmox_host_usable{host="pve1",region="r"} 1
karpenter_proxmox_host_usable{host="pve2",region="r"} 0
# HELP karpenter_proxmox_inventory_age_seconds Age of the last good snapshot of a Proxmox cluster.
# TYPE karpenter_proxmox_inventory_age_seconds gauge
karpenter_proxmox_inventory_age_seconds{region="r"} 7
# HELP karpenter_proxmox_inventory_poll_errors_total Failed polls of a Proxmox cluster's resources.
# TYPE karpenter_proxmox_inventory_poll_errors_total counter
karpenter_proxmox_inventory_poll_errors_total{region="r"} 1
`
	err := testutil.GatherAndCompare(registry, strings.NewReader(want), "karpenter_proxmox_cluster_quorate", "karpenter_proxmox_host_cpus", "karpenter_proxmox_host_online", "karpenter_proxmox_host_usable",
		"karpenter_proxmox_inventory_age_seconds", "karpenter_proxmox_inventory_poll_errors_total")
	g.Expect(err).NotTo(HaveOccurred())
	problems, err := testutil.GatherAndLint(registry)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(problems).To(BeEmpty(), "the metrics violate Prometheus conventions")
	g.Expect(inventory.New(nil, inventory.Options{Registerer: registry})).Error().To(HaveOccurred(), "New registered the same metrics twice")

	c.change(func() { c.failures["resources"] = proxmox.ErrNoQuorum })
	_ = i.Refresh(t.Context(), "r")
	const noQuorum = `
# HELP karpenter_proxmox_cluster_quorate 0 while a Proxmox cluster reports that it has no quorum, 1 otherwise.
# TYPE karpenter_proxmox_cluster_quorate gauge
karpenter_proxmox_cluster_quorate{region="r"} 0
`
	g.Expect(testutil.GatherAndCompare(registry, strings.NewReader(noQuorum), "karpenter_proxmox_cluster_quorate")).To(Succeed())
}
